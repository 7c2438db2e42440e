# SPDX-License-Identifier: Apache-2.0
"""From verdicts to an exit code, and the same decisions in every format."""

from __future__ import annotations

import datetime
import math
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdbench.gate import annotations, display, junit, markdown, policy, words
from kdbench.gate.rules import Accepted, Rules, Threshold
from kdbench.paired.types import PairedResult

SERIES = "bench_tree_accept.TreeAccept.kern_hot('b64-d7-n1-full', 'cpu')"
LATER = datetime.date(2099, 1, 1)
VERDICTS = ("SAME", "FASTER", "SLOWER", "AMBIGUOUS", "FAILED")


def of(
    verdict: str,
    series: str = SERIES,
    ratio: float | None = None,
    spread: float = 0.01,
    reasons: tuple[str, ...] = (),
) -> PairedResult:
    ends = (None, None) if ratio is None else (ratio - spread, ratio + spread)
    names = (series, "tree_accept", "w", "cpu", "hot", "seconds", "lower")
    return PairedResult(*names, verdict, ratio, *ends, reasons=reasons)


def result(verdict: str, series: str = SERIES, reasons: tuple[str, ...] = ()) -> PairedResult:
    ratio = {"SLOWER": 1.05, "FASTER": 0.95, "FAILED": None}.get(verdict, 1.0)
    return of(verdict, series, ratio, reasons=reasons)


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (["SAME"], 0),
        (["FASTER", "SAME"], 0),
        (["SAME", "SLOWER"], 1),
        (["AMBIGUOUS", "SAME"], 2),
        (["FAILED", "SAME"], 2),
        (["AMBIGUOUS", "SLOWER", "FAILED"], 1),
        ([], 2),
        (["a word nobody knows"], 2),
    ],
)
def test_exit_codes(verdicts: list[str], code: int) -> None:
    decisions = policy.decide([result(verdict, f"s{at}") for at, verdict in enumerate(verdicts)], Rules())
    assert policy.exit_code(decisions) == code


@given(st.lists(st.sampled_from(VERDICTS), max_size=6))
def test_green_needs_every_series_to_be_known_and_none_slower(verdicts: list[str]) -> None:
    code = policy.exit_code(policy.decide([result(v, f"s{i}") for i, v in enumerate(verdicts)], Rules()))
    assert (code == 0) == (bool(verdicts) and set(verdicts) <= {"SAME", "FASTER"})
    assert (code == 1) == ("SLOWER" in verdicts)


def test_a_series_that_was_not_measured_is_unknown() -> None:
    decisions = policy.decide([result("SAME", "a")], Rules(), expected=["a", "b"])
    assert [(d.series, d.state, d.verdict) for d in decisions] == [("b", "unknown", "MISSING"), ("a", "passed", "SAME")]
    assert policy.exit_code(decisions) == 2


def entry(**fields: object) -> Rules:
    known = {"series": "TreeAccept", "commits": None, "max_ratio": 1.06, "reason": "why", "expires": LATER}
    return Rules(accepted=(Accepted(**{**known, **fields}),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rules", "state"),
    [
        (entry(), "accepted"),
        (entry(max_ratio=1.04), "slower"),
        (entry(max_ratio=1.05), "accepted"),
        (entry(series="TreeBuild"), "slower"),
        (entry(commits="abcdef1"), "accepted"),
        (entry(commits="abcdef1", max_ratio=None), "accepted"),
        (entry(commits="0000000"), "slower"),
        (entry(commits="0000000", max_ratio=None), "slower"),
    ],
)
def test_accepted_slowdowns(rules: Rules, state: str) -> None:
    (decision,) = policy.decide([result("SLOWER")], rules, in_range=lambda commits: commits == "abcdef1")
    assert decision.state == state
    assert policy.exit_code([decision]) == (0 if state == "accepted" else 1)
    assert (decision.accepted is not None) == (state == "accepted")


@pytest.mark.parametrize("verdict", ["AMBIGUOUS", "FAILED"])
def test_what_is_not_known_cannot_be_accepted(verdict: str) -> None:
    (decision,) = policy.decide([result(verdict)], entry())
    assert decision.state == "unknown"


def test_more_than_was_accepted_says_so() -> None:
    (decision,) = policy.decide([result("SLOWER")], entry(max_ratio=1.03))
    assert "more than the accepted +3.0" in decision.reason


def test_entries_that_fit_nothing_are_told() -> None:
    rules = Rules(thresholds=(Threshold("NoSuch", 0.05, "why", LATER), Threshold("Tree", 0.05, "why", LATER)))
    decisions = policy.decide([result("SAME")], rules)
    assert decisions[0].max_regression == 0.05
    assert len(policy.unused(rules, decisions)) == 1
    assert "'NoSuch' fits no series" in policy.unused(rules, decisions)[0]


def test_the_worst_comes_first() -> None:
    found = [result("SAME", "a"), result("SLOWER", "b"), result("AMBIGUOUS", "c"), result("FAILED", "d")]
    worse = of("SLOWER", "e", 1.5)
    decisions = policy.decide([*found, worse], Rules())
    assert [d.series for d in decisions] == ["e", "b", "c", "d", "a"]
    assert words.headline(decisions) == "2 slower than allowed, 2 not known, 1 passed"


@pytest.mark.parametrize(
    ("ratio", "said"),
    [(1.031, "1.031× slower"), (0.5, "2.000× faster"), (1.0, "1.000×"), (math.nan, "n/a"), (0.0, "n/a"), (None, "n/a")],
)
def test_ratios_are_words(ratio: float, said: str) -> None:
    decision = policy.decide([of("SAME", SERIES, ratio)], Rules())[0]
    assert words.change(decision) == said


# What would break out of a format: every special character, control characters, commands, mentions.
EVIL = "a|b`c`<script>x</script> @who #12 100%\r\n::error::x,y:z \x00\x1b[31m ]]>&amp; \ud800 *b* ~~c~~ $x$"


def test_annotations_stay_one_command_each() -> None:
    decisions = policy.decide([result("SLOWER", EVIL, (EVIL,)), result("AMBIGUOUS", "b"), result("SAME", "c")], Rules())
    lines = annotations.lines(decisions)
    assert len(lines) == 2
    assert lines[0].startswith("::error title=a|b`c`<script>x</script> @who #12 100%25%0D%0A%3A%3Aerror%3A%3Ax%2Cy%3Az")
    assert lines[1].startswith("::warning title=b::AMBIGUOUS")
    assert all("\n" not in line and "\r" not in line for line in lines)
    # A title ends at the first double colon.
    assert lines[0].count("::") - lines[0].split("::", 2)[2].count("::") == 2


def test_github_shows_ten_annotations_of_a_kind() -> None:
    lines = annotations.lines(policy.decide([result("SLOWER", f"s{at:02}") for at in range(30)], Rules()))
    assert len(lines) == 10
    assert lines[-1].endswith("::21 more slower: see the log")


def test_junit_is_xml_whatever_is_in_it() -> None:
    verdicts = {"SLOWER": "failure", "AMBIGUOUS": "error", "FAILED": "error", "SAME": "system-out"}
    decisions = policy.decide([result(v, f"{v} {EVIL}", (EVIL,)) for v in verdicts], Rules())
    root = ET.fromstring(junit.document(decisions, EVIL, 12.5).encode("utf-8", "surrogatepass"))
    assert root.attrib["tests"] == "4"
    assert root.attrib["failures"] == "1"
    assert root.attrib["errors"] == "2"
    assert root.attrib["skipped"] == "0"
    cases = {case.attrib["name"].split()[0]: [child.tag for child in case] for case in root.iter("testcase")}
    assert cases == {verdict: [tag] for verdict, tag in verdicts.items()}
    failure = next(root.iter("failure"))
    assert failure.attrib["type"] == "SLOWER"
    assert "1.050× slower" in failure.attrib["message"]


def test_markdown_shows_text_as_it_is() -> None:
    decisions = policy.decide([result("SLOWER", EVIL, (EVIL,)), result("SAME", "fine")], Rules())
    text = markdown.comment(decisions, "base", "he|ad", ["a machine"])
    rows = [line for line in text.splitlines() if line.startswith("| ❌")]
    assert len(rows) == 1
    assert "<script>" not in text.replace("\\<script", "")
    assert "@who" not in text
    assert "#12" not in text
    # Seven cells, whatever is in them.
    assert rows[0].replace("\\|", "").count("|") == 8
    assert "<summary>1 passed</summary>" in text
    assert "### kdbench gate: regression" in text
    assert "he\\|ad" in text


def test_markdown_fits_a_comment() -> None:
    many = [result("SLOWER", f"s{at}", ("because " * 20,)) for at in range(1000)]
    text = markdown.comment(policy.decide([*many, result("SAME")], Rules()), "a", "b")
    assert len(text) < 65_536
    assert "more: see the log" in text


@pytest.mark.parametrize(("verdict", "outcome"), [("SAME", "passed"), ("AMBIGUOUS", "could not tell")])
def test_markdown_names_the_outcome(verdict: str, outcome: str) -> None:
    text = markdown.comment(policy.decide([result(verdict)], Rules()), "a", "b")
    assert f"kdbench gate: {outcome}" in text


def test_the_estimate_on_the_way_is_the_worst_one() -> None:
    results = (of("AMBIGUOUS", "a", 1.04), of("SAME", "b", 1.0), of("AMBIGUOUS", "c"))
    assert display.estimate(results) == "(3 of 3 settled; at most 1.040×)"
    assert display.estimate(results[2:]) == ""
