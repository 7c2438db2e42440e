# SPDX-License-Identifier: Apache-2.0
"""Checks of ``results/decode/*.jsonl``: every line whole, its numbers consistent, and nothing wrong among them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kdbench.lint_lines import read_lines
from kdbench.provenance import LONG, PROFILE, SWEEP

_ROUNDING = 1e-6
_WHERE = ("commit", "date", "run", "command", "machine", "backend", "dtype", "native_sha256", "harness")


def check_file(path: Path) -> Iterator[tuple[str, str]]:
    """(series, problem) of one file; "" where no series is meant.

    Raises:
        OSError: the file cannot be read.
    """
    lines, unread = read_lines(path, lambda record: _examine(record, path), "line about the decode loop")
    yield from (("", problem) for problem in unread)
    for number, (series, problems) in lines:
        yield from ((series, f"line {number}: {problem}") for problem in problems)


def _examine(record: Mapping[str, Any], path: Path) -> tuple[str, list[str]]:
    """The series and its problems."""
    check = _CHECKS.get(record["schema"])
    if check is None:
        raise ValueError(f"nobody knows {record['schema']!r}")
    series = str(record.get("workload") or f"{record['mode']} {record['tree_budget']}")
    return series, [*_provenance(record, path), *check(record)]


def _provenance(record: Mapping[str, Any], path: Path) -> Iterator[str]:
    for name in _WHERE:
        if not record.get(name):
            yield f"names no {name}"
    if record.get("machine") != path.stem:
        yield f"names machine {record.get('machine')!r} in a file of another name"
    if record["backend"] == "cuda" and not (record.get("gpu") and record.get("driver")):
        yield "names no GPU or no driver"


def _sweep(record: Mapping[str, Any]) -> Iterator[str]:
    texts, wrong = int(record["texts"]), list(record["wrong"])
    if wrong:
        yield f"texts {wrong} are wrong: such an engine has no results"
    if texts < 1 or record["equal"] + record["near_ties"] + len(wrong) != texts:
        yield f"{record['equal']} equal texts and {record['near_ties']} near-ties are not its {texts} texts"
    if record["backend"] == "cpu" and record["near_ties"]:
        yield "a text parted on the CPU, where all bits are the same"
    if not 1 <= record["acceptance_length"] <= 32:
        yield f"acceptance_length is {record['acceptance_length']!r}"


def _profile(record: Mapping[str, Any]) -> Iterator[str]:
    stages = record["stage_seconds"]
    numbers = [record[name] for name in ("round_s", "acceptance_length", "output_tok_s")]
    if not all(math.isfinite(value) and value > 0 for value in numbers):
        yield f"round_s, acceptance_length and output_tok_s are {numbers}"
        return
    rate = record["batch"] * record["acceptance_length"] / record["round_s"]
    if abs(rate / record["output_tok_s"] - 1) > _ROUNDING:
        yield f"output_tok_s is {record['output_tok_s']!r}, and its parts make {rate!r}"
    if any(value < 0 for value in stages.values()) or sum(stages.values()) > 3 * record["round_s"]:
        yield f"its stages are {stages}, and a round is {record['round_s']!r} s"
    idle = record["idle_fraction"]
    if idle is not None and not 0 <= idle < 1:
        yield f"idle_fraction is {idle!r}"
    if ("kimi" in record["workload"] and record["mode"] != "ar") != bool(record["simulated_accept"]):
        yield "does not say whether its acceptance is simulated"


def _long(record: Mapping[str, Any]) -> Iterator[str]:
    if record["wrong"]:
        yield f"{record['wrong'][0]}: such an engine has no results"
    if record["refused"] != len(record["refusals"]) or not all(record["refusals"]):
        yield "a refusal without a sentence"


_CHECKS: dict[str, Callable[[Mapping[str, Any]], Iterator[str]]] = {SWEEP: _sweep, PROFILE: _profile, LONG: _long}
