# SPDX-License-Identifier: Apache-2.0
"""The verb ``kdbench peers`` from options to files, on a CPU."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kdbench import cli, lint_peers, native, peer_results
from kdbench.peers import command, contest
from kdbench.workloads import get

QUICK = ("peers", "--backend", "cpu", "--workload", "b64-d7-n1-full", "--samples", "3")


@pytest.fixture
def kd(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run one command line in an empty folder: exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.run_command(arguments)
        return code, *capfd.readouterr()

    return run


def test_a_comparison_is_shown_recorded_and_drawn(kd: Any, tmp_path: Path, cpu_library: native.Library) -> None:
    code, out, err = kd(*QUICK)
    assert (code, err) == (0, "")
    assert "tree_accept: targets to path" in out
    assert "Python walk" in out
    assert "SGLang verify_tree_greedy" in out  # without a time, and why
    assert "it runs on cuda only" in " ".join(out.split())
    # How much faster is the machine's affair, and may be hidden in noise.
    claim = r"tree_accept: .*× .* Python walk \(1 workload, targets to path, wall clock\)"
    assert re.search(claim, " ".join(out.split()))
    (path,) = (tmp_path / "results" / "peers").iterdir()
    # A build outside of git names no commit; everything else must be sound.
    findings = [problem for _, problem in lint_peers.check_file(path) if "names no commit" not in problem]
    assert findings == []
    frame = peer_results.load(tmp_path / "results")
    assert frame["implementation"].tolist() == ["kdtree", "Python walk"]
    assert {len(samples) for samples in frame["samples_s"]} == {3}
    (figure,) = (tmp_path / "report").glob("peers-*.png")
    assert figure.read_bytes().startswith(b"\x89PNG")
    kd(*QUICK)
    again = peer_results.load(tmp_path / "results")
    assert len(again) == 4
    assert again["run"].nunique() == 2


def test_json_is_one_document_and_a_dry_run_writes_nothing(kd: Any, tmp_path: Path) -> None:
    code, out, err = kd(*QUICK, "--json", "--dry-run", "--figure", "x.png")
    assert code == 0
    content = json.loads(out, parse_constant=lambda word: pytest.fail(word))
    assert content["schema"] == "kdbench/peers/1"
    assert [m["implementation"] for m in content["measurements"]] == ["kdtree", "Python walk"]
    assert content["measurements"][1]["ratio"] > 0
    assert content["measurements"][0]["floor_seconds"] is None
    assert content["passed_over"][0]["status"] == "skipped"
    assert (content["records"], content["figure"]) == (None, None)
    assert "Python walk" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--backend", "xpu"), "--backend xpu: choose from cpu, cuda"),
        (("--kernel", "gemm"), "--kernel gemm: choose from tree_build"),
        (("--backend", "cpu", "--workload", "h8-n8-p16k-b32-ps64"), "does not run on cpu"),
        (("--library", "flashmla=nowhere.so"), "there is no file nowhere.so"),
    ],
)
def test_bad_input_is_one_sentence_and_1(kd: Any, arguments: tuple[str, ...], words: str) -> None:
    code, out, err = kd("peers", *arguments)
    assert (code, out) == (1, "")
    assert err.startswith("kdbench: ")
    assert err.count("\n") == 1
    assert words in err


def test_without_a_gpu_it_says_so_and_is_1(kd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "available", lambda _: "no GPU was found")
    code, out, err = kd("peers")
    assert (code, out) == (1, "")
    assert err.startswith("kdbench: nothing can be compared on cuda: no GPU was found")
    assert err.count("\n") == 1


def test_a_refused_implementation_is_2(kd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(chosen: Any, backend: str, *_: Any) -> command.Comparison:
        over = contest.PassedOver(
            get("b64-d7-n1-full"), "they", "targets to path", "wrong", "x[0] is 1, and 2 is right"
        )
        return command.Comparison([], [over], None, "box")

    monkeypatch.setattr(command, "compare", refused)
    code, out, _ = kd(*QUICK)
    assert code == 2
    assert "x[0] is 1, and 2 is right" in " ".join(out.split())
