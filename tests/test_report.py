# SPDX-License-Identifier: Apache-2.0
"""The report: what it says, in which words and units, that foreign text stays text, and that a browser shows it."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asv_writer import AsvDirectory, benchmark, git, git_commit, git_repository, planted, processes
from jsonschema import Draft202012Validator

from kdbench import units
from kdbench.errors import KdbenchError
from kdbench.report import build, sparkline, to_json, write
from kdbench.report.page import SYMBOLS, shorten
from kdbench.report.sparkline import Point

NUMBER = {"type": ["number", "null"]}
SERIES = {
    "type": "object",
    "required": [
        *["name", "params", "machine", "unit", "direction", "commit", "value", "ci_low", "ci_high"],
        *["parent_value", "change_percent", "verdict"],
    ],
    "properties": {
        "params": {"type": "object"},
        "commit": {"type": "string", "minLength": 40},
        "direction": {"enum": ["lower", "higher"]},
        "verdict": {"enum": ["same", "slower", "faster", "ambiguous", "new", "missing"]},
        **dict.fromkeys(["value", "ci_low", "ci_high", "parent_value", "change_percent"], NUMBER),
    },
}
SCHEMA = {
    "type": "object",
    "required": ["schema", "series", "changes", "summary", "warnings"],
    "properties": {"schema": {"const": "kdbench/report/1"}, "series": {"type": "array", "items": SERIES}},
}


VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """What a browser would make of the page: tags with attributes, and the text outside of style."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    root = tmp_path_factory.mktemp("history")
    return root, planted(root / "results", root / "repo")


@pytest.fixture(scope="module")
def built(history: tuple[Path, list[str]]) -> tuple[dict[str, Any], str]:
    root, _ = history
    return build(root / "results", root / "repo")


def test_the_document_is_strict_json_of_the_promised_form(built: tuple[dict[str, Any], str]) -> None:
    def refuse(word: str) -> Any:
        raise AssertionError(word)

    content = json.loads(to_json(built[0]), parse_constant=refuse)
    Draft202012Validator(SCHEMA).validate(content)
    assert len(content["series"]) == 7
    with pytest.raises(ValueError, match="JSON"):
        to_json({"value": math.nan})


def test_the_planted_commit_is_the_only_change(
    built: tuple[dict[str, Any], str], history: tuple[Path, list[str]]
) -> None:
    content, hashes = built[0], history[1]
    assert {change["commit"] for change in content["changes"]} == {hashes[7]}
    by_name = {change["name"]: change for change in content["changes"]}
    assert set(by_name) == {"bench.Kern.kern_hot", "bench.track_tok_s"}
    assert by_name["bench.Kern.kern_hot"]["params"] == {"workload": "b", "backend": "cpu"}
    drop = by_name["bench.track_tok_s"]
    assert (drop["verdict"], drop["direction"], drop["state"]) == ("slower", "higher", "standing")
    assert -9 < drop["change_percent"] < -6
    assert drop["change_percent"] == pytest.approx(100 * (drop["value"] / drop["parent_value"] - 1))


def test_series_are_the_newest_commit_with_values_as_asv_stored_them(
    built: tuple[dict[str, Any], str], history: tuple[Path, list[str]]
) -> None:
    root, hashes = history
    stored = json.loads(next((root / "results" / "box").glob(f"{hashes[-1][:8]}*.json")).read_text())
    row = dict(zip(stored["result_columns"], stored["results"]["bench.Kern.kern_hot"], strict=False))
    ours = {
        (entry["params"]["workload"], entry["params"]["backend"]): entry
        for entry in built[0]["series"]
        if entry["name"] == "bench.Kern.kern_hot"
    }
    assert ours["a", "cpu"]["value"] == row["result"][0]
    assert ours["a", "cpu"]["ci_low"] <= row["result"][0] <= ours["a", "cpu"]["ci_high"]
    assert {entry["commit"] for entry in built[0]["series"]} == {hashes[-1]}
    assert ours["a", "cuda"]["verdict"] == "missing"
    assert ours["a", "cuda"]["status"] == "skipped"
    assert ours["a", "cuda"]["value"] is None


def test_what_a_series_shows_stands_beside_its_verdict(tmp_path: Path) -> None:
    """Noise between processes of 0.1 % and of 6 %: the second cannot show what it should, and that is marked."""
    spreads = {"m.C.quiet": 0.001, "m.C.noisy": 0.06}
    directory, rng = AsvDirectory(tmp_path, [benchmark(name) for name in spreads]), np.random.default_rng(5)
    for at in range(3):
        cells = {name: [processes(rng, 1e-5, sd)] for name, sd in spreads.items()}
        directory.add(f"{at + 1}" * 40, cells, day=at)
    document, page = build(tmp_path)
    sees = {row["name"]: row["can_see_percent"] for row in document["series"]}
    assert 0.1 < sees["m.C.quiet"] < 1.0
    assert 8.0 < sees["m.C.noisy"] < 60.0
    for name, style in (("m.C.quiet", "under"), ("m.C.noisy", "under bad")):
        assert f'<span class="{style}">can see ≥ {units.percent(sees[name] / 100)}</span>' in page


def test_a_slow_newest_commit_is_the_headline(tmp_path: Path) -> None:
    hashes = planted(tmp_path / "results", tmp_path / "repo", commits=5, slow_at=4, effect=1.3)
    content, page = build(tmp_path / "results", tmp_path / "repo")
    slower = [entry for entry in content["series"] if entry["verdict"] == "slower"]
    assert {entry["name"] for entry in slower} == {"bench.Kern.kern_hot", "bench.track_tok_s"}
    assert {entry["parent"] for entry in slower} == {hashes[3]}
    assert content["summary"] == {"same": 2, "slower": 2, "missing": 3}
    text = Page(page).text
    assert "Slower: 2 of 4 series at the newest commit" in text
    assert f"newest {hashes[4][:10]} 2025-06-19 change 4" in text


def test_an_earlier_slowdown_is_not_forgotten(built: tuple[dict[str, Any], str], history: Any) -> None:
    text = Page(built[1]).text
    assert "Nothing slower at the newest commit, but 2 earlier slowdowns not undone" in text
    assert f"since {history[1][7][:10]}" in text
    assert "(higher is better)" in text
    assert "3 series have never had a number on this machine" in text


def test_nothing_slower_and_cannot_tell_are_different_headlines(tmp_path: Path) -> None:
    def headline(sd: float, count: int) -> str:
        directory = AsvDirectory(tmp_path / f"{sd}{count}", [benchmark("s.kern_x", rounds=count)])
        for day, commit in enumerate(("a" * 40, "b" * 40)):
            directory.add(commit, {"s.kern_x": [processes(np.random.default_rng(day), 1e-3, sd, count)]}, day=day)
        return Page(build(directory.root)[1]).text

    assert "Nothing slower: 1 of 1 series compared" in headline(0.001, 5)
    assert "1 of 1 cannot be told" in headline(0.05, 5)
    few = headline(0.001, 2)
    assert "1 of 1 cannot be told" in few
    assert "too few processes to tell (2 and 2; 5 and 5 can)" in few


def test_a_slow_head_is_reported_though_another_branch_has_more_results(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    hashes = git_repository(repo, list("ABCD"))
    git(repo, "checkout", "-q", "-b", "side", hashes[1])
    directory = AsvDirectory(tmp_path / "results", [benchmark("s.kern_x")])
    rng = np.random.default_rng(1)
    for day, commit in enumerate([*hashes, git_commit(repo, "X", 4)]):
        directory.add(commit, {"s.kern_x": [processes(rng, 150e-6 if day == 4 else 100e-6)]}, day=day)
    content, _ = build(directory.root, repo)
    assert content["summary"] == {"slower": 1}
    assert content["series"][0]["change_percent"] == pytest.approx(50, abs=3)


def test_failed_and_absent_are_said_with_their_reason(tmp_path: Path) -> None:
    directory = AsvDirectory(tmp_path / "results", [benchmark(f"s.kern_{name}") for name in "xyz"])
    good = [processes(np.random.default_rng(1), 1e-3)]
    directory.add("a" * 40, {"s.kern_x": good, "s.kern_y": good, "s.kern_z": good})
    path = directory.add("b" * 40, {"s.kern_x": [None], "s.kern_y": good}, day=1)
    record = {
        "schema": "kdbench/failure/1",
        "kind": "build",
        "commit": "b" * 40,
        "env_name": "virtualenv-py3.11",
        "output_tail": "error: <oops>",
    }
    (path.parent / "failures.jsonl").write_text(json.dumps(record))
    content, page = build(directory.root)
    text = Page(page).text
    assert "the commit does not build: error: <oops>" in text
    assert "not part of the newest run; last entry at aaaaaaaa" in text
    assert "Failed: 1 of 2 series at the newest commit" in text
    assert [(change["name"], change["verdict"]) for change in content["changes"]] == [("s.kern_x", "missing")]


HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</style></title><!-- --><![CDATA[",
    "{{ 7 * 7 }}{% raw %}&lt;&amp;",
    "\u202egnp.exe\u0000\u001b[31m\ud800",
    "日本語 µs é 👩‍🚀",
    "x" * 10_000,
]


@pytest.mark.parametrize("evil", HOSTILE, ids=range(len(HOSTILE)))
def test_foreign_text_stays_text(tmp_path: Path, evil: str) -> None:
    made = write(*hostile_directory(tmp_path / "evil", evil))
    write(*hostile_directory(tmp_path / "plain", "plain"))
    page, plain = (
        Page((tmp_path / name / "out" / "index.html").read_text(encoding="utf-8")) for name in ("evil", "plain")
    )
    # The same structure, tag by tag: nothing of the text became markup, nor any attribute but a title.
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]
    for (_, attributes), (_, expected) in zip(page.tags, plain.tags, strict=True):
        assert set(attributes) - {"title"} == set(expected) - {"title"}
        assert attributes.get("class") == expected.get("class")
    shown = what_is_left(evil)[:60]
    assert sum(shown in words for words in page.words) >= 10
    assert len(page.text) < 30_000
    # Text for machines is not cut.
    assert {series["machine"] for series in made["series"]} == {what_is_left(evil)}
    (tmp_path / "evil" / "out" / "report.json").read_text(encoding="ascii")


def hostile_directory(root: Path, evil: str) -> tuple[Path, Path, Path]:
    """Results, out and repository where every text that a stranger may choose is ``evil``."""
    title = evil.replace("\0", "").encode("utf-8", "replace").decode()
    hashes = git_repository(root / "repo", ["first", title])
    directory = AsvDirectory(root / "results", [benchmark(f"s.{evil}", params={evil: [evil, 2]}, unit=evil)])
    cells = [processes(np.random.default_rng(1), 1.0), None]
    for day, commit in enumerate(hashes):
        path = directory.add(commit, {f"s.{evil}": cells}, day=day)
        # A folder's name cannot hold such text, but what is in the files can.
        data = json.loads(path.read_text())
        data["params"]["machine"] = data["env_name"] = evil
        path.write_text(json.dumps(data))
    (path.parent / "machine.json").write_text(json.dumps({"machine": evil, "cpu": evil, "version": 1}))
    (path.parent / "broken.json").write_text(json.dumps({"results": {}, "version": evil}))
    return directory.root, root / "out", root / "repo"


def what_is_left(evil: str) -> str:
    """What is left of a text that holds control characters."""
    return "".join("\ufffd" if ord(c) < 32 or 0xD800 <= ord(c) <= 0xDFFF else c for c in evil)


def test_the_page_needs_nothing_beside_itself(built: tuple[dict[str, Any], str]) -> None:
    page = Page(built[1])
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "img", "iframe", "object", "embed", "video", "audio", "base", "form"}
    for tag, attributes in page.tags:
        for key, value in attributes.items():
            assert not key.startswith("on")
            if key in ("href", "src"):
                assert str(value).startswith(("#", "data:")), (tag, value)
    assert not re.search(r"https?://|@import|url\(", built[1])
    assert {"lang": "en"} in [attributes for tag, attributes in page.tags if tag == "html"]
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [str(a["href"])[1:] for tag, a in page.tags if tag == "a"]
    assert set(targets) <= set(ids)


def test_no_verdict_by_colour_alone(built: tuple[dict[str, Any], str]) -> None:
    assert len({SYMBOLS[word] for word in ("same", "slower", "faster", "ambiguous", "new", "failed", "n/a")}) == 7
    text = Page(built[1]).text
    for word in ("same", "slower"):
        assert f"{SYMBOLS[word]} {word}" in text


def test_no_results_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(KdbenchError, match="no results in"):
        build(tmp_path)
    (tmp_path / "box").mkdir()
    (tmp_path / "box" / "half.json").write_text("{")
    with pytest.raises(KdbenchError, match=r"1 file\(s\) could not be used, the first: skipped .*half\.json"):
        build(tmp_path)


def test_an_out_directory_that_cannot_be_is_one_sentence(tmp_path: Path, history: tuple[Path, list[str]]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KdbenchError, match="cannot write the report to"):
        write(history[0] / "results", tmp_path / "file" / "out")


@pytest.mark.parametrize(
    ("value", "unit", "wanted"),
    [
        (12.3456e-6, "seconds", "12.35 µs"), (1.0e-9, "seconds", "1.000 ns"), (999.96e-9, "seconds", "1.000 µs"),
        (0.0123, "seconds", "12.30 ms"), (75.5, "seconds", "75.50 s"), (0.0, "seconds", "0 s"),
        (138586.4, "tok/s", "138,586 tok/s"), (4.25, "unit", "4.250"), (2.5e6, "bytes", "2.500 MB"),
        (-3.0, "unit", "−3.000"), (math.nan, "seconds", "n/a"), (1e-30, "unit", "1e-30"),
        (3e-12, "seconds", "0.003000 ns"),
    ],
)  # fmt: skip
def test_quantities_read_well(value: float, unit: str, wanted: str) -> None:
    assert units.quantity(value, unit).replace("\u202f", " ") == wanted


@pytest.mark.parametrize(
    ("fraction", "wanted"),
    [(0.0193, "+1.9 %"), (-0.25, "−25.0 %"), (1.034, "+103 %"), (0.0, "0.0 %"), (-0.0001, "0.0 %"), (math.nan, "")],
)
def test_changes_read_well(fraction: float, wanted: str) -> None:
    assert units.change(fraction).replace("\u202f", " ") == wanted


def test_intervals_share_the_scale_of_their_value() -> None:
    assert units.interval(12.3456e-6, 999e-9, 13e-6, "seconds") == "1.00 – 13.00"
    assert units.interval(1.0, math.nan, 2.0, "seconds") == ""
    assert units.change_interval(-0.003, 0.004).replace("\u202f", " ") == "−0.3 … +0.4 %"
    assert units.change_interval(math.nan, 0.1) == ""
    assert [units.count(n, "process") for n in (1, 2)] == ["1 process", "2 processes"]
    assert shorten("abc", 2) == "a…"


def test_a_sparkline_breaks_at_gaps_and_stays_in_its_box() -> None:
    points = [Point(at, 1.0 + at, 0.5 + at, 90.0 if at == 1 else 1.5 + at, "same") for at in (0, 1, 3)]
    points.append(Point(4, 9.0, math.nan, math.nan, "slower"))
    drawn = sparkline.draw(points, 6)
    assert drawn is not None
    assert len(drawn.lines) == 2
    assert len(drawn.bands) == 2
    assert [verdict for *_, verdict in drawn.marks] == ["slower"]
    for text in (*drawn.lines, *drawn.bands):
        for x, y in (map(float, pair.split(",")) for pair in text.split()):
            assert 0 <= x <= sparkline.WIDTH
            assert 0 <= y <= sparkline.HEIGHT
    assert sparkline.draw([], 3) is None


def test_a_quiet_series_looks_quiet() -> None:
    drawn = sparkline.draw([Point(at, 1.0 + 0.001 * (at % 2), math.nan, math.nan, "same") for at in range(8)], 8)
    assert drawn is not None
    heights = [float(pair.split(",")[1]) for pair in drawn.lines[0].split()]
    assert max(heights) - min(heights) < 0.05 * sparkline.HEIGHT
    lone = sparkline.draw([Point(0, 0.0, 0.0, 0.0, "new")], 1)
    assert lone is not None
    assert lone.last == (sparkline.WIDTH / 2, sparkline.HEIGHT / 2)
