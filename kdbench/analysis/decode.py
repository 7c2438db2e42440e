# SPDX-License-Identifier: Apache-2.0
"""Tokens a second of the decode loop, split: tok/s = batch * acceptance_length / round time.

A fall of tok/s has two causes that look alike: the drafter and the tree are right less often, or a round takes longer.
The suites measure tpot and acceptance_length on the same rounds, so that their product is the time of a round.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from kdbench import units

TPOT = "decode_tpot"
ACCEPTANCE = "track_acceptance_length"
# The smallest change of a part that is told of, as a fraction.
LEAST = 0.02
_WORKLOAD = re.compile(
    r"(?P<model>.+?)-(?P<mode>ar|chain|ddtree)(?:-b(?P<tree_budget>\d+))?-n(?P<batch>\d+)(?:-sim(?P<simulated>\d+))?"
)
_KEYS = ["machine", "env", "backend", "workload"]
_WHAT = ["model", "mode", "tree_budget", "batch", "simulated"]
_WHEN = ["commit", "order", "date"]
_NOW = ["tpot", "acceptance_length", "round_s", "tok_s"]
_CHANGE = ["before", "tok_s_change", "acceptance_change", "round_change", "cause", "sentence"]
COLUMNS = [*_KEYS, *_WHAT, *_WHEN, *_NOW, *_CHANGE]


def decode_split(frame: pd.DataFrame) -> pd.DataFrame:
    """Acceptance and round time of each commit, and which of the two moved tok/s since the one before.

    Args:
        frame: as from ``kdbench.results.load``.

    Returns:
        One row a machine, environment, backend, workload and commit with a tpot, by order:

        - ``model``, ``mode`` ("ar" | "chain" | "ddtree"), ``tree_budget`` (0 without a tree), ``batch``, ``simulated``
          (the probability in per cent with which a draft is right by assumption; 0: acceptance is real)
        - ``tpot`` (s), ``acceptance_length`` (tokens a round; 1 for "ar"; NaN where it was not measured), ``round_s``
          (s, NaN likewise), ``tok_s`` (of the whole batch)
        - ``before``: the nearest earlier commit with a tpot, or ""; ``tok_s_change``, ``acceptance_change``,
          ``round_change``: fractions against it, NaN where unknown
        - ``cause``: what moved tok/s by 2 % or more: "acceptance", "round", "both", "offset" (both moved and tok/s did
          not), "unknown" (acceptance was not measured), "" for nothing; ``sentence``: the same for people
    """
    tpot, acceptance = (_series(frame, name) for name in (TPOT, ACCEPTANCE))
    accepted = {(*(row[key] for key in _KEYS), row["commit"]): row["value"] for row in acceptance}
    rows: list[dict[str, Any]] = []
    last: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in sorted(tpot, key=lambda each: each["order"]):
        place = tuple(row[key] for key in _KEYS)
        now = _numbers(row, accepted.get((*place, row["commit"]), math.nan))
        rows.append({**now, **_compared(now, last.get(place))})
        last[place] = now
    return pd.DataFrame(rows, columns=COLUMNS)


def _series(frame: pd.DataFrame, method: str) -> list[dict[str, Any]]:
    if frame.empty:
        return []
    chosen = frame[frame["name"].str.endswith(f".{method}") & (frame["status"] == "ok") & (frame["order"] >= 0)]
    return list(_parsed(chosen))


def _parsed(chosen: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for row in chosen.to_dict("records"):
        params = json.loads(row["params"])
        workload, backend = str(params.get("workload")), str(params.get("backend"))
        if found := _WORKLOAD.fullmatch(workload):
            numbers = {key: int(found[key] or 0) for key in ("tree_budget", "batch", "simulated")}
            told = {str(key): value for key, value in row.items()}
            yield {**told, "workload": workload, "backend": backend, **found.groupdict(), **numbers}


def _numbers(row: Mapping[str, Any], measured: float) -> dict[str, Any]:
    length = 1.0 if row["mode"] == "ar" else measured
    return {
        **{key: row[key] for key in (*_KEYS, *_WHAT, *_WHEN)},
        "tpot": row["value"],
        "acceptance_length": length,
        "round_s": row["value"] * length,
        "tok_s": row["batch"] / row["value"],
    }


def _compared(now: Mapping[str, Any], before: Mapping[str, Any] | None) -> dict[str, Any]:
    if before is None:
        nothing = dict.fromkeys(("tok_s_change", "acceptance_change", "round_change"), math.nan)
        return {"before": "", **nothing, "cause": "", "sentence": ""}
    tok_s, accepted, rounds = (now[key] / before[key] - 1 for key in ("tok_s", "acceptance_length", "round_s"))
    cause = _cause(tok_s, accepted, rounds)
    return {
        "before": before["commit"],
        "tok_s_change": tok_s,
        "acceptance_change": accepted,
        "round_change": rounds,
        "cause": cause,
        "sentence": _sentence(cause, tok_s, accepted, rounds),
    }


def _cause(tok_s: float, accepted: float, rounds: float) -> str:
    moved = abs(tok_s) >= LEAST
    if math.isnan(accepted):
        return "unknown" if moved else ""
    by_acceptance, by_round = abs(accepted) >= LEAST, abs(rounds) >= LEAST
    if not moved:
        return "offset" if by_acceptance and by_round else ""
    # Both: each pulled, and in the direction in which tok/s went.
    pulls = [by_acceptance and (accepted > 0) == (tok_s > 0), by_round and (rounds < 0) == (tok_s > 0)]
    if all(pulls):
        return "both"
    if any(pulls):
        return "acceptance" if pulls[0] else "round"
    # Two changes below the least that add up to one above it.
    return "acceptance" if abs(math.log1p(accepted)) > abs(math.log1p(rounds)) else "round"


def _sentence(cause: str, tok_s: float, accepted: float, rounds: float) -> str:
    if not cause:
        return ""
    whole = f"tok/s {units.change(tok_s)}"
    if cause == "unknown":
        return f"{whole}; acceptance_length was not measured at both commits, so the cause is not known"
    parts = f"acceptance_length {units.change(accepted)}, round time {units.change(rounds)}"
    right = f"drafts are right {'more' if tok_s > 0 else 'less'} often"
    faster = f"a round is {'faster' if tok_s > 0 else 'slower'}"
    both = f"{right} and {faster}"
    reason = {"acceptance": right, "round": faster, "both": both, "offset": "the two cancel out"}[cause]
    return f"{whole}: {reason} ({parts})"
