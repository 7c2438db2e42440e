# SPDX-License-Identifier: Apache-2.0
"""Frames -> the records that the page shows."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from kdbench import units
from kdbench.analysis import events
from kdbench.report.floors import Floors
from kdbench.report.noise import Sight
from kdbench.report.records import CommitLabel, Event, FloorCell, Place, Row
from kdbench.report.sparkline import Point, draw

# Commits that a sparkline has room for.
_COMMITS_DRAWN = 60
# The order in which an overview reads: what needs a person first.
_URGENCY = ("slower", "failed", "ambiguous", "faster", "same", "new", "absent", "n/a")


def places(
    newest: pd.DataFrame,
    changes: pd.DataFrame,
    facts: Mapping[str, Mapping[str, str]],
    floors: Floors,
    noise: pd.DataFrame | None = None,
) -> tuple[Place, ...]:
    """One Place per machine and environment; where something was measured last comes first.

    Args:
        newest, changes: as from ``kdbench.analysis``.
        facts: machine name -> its machine.json, as from ``kdbench.results.machine_facts``.
        floors: how near each series comes to what its machine could do.
        noise: as ``kdbench.analysis.noise.mde_for`` takes it; None when it is not known.
    """
    sight = Sight(noise)
    found = []
    by_place = list(changes.groupby(["machine", "env"], sort=True))
    by_place.sort(key=lambda place: -place[1]["order"].max())
    for key, judged in by_place:
        machine, env = str(key[0]), str(key[1])
        here = newest[(newest["machine"] == machine) & (newest["env"] == env)]
        found.append(_place(machine, env, here, judged, facts.get(machine, {}), floors, sight))
    return tuple(found)


def _place(
    machine: str,
    env: str,
    here: pd.DataFrame,
    judged: pd.DataFrame,
    facts: Mapping[str, str],
    floors: Floors,
    sight: Sight,
) -> Place:
    known = judged.drop_duplicates("commit").sort_values("order")
    labels = {str(row["commit"]): _commit_label(row) for row in known.to_dict("records")}
    axis = {commit: at for at, commit in enumerate(list(labels)[-_COMMITS_DRAWN:])}
    lines = {key: group for key, group in judged.groupby(["name", "params"], sort=False)}
    head = list(labels)[-1]
    earlier = here.loc[here["status"] == "ok", "before"].dropna().value_counts()
    before = str(earlier.index[0]) if len(earlier) else ""
    order = dict(zip(known["commit"], known["order"], strict=True))
    between = int(order[head] - order[before] - 1) if before else 0
    rows = [
        _row(row, lines[(row["name"], row["params"])], axis, labels, before, floors.cell(row), sight.of(row))
        for row in here.to_dict("records")
    ]
    shown = [row for row in rows if row.word != "n/a"]
    news = [_event(row, labels) for row in events(judged).to_dict("records")]
    news.sort(key=lambda event: list(labels).index(event.commit.sha))
    standing = [event for event in reversed(news) if event.state == "standing" and event.commit.sha != head]
    counts = tuple((word, n) for word in _URGENCY if (n := sum(row.word == word for row in rows)))
    tone, headline = _headline(dict(counts), len(shown), len(standing))
    return Place(
        machine=machine,
        env=env,
        facts=tuple((key, facts[key]) for key in ("gpu", "cpu", "num_cpu", "ram", "os", "arch") if facts.get(key)),
        newest=labels[head],
        before=labels.get(before),
        between=between if (here["direct"] == False).any() else 0,  # noqa: E712 - None is neither
        commits=len(labels),
        tone=tone,
        headline=headline,
        counts=counts,
        urgent=tuple(row for word in ("slower", "failed") for row in rows if row.word == word),
        standing=tuple(standing),
        groups=_grouped(shown),
        not_here=tuple(row for row in rows if row.word == "n/a"),
        history=_by_commit(news, list(labels)),
        comparisons=int((here["evidence"] == "processes").sum()),
        ceilings=floors.ceilings(machine),
        chart=floors.chart(machine, here),
    )


def _headline(counts: Mapping[str, int], shown: int, standing: int) -> tuple[str, str]:
    """(tone, sentence); the tone is good only when nothing is slower, failed or undecided."""
    slower, failed, unsure = (counts.get(word, 0) for word in ("slower", "failed", "ambiguous"))
    judged = shown - sum(counts.get(word, 0) for word in ("new", "absent"))
    if slower:
        return "bad", f"Slower: {slower} of {judged} series at the newest commit"
    if failed:
        return "bad", f"Failed: {failed} of {judged} series at the newest commit"
    if standing:
        return (
            "bad",
            f"Nothing slower at the newest commit, but {units.count(standing, 'earlier slowdown')} not undone",
        )
    if not judged:
        return "unsure", "Nothing to compare with yet"
    if unsure:
        return "unsure", f"No series is shown to be slower, but {unsure} of {judged} cannot be told"
    return "good", f"Nothing slower: {judged} of {judged} series compared"


def _row(
    row: Mapping[Any, Any],
    line: pd.DataFrame,
    axis: Mapping[str, int],
    labels: Mapping[str, CommitLabel],
    usual: str,
    floor: FloorCell | None,
    sees: float | None,
) -> Row:
    word = _word(row)
    if word == "n/a" and (line["status"] == "ok").any():
        # It ran here before, so its absence is news and not a property of the machine.
        word = "absent"
    drawn = line[(line["status"] == "ok") & line["commit"].isin(list(axis))]
    points = [Point(axis[p["commit"]], p["value"], p["low"], p["high"], p["verdict"]) for p in drawn.to_dict("records")]
    standing = line[(line["state"] == "standing") & (line["commit"] != row["commit"])]
    return Row(
        name=row["name"],
        params=_params(row["params"]),
        word=word,
        value=units.quantity(row["value"], row["unit"]) if row["status"] == "ok" else "–",
        interval=units.interval(row["value"], row["low"], row["high"], row["unit"]),
        change=units.change(row["change"]),
        change_interval=units.change_interval(row["change_low"], row["change_high"]),
        reason=row["reason"],
        note=_note(row, usual),
        sees="" if sees is None else f"can see ≥ {units.percent(sees)}",
        blind=sees is not None and math.isfinite(row["threshold"]) and sees > row["threshold"],
        since=labels[standing["commit"].iloc[-1]] if len(standing) else None,
        higher_is_better=row["direction"] == "higher",
        floor=floor,
        sparkline=draw(points, len(axis)),
        sparkline_text=_sparkline_text(points, row["unit"]),
    )


def _event(row: Mapping[Any, Any], labels: Mapping[str, CommitLabel]) -> Event:
    state = row["state"]
    if state == "undone" and isinstance(row["undone_by"], str):
        state = f"undone by {units.short(row['undone_by'])}"
    return Event(
        name=row["name"],
        params=_params(row["params"]),
        word=_word(row),
        before=units.quantity(row["before_value"], row["unit"]),
        after=units.quantity(row["value"], row["unit"]) if row["status"] == "ok" else "–",
        change=units.change(row["change"]),
        change_interval=units.change_interval(row["change_low"], row["change_high"]),
        reason=row["reason"],
        note=_note(row, None),
        state=state,
        commit=labels[row["commit"]],
    )


def _word(row: Mapping[Any, Any]) -> str:
    return {"failed": "failed", "skipped": "n/a", "absent": "absent"}.get(row["status"], str(row["verdict"]))


def _note(row: Mapping[Any, Any], usual: str | None) -> str:
    """Names the predecessor when a reader would expect another: the direct parent, or ``usual`` where that is given."""
    if not isinstance(row["before"], str) or row["status"] != "ok":
        return ""
    expected = row["direct"] is not False if usual is None else row["before"] == usual or row["direct"] is True
    return "" if expected else f"against {units.short(row['before'])}"


def _grouped(rows: Sequence[Row]) -> tuple[tuple[str, tuple[Row, ...]], ...]:
    names = sorted({row.name for row in rows})
    return tuple((name, tuple(sorted((r for r in rows if r.name == name), key=_natural))) for name in names)


def _natural(row: Row) -> list[tuple[int, str]]:
    """Sort key that puts 64 before 1024, wherever in a parameter the number stands."""
    parts = re.split(r"(\d+)", " ".join(value for _, value in row.params))
    return [(int(part[:15]), "") if part.isdecimal() else (-1, part) for part in parts]


def _by_commit(news: Sequence[Event], line: Sequence[str]) -> tuple[tuple[CommitLabel, tuple[Event, ...]], ...]:
    """Newest commit first; in a commit the most urgent word first."""
    grouped: dict[str, list[Event]] = {}
    for event in news:
        grouped.setdefault(event.commit.sha, []).append(event)
    ordered = sorted(grouped, key=line.index, reverse=True)
    return tuple(
        (grouped[sha][0].commit, tuple(sorted(grouped[sha], key=lambda e: _URGENCY.index(e.word)))) for sha in ordered
    )


def _params(text: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (name, value if isinstance(value, str) else json.dumps(value)) for name, value in json.loads(text).items()
    )


def _commit_label(row: Mapping[Any, Any]) -> CommitLabel:
    return CommitLabel(row["commit"], units.short(row["commit"]), units.day(row["date"]), row["subject"])


def _sparkline_text(points: Sequence[Point], unit: str) -> str:
    numbers = [p.value for p in points if math.isfinite(p.value)]
    if not numbers:
        return "no numbers"
    low, high = units.quantity(min(numbers), unit), units.quantity(max(numbers), unit)
    return f"{low} to {high} over {units.count(len(numbers), 'commit')}"
