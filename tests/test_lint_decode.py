# SPDX-License-Identifier: Apache-2.0
"""Lines about the decode loop: sound ones pass, and whatever cannot be is found."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kdbench import lint_decode, provenance

WHERE = {
    "commit": "c" * 40,
    "date": "2026-11-30T00:00:00+00:00",
    "run": "abc",
    "command": "python -m ...",
    "machine": "box",
    "backend": "cpu",
    "dtype": "f32",
    "native_sha256": "d" * 64,
    "harness": "0.1.0",
}
SWEEP = {
    "schema": provenance.SWEEP,
    "mode": "ddtree",
    "tree_budget": 8,
    "texts": 200,
    "equal": 200,
    "near_ties": 0,
    "wrong": [],
    "acceptance_length": 2.5,
    **WHERE,
}
PROFILE = {
    "schema": provenance.PROFILE,
    "workload": "tiny-ddtree-b8-n2",
    "mode": "ddtree",
    "tree_budget": 8,
    "batch": 2,
    "round_s": 0.01,
    "acceptance_length": 3.0,
    "output_tok_s": 600.0,
    "stage_seconds": {"draft": 0.002, "verify": 0.008},
    "idle_fraction": 0.01,
    "simulated_accept": None,
    **WHERE,
}
LONG = {
    "schema": provenance.LONG,
    "mode": "ddtree",
    "tree_budget": 15,
    "wrong": [],
    "refused": 1,
    "refusals": ["too long"],
    **WHERE,
}


def problems(folder: Path, *records: dict[str, Any]) -> list[str]:
    path = folder / "box.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return [problem for _, problem in lint_decode.check_file(path)]


def test_sound_lines_pass(tmp_path: Path) -> None:
    assert problems(tmp_path, SWEEP, PROFILE, LONG) == []
    gpu = {"backend": "cuda", "gpu": "NVIDIA H200", "driver": "580"}
    assert problems(tmp_path, SWEEP | gpu | {"equal": 190, "near_ties": 10}) == []


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (SWEEP | {"wrong": [7], "equal": 199}, r"texts \[7\] are wrong"),
        (SWEEP | {"equal": 150}, "150 equal texts and 0 near-ties are not its 200 texts"),
        (SWEEP | {"equal": 199, "near_ties": 1}, "a text parted on the CPU"),
        (SWEEP | {"commit": None}, "names no commit"),
        (SWEEP | {"machine": "other"}, "names machine 'other' in a file of another name"),
        (SWEEP | {"backend": "cuda"}, "names no GPU or no driver"),
        (SWEEP | {"acceptance_length": 0.5}, "acceptance_length is 0.5"),
        (PROFILE | {"output_tok_s": 700.0}, "output_tok_s is 700.0, and its parts make 600"),
        (PROFILE | {"round_s": float("nan")}, "round_s, acceptance_length and output_tok_s are"),
        (PROFILE | {"stage_seconds": {"draft": -1.0}}, "its stages are"),
        (PROFILE | {"idle_fraction": 1.5}, "idle_fraction is 1.5"),
        (PROFILE | {"workload": "kimi-dense-chain-n1"}, "does not say whether its acceptance is simulated"),
        (LONG | {"wrong": ["it grew"]}, "it grew: such an engine has no results"),
        (LONG | {"refusals": [""]}, "a refusal without a sentence"),
        ({"schema": "kdbench/decode-sweep/1"}, "is no line about the decode loop: it lacks 'mode'"),
        (SWEEP | {"schema": "kdbench/what/1"}, "nobody knows 'kdbench/what/1'"),
    ],
)
def test_what_cannot_be_is_found(tmp_path: Path, record: dict[str, Any], problem: str) -> None:
    (found,) = problems(tmp_path, record)
    assert re.search(problem, found)


def test_half_a_line_is_found(tmp_path: Path) -> None:
    path = tmp_path / "box.jsonl"
    path.write_text(json.dumps(SWEEP))
    assert [problem for _, problem in lint_decode.check_file(path)] == ["its last line was not written to its end"]
