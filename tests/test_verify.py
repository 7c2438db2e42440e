# SPDX-License-Identifier: Apache-2.0
"""kdbench.verify: right kernels pass and wrong ones are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from kdbench import decode_golden, decode_subject, decode_workloads, golden, timing, verify, workloads
from kdbench.errors import KernelError


@pytest.mark.usefixtures("cpu_library")
def test_the_cpu_kernels_are_right() -> None:
    outcomes = list(verify.verify(workloads.KERNELS, ("cpu",)))
    assert [outcome for outcome in outcomes if outcome.status != "ok"] == []
    assert len(outcomes) == sum("cpu" in workload.backends for workload in workloads.every())


@pytest.mark.gpu
def test_the_cuda_kernels_are_right() -> None:
    outcomes = list(verify.verify(workloads.KERNELS, ("cuda",)))
    assert [outcome for outcome in outcomes if outcome.status != "ok"] == []
    assert len(outcomes) == len(list(workloads.every()))


def decoding(backend: str) -> list[verify.Outcome]:
    for module in ("safetensors", "tokenizers"):
        pytest.importorskip(module)
    names = decode_workloads.names(backend)
    found = list(verify.verify((decode_workloads.KERNEL,), (backend,), pattern="n[14]$"))
    wanted = [name for name in names if name.startswith("tiny") and name.endswith(("n1", "n4"))]
    assert [outcome.workload for outcome in found] == wanted
    return found


@pytest.mark.usefixtures("cpu_library")
def test_the_shipped_model_says_its_golden_tokens() -> None:
    assert [outcome for outcome in decoding("cpu") if outcome.status != "ok"] == []


@pytest.mark.gpu
def test_the_shipped_model_says_its_golden_tokens_on_a_gpu() -> None:
    assert [outcome for outcome in decoding("cuda") if outcome.status != "ok"] == []


@pytest.mark.usefixtures("cpu_library")
def test_a_model_without_golden_tokens_is_not_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_golden, "load", lambda model: None)
    (found,) = verify.verify(("decode",), ("cpu",), pattern="^tiny-ar-n1$")
    assert (found.status, "no golden tokens" in found.detail) == ("n/a", True)


@pytest.mark.usefixtures("cpu_library")
def test_a_loop_that_says_something_else_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: decode_subject.DecodeSubject) -> None:
        raise golden.DigestMismatch("token 3 is 5")

    monkeypatch.setattr(decode_subject.DecodeSubject, "verify", fail)
    (found,) = verify.verify(("decode",), ("cpu",), pattern="^tiny-ar-n1$")
    assert (found.kernel, found.status, found.detail) == ("decode", "wrong", "token 3 is 5")


@pytest.mark.usefixtures("cpu_library")
@pytest.mark.parametrize("error", [golden.DigestMismatch("off by one"), KernelError("refused", 1)])
def test_a_wrong_kernel_is_named(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(self: timing.Subject) -> None:
        if self.workload.name == "b64-d7-n1-full":
            raise error

    monkeypatch.setattr(timing.Subject, "verify", fail)
    outcomes = list(verify.verify(("tree_accept",), ("cpu",), "quick"))
    assert [outcome.status for outcome in outcomes] == ["wrong", "ok"]
    assert str(error) in outcomes[0].detail


@pytest.mark.usefixtures("cpu_library")
def test_workloads_are_chosen_by_name() -> None:
    outcomes = list(verify.verify(backends=("cpu",), pattern=r"^b64-d7-(k16-)?n64-"))
    assert [(outcome.workload, outcome.status) for outcome in outcomes] == [
        ("b64-d7-k16-n64-sharp", "ok"),
        ("b64-d7-n64-full", "ok"),
    ]


def test_a_missing_backend_is_not_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KDTREE_NATIVE_DIR", str(tmp_path))
    outcomes = list(verify.verify(("tree_accept",), ("cpu",), "quick"))
    assert {outcome.status for outcome in outcomes} == {"n/a"}
    assert all("no libkdtree_cpu.so" in outcome.detail for outcome in outcomes)
