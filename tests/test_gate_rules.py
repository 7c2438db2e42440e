# SPDX-License-Identifier: Apache-2.0
"""The reviewed file of thresholds and accepted regressions: what it says, and what it may not leave out."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from kdbench.errors import InvalidArgument
from kdbench.gate import rules

TODAY = datetime.date(2026, 12, 1)
SOUND = """
max_regression = "1.5%"

[[threshold]]
series = "VerifyAttn.*cold"
max_regression = "3%"
reason = "memory clock"
expires = 2027-06-30

[[threshold]]
series = "VerifyAttn"
max_regression = 0.04
reason = "the same"
expires = 2026-12-01

[[accepted]]
series = "TreeAccept"
commits = "3f2a9c1d"
max_ratio = 1.06
reason = "source_slots"
expires = 2027-01-31
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gate.toml"


def load(file: Path, text: str, today: datetime.date = TODAY) -> rules.Rules:
    file.write_text(text)
    return rules.load(file, file.parent, today)


def test_a_sound_file(file: Path) -> None:
    found = load(file, SOUND)
    assert found.limit("VerifyAttn.kern_cold('a', 'cpu')", 0.02) == 0.03  # the first that fits
    assert found.limit("VerifyAttn.kern_hot('a', 'cpu')", 0.02) == 0.04
    assert found.limit("TreeBuild", 0.02) == 0.02  # the command line wins over the file's default
    assert found.limit("TreeBuild") == 0.015
    assert rules.Rules().limit("TreeBuild") is None
    entry = rules.Accepted("TreeAccept", "3f2a9c1d", 1.06, "source_slots", datetime.date(2027, 1, 31))
    assert found.accepted == (entry,)


def test_the_default_file_may_be_absent_and_a_named_one_may_not(tmp_path: Path) -> None:
    assert rules.load(None, tmp_path, TODAY) == rules.Rules()
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "gate.toml").write_text(SOUND)
    assert rules.load(None, tmp_path, TODAY).max_regression == 0.015
    with pytest.raises(InvalidArgument, match=r"no-such\.toml cannot be read: No such file"):
        rules.load(tmp_path / "no-such.toml", tmp_path, TODAY)


def test_an_entry_counts_on_its_last_day_and_not_after(file: Path) -> None:
    assert load(file, SOUND, datetime.date(2026, 12, 1)).thresholds[1].max_regression == 0.04
    with pytest.raises(InvalidArgument, match=r"\[\[threshold\]\] 2 expired on 2026-12-01: remove it, or say anew"):
        load(file, SOUND, datetime.date(2026, 12, 2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('reason = "source_slots"\n', ""), r"\[\[accepted\]\] 1 has no reason"),
        (('reason = "source_slots"\n', 'reason = "  "\n'), "has no reason"),
        (("expires = 2027-01-31", 'expires = "2027-01-31"'), "a date without quotes"),
        (("expires = 2027-01-31", "expires = 2027-01-31T00:00:00"), "expires is datetime"),
        (("\nexpires = 2027-01-31", ""), "expires is None"),
        (('commits = "3f2a9c1d"\nmax_ratio = 1.06\n', ""), "neither commits nor max_ratio"),
        (('"3f2a9c1d"', '"main"'), "commits is 'main', and a hash"),
        (('"3f2a9c1d"', '"3f2a9c1d..main"'), "commits is"),
        (("1.06", "0.94"), "max_ratio is 0.94, and a number above 1"),
        (("1.06", "nan"), "max_ratio is nan"),
        (("1.06", '"1.06"'), "max_ratio is '1.06'"),
        (('"TreeAccept"', '"Tree(Accept"'), "no regular expression"),
        (('series = "TreeAccept"\n', ""), "has no series"),
        (('"3%"', '"3"'), "max_regression is '3', and a fraction between 0 and 1"),
        (('"3%"', '"-3%"'), "max_regression is '-3%'"),
        (('max_regression = "3%"\n', ""), "has no max_regression"),
        (('max_regression = "3%"', 'max_regressions = "3%"'), "has max_regressions; known are"),
        (('max_regression = "1.5%"', "max_regression = true"), "max_regression is 'True'"),
        (('max_regression = "1.5%"', "accept = 1"), "has accept; known are"),
        (('max_regression = "1.5%"', "accepted = 1"), "is no TOML|is no list"),
        (("[[accepted]]", "[accepted]"), r"write \[\[accepted\]\] above each entry"),
        (("[[accepted]]", "[[accepted"), "is no TOML"),
    ],
)
def test_what_is_wrong_with_an_entry_is_named(file: Path, change: tuple[str, str], message: str) -> None:
    assert change[0] in SOUND
    with pytest.raises(InvalidArgument, match=message):
        load(file, SOUND.replace(*change, 1))


def test_a_file_that_is_no_text(file: Path) -> None:
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidArgument, match="is no TOML"):
        rules.load(file, file.parent, TODAY)
    with pytest.raises(InvalidArgument, match="cannot be read"):
        rules.load(file.parent, file.parent, TODAY)


@pytest.mark.parametrize(("text", "value"), [("2%", 0.02), (" 0.5 %", 0.005), ("0.02", 0.02), ("1e-3", 0.001)])
def test_fractions(text: str, value: float) -> None:
    assert rules.fraction(text, "--max-regression") == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "%", "2", "0", "100%", "-1%", "nan", "inf", "2%%", "2% or so", "two"])
def test_what_is_no_fraction(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"--max-regression is .*fraction"):
        rules.fraction(text, "--max-regression")
