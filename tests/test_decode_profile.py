# SPDX-License-Identifier: Apache-2.0
"""The command that tells where a round's time goes, and the lines that it leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kdbench import decode_profile, native, provenance


def line(workload: str, mode: str, tok_s: float, idle: float | None) -> dict[str, object]:
    return {
        "workload": workload,
        "mode": mode,
        "batch": 4,
        "round_s": 2e-4,
        "acceptance_length": 3.5,
        "output_tok_s": tok_s,
        "stage_seconds": dict.fromkeys(("draft", "draft_topk", "tree_build", "verify", "tree_accept", "commit"), 5e-6),
        "tree_kernels_fraction": 0.075,
        "idle_fraction": idle,
    }


def test_a_table_sets_each_way_beside_plain_decoding() -> None:
    lines = [
        line("tiny-ar-n4", "ar", 1000.0, 0.01),
        line("tiny-ddtree-b8-n4", "ddtree", 2500.0, None),
        line("kimi-dense-ddtree-b8-n4-sim75", "ddtree", 70.0, 0.0),
    ]
    _, _, ar, tree, other = decode_profile.table(lines).splitlines()
    assert ar.split(" | ")[0:5] == ["| `tiny-ar-n4`", "200", "3.50", "1000", ""]
    assert tree.split(" | ")[4:] == ["2.50", *["5.0"] * 6, "7.5", " |"]
    assert other.split(" | ")[4] == ""


@pytest.mark.parametrize("backend", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_round_is_told_by_its_parts(backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if reason := native.available(backend):
        pytest.skip(reason)
    names = ["tiny-ar-n1", "tiny-ddtree-b8-n1"]
    options = ["--backend", backend, "--samples", "2", "--results", str(tmp_path)]
    assert decode_profile.main([*names, *options]) == 0
    assert capsys.readouterr().out.count("\n") == 4
    (path,) = (tmp_path / provenance.DECODE_FOLDER).iterdir()
    ar, tree = map(json.loads, path.read_text("utf-8").splitlines())
    for record in (ar, tree):
        assert record["schema"] == provenance.PROFILE
        assert record["native_sha256"]
        assert record["model_sha256"]
        assert "decode_profile tiny-ar-n1" in record["command"]
        assert record["output_tok_s"] == pytest.approx(record["acceptance_length"] / record["round_s"])
        assert 0 <= record["idle_fraction"] < 1
        # Stages are stamped in a run of their own: about as long, not exactly so.
        assert 0.3 < sum(record["stage_seconds"].values()) / record["round_s"] < 3
    assert ar["stage_seconds"]["draft_topk"] + ar["stage_seconds"]["tree_build"] < 0.02 * ar["round_s"]
    assert tree["stage_seconds"]["verify"] > tree["stage_seconds"]["draft"] > tree["stage_seconds"]["tree_accept"]
    assert 0 < tree["tree_kernels_fraction"] < 0.5
