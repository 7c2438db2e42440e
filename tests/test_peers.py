# SPDX-License-Identifier: Apache-2.0
"""A comparison on a CPU: who is timed, who is refused, who is passed over, and in which order samples are taken."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kdbench import native, workloads
from kdbench.errors import BackendUnavailable, KdbenchError
from kdbench.golden import DigestMismatch
from kdbench.peers import adapter, check, command, contest, libraries, records, roster, samplers
from kdbench.peers.inputs import Inputs
from kdbench.peers.libraries import Libraries
from kdbench.peers.ours import Ours
from kdbench.timing import MeasuringError

BUILD = "b15-d7-k8-n1-sharp"


class Copycat(adapter.Peer):
    """An implementation that does what ``change`` makes of our own answer."""

    name = "copycat"
    kernel = "tree_accept"
    scope = adapter.TARGETS_TO_PATH
    backends = ("cpu",)

    def __init__(self, change: Any = lambda outputs: outputs, reason: str | None = None) -> None:
        self.change = change
        self.reason = reason

    def missing(self, libraries: Libraries) -> str | None:
        return self.reason

    def version(self, libraries: Libraries) -> str:
        return "copycat 1"

    def prepare(self, inputs: Inputs) -> adapter.Prepared:
        call = inputs.workload.prepare(inputs.arrays, "cpu", inputs.library)

        def launch() -> adapter.Outputs:
            call.launch()
            return self.change(call.outputs)

        return adapter.Prepared(
            launch, lambda outputs: {name: np.copy(array) for name, array in outputs.items()}, "meow"
        )


def outcomes(library: native.Library, peer: adapter.Peer, name: str = "b64-d7-n1-full") -> list[contest.Outcome]:
    return list(contest.run(workloads.get(name), "cpu", library, Libraries(), [peer], 4))


def test_an_equal_one_is_timed_beside_ours(cpu_library: native.Library) -> None:
    ours, theirs = outcomes(cpu_library, Copycat())
    assert isinstance(ours, contest.Timed)
    assert isinstance(theirs, contest.Timed)
    assert (ours.implementation, theirs.implementation) == (adapter.OURS, "copycat")
    assert (theirs.clock, theirs.mode, theirs.error, theirs.version, theirs.note) == (
        adapter.WALL, "hot", 0.0, "copycat 1", "meow",
    )  # fmt: skip
    assert len(ours.samples) == len(theirs.samples) == 4
    assert min(*ours.samples, *theirs.samples) > 0


def test_a_wrong_one_is_refused_with_its_error_and_never_timed(
    cpu_library: native.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_off(outputs: adapter.Outputs) -> adapter.Outputs:
        bonus = outputs["bonus_token"].copy()
        bonus[0] += 1
        return {**outputs, "bonus_token": bonus}

    def never(*_: Any) -> list[list[float]]:
        raise AssertionError("timed")

    monkeypatch.setattr(contest, "interleave", never)
    (refused,) = outcomes(cpu_library, Copycat(one_off))
    assert isinstance(refused, contest.PassedOver)
    assert refused.status == "wrong"
    assert re.fullmatch(r"bonus_token\[0\] is \d+, and \d+ is right \(1 entries differ\)", refused.reason)


def test_one_that_goes_wrong_under_the_clock_gets_no_time(cpu_library: native.Library) -> None:
    launches = []

    def tired(outputs: adapter.Outputs) -> adapter.Outputs:
        launches.append(None)
        return outputs if len(launches) < 3 else {**outputs, "acceptance_length": outputs["acceptance_length"] + 1}

    ours, refused = outcomes(cpu_library, Copycat(tired))
    assert isinstance(ours, contest.Timed)
    assert isinstance(refused, contest.PassedOver)
    assert refused.status == "wrong"
    assert refused.reason.startswith("when timed: acceptance_length[0] is ")


def test_one_that_writes_nothing_is_found_out_by_poison(cpu_library: native.Library) -> None:
    first: dict[str, Any] = {}

    def idle(outputs: adapter.Outputs) -> adapter.Outputs:
        return first.setdefault("outputs", {name: array.copy() for name, array in outputs.items()})

    _, refused = outcomes(cpu_library, Copycat(idle))
    assert isinstance(refused, contest.PassedOver)
    assert "is -1, and" in refused.reason


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (adapter.Unsuitable("too wide for it"), "skipped", "too wide for it"),
        (RuntimeError("CUDA error: oh\nmore"), "failed", "RuntimeError: CUDA error: oh"),
    ],
)
def test_one_that_raises_is_passed_over_and_the_others_go_on(
    cpu_library: native.Library, error: Exception, status: str, reason: str
) -> None:
    def refuse(outputs: adapter.Outputs) -> adapter.Outputs:
        raise error

    found = list(
        contest.run(workloads.get("b64-d7-n1-full"), "cpu", cpu_library, Libraries(), [Copycat(refuse), Copycat()], 3)
    )
    assert isinstance(found[0], contest.PassedOver)
    assert (found[0].status, found[0].reason) == (status, reason)
    assert [type(outcome) for outcome in found[1:]] == [contest.Timed, contest.Timed]


def test_without_anybody_else_ours_is_not_timed(cpu_library: native.Library) -> None:
    (skipped,) = outcomes(cpu_library, Copycat(reason="copycat is not installed"))
    assert isinstance(skipped, contest.PassedOver)
    assert (skipped.status, skipped.reason) == ("skipped", "copycat is not installed")


def test_ours_being_wrong_is_an_error_and_not_an_outcome(
    cpu_library: native.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*_: Any) -> None:
        raise DigestMismatch("the output digest is another")

    monkeypatch.setattr(workloads.Workload, "check", wrong)
    with pytest.raises(DigestMismatch):
        outcomes(cpu_library, Copycat())


@pytest.mark.parametrize("kernel", command.KERNELS)
def test_every_kernel_is_compared_on_a_cpu(cpu_library: native.Library, kernel: str) -> None:
    pytest.importorskip("torch")
    name = {"tree_build": BUILD, "verify_attn": "h8-n8-p64-b1-ps64"}.get(kernel, command.TYPICAL_ON_CPU[kernel][0])
    found = list(contest.run(workloads.get(name), "cpu", cpu_library, Libraries(), roster.PEERS[kernel], 3))
    timed = [outcome for outcome in found if isinstance(outcome, contest.Timed)]
    scopes = {outcome.scope for outcome in timed}
    for scope in scopes:
        names = [outcome.implementation for outcome in timed if outcome.scope == scope]
        assert names[0] == adapter.OURS
        assert len(names) == len(set(names)) == 2
    assert len(scopes) == (2 if kernel == "tree_build" else 1)
    assert {o.status for o in found if isinstance(o, contest.PassedOver)} <= {"skipped"}


def test_rounds_take_one_sample_of_everybody_and_begin_with_another_one() -> None:
    order: list[str] = []

    class Scribe(samplers.Sampler):
        def __init__(self, name: str) -> None:
            self.name = name

        def warm_up(self) -> None: ...

        def last_outputs(self) -> adapter.Outputs:
            return {}

        def sample(self) -> float:
            order.append(self.name)
            return float(len(order))

    times = samplers.interleave([Scribe("a"), Scribe("b"), Scribe("c")], 4)
    assert "".join(order) == "abcbcacababc"
    assert times == [[1.0, 6.0, 8.0, 10.0], [2.0, 4.0, 9.0, 11.0], [3.0, 5.0, 7.0, 12.0]]


@pytest.mark.parametrize(
    ("seconds", "most", "wanted"),
    [
        (1e-6, 1 << 20, (200, 2200)),
        (4e-5, 1 << 20, (10, 110)),
        (1e-2, 1 << 20, (1, 5)),
        (1e-6, 64, (5, 64)),
        (1, 1, (1, 2)),
    ],
)
def test_graphs_differ_by_milliseconds_of_work(seconds: float, most: int, wanted: tuple[int, int]) -> None:
    assert samplers.lengths(seconds, most) == wanted


def test_a_call_of_seconds_is_not_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samplers, "LONGEST_CALL_S", 0.0)
    with pytest.raises(MeasuringError, match="are not sampled"):
        samplers.WallSampler(dict, lambda: None)


def attention(library: native.Library) -> tuple[Inputs, adapter.HostOutputs]:
    inputs = Inputs.of(workloads.get("h8-n8-p64-b1-ps64"), "cpu", library, Libraries())
    prepared = contest.launching([contest.attention_call(inputs, inputs.arrays["tree_mask"])], "cpu")
    return inputs, {name: array.copy() for name, array in prepared.to_host(prepared.launch()).items()}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"out": lambda a: a.__setitem__((0, 3, 2, 5), 0x7FC0)}, "1 values that are not finite"),
        ({"out": lambda a: a.__setitem__((0, 3, 2), 0)}, "out is off by .* and a row by 1.00e"),
        ({"lse": lambda a: a.__iadd__(0.01)}, "lse is off by 1.00e-02"),
        ({"lse": lambda a: a.__imul__(1.4427)}, "lse is off by"),
    ],
    ids=["NaN", "a row", "lse", "base 2"],
)
def test_attention_is_held_to_norm_rows_and_lse(
    cpu_library: native.Library, change: dict[str, Any], words: str
) -> None:
    inputs, ours = attention(cpu_library)
    theirs = {name: array.copy() for name, array in ours.items()}
    assert check.check(adapter.TREE_MASK, theirs, ours, inputs) == 0
    for name, apply in change.items():
        apply(theirs[name])
    with pytest.raises(check.WrongOutput, match=words):
        check.check(adapter.TREE_MASK, theirs, ours, inputs)


def test_topk_answers_are_held_to_the_logits(cpu_library: native.Library) -> None:
    inputs = Inputs.of(workloads.get("r7-k16-bf16"), "cpu", cpu_library, Libraries())
    call = inputs.workload.prepare(inputs.arrays, "cpu", cpu_library)
    call.launch()
    ours = dict(call.outputs)
    theirs = {name: ours[name].copy() for name in ("topk_log_probs", "topk_token_ids")}
    logits = inputs.host["logits"]
    # Another token with the very same logit is as good.
    row, ids = logits[0], theirs["topk_token_ids"][0]
    twins = np.flatnonzero(row == row[ids[-1]])
    other = next(int(twin) for twin in twins if twin not in ids)
    ids[-1] = other
    assert check.check(adapter.LOGITS_TO_TOPK, theirs, ours, inputs) == 0
    for value, words in (
        (ids[0], "the same token twice"),
        (-1, "token ids run from -1"),
        (0, "not those of their token"),
    ):
        broken = {**theirs, "topk_token_ids": theirs["topk_token_ids"].copy()}
        broken["topk_token_ids"][0, -1] = value
        with pytest.raises(check.WrongOutput, match=words):
            check.check(adapter.LOGITS_TO_TOPK, broken, ours, inputs)
    with pytest.raises(check.WrongOutput, match="log-probs are off by"):
        check.check(adapter.LOGITS_TO_TOPK, {**theirs, "topk_log_probs": theirs["topk_log_probs"] + 1}, ours, inputs)


def test_a_tree_from_logits_is_held_to_its_own_rows(cpu_library: native.Library) -> None:
    inputs = Inputs.of(workloads.get(BUILD), "cpu", cpu_library, Libraries()).with_logits()
    prepared = Ours("tree_build", adapter.LOGITS_TO_TREE).prepare(inputs)
    ours = {name: array.copy() for name, array in prepared.to_host(prepared.launch()).items()}
    assert check.check(adapter.LOGITS_TO_TREE, ours, ours, inputs) == 0
    broken = {**ours, "tree_mask": ours["tree_mask"].copy()}
    broken["tree_mask"][0, 5, 0] ^= np.uint64(2)
    with pytest.raises(check.WrongOutput, match=r"tree_mask\[0, 5, 0\] is"):
        check.check(adapter.LOGITS_TO_TREE, broken, ours, inputs)


def test_a_recorded_line_holds_a_median_its_interval_and_the_commit(
    cpu_library: native.Library, tmp_path: Path
) -> None:
    recorder = records.Recorder(tmp_path, cpu_library, None)
    timed = contest.Timed(
        workload=workloads.get(BUILD), implementation="x", scope=adapter.LOG_PROBS_TO_TREE, clock=adapter.WALL,
        mode="hot", samples=(3e-6, 1e-6, 2e-6), error=0.0, version="x 1", note="", sm_clock_mhz=None,
    )  # fmt: skip
    line = recorder.record(timed)
    assert (line["seconds"], line["kernel"], line["workload"]) == (2e-6, "tree_build", BUILD)
    assert 1e-6 <= line["ci_low"] <= 2e-6 <= line["ci_high"] <= 3e-6
    assert line["commit"] == cpu_library.build_info["git_commit"]
    assert recorder.path is not None
    recorder.record(dataclasses.replace(timed, implementation="y"))
    text = recorder.path.read_text()
    assert text.count("\n") == 2
    assert text.endswith("\n")
    assert records.Recorder(None, cpu_library, None).path is None


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("sgl_kernel", "NAME=PATH is expected"),
        ("numpy=/x.so", "with a NAME of sgl_kernel, flashmla, vllm_fa3, flashinfer_mla"),
        ("flashmla=/nowhere/x.so", "there is no file /nowhere/x.so"),
    ],
)
def test_a_bad_library_option_is_one_sentence(option: str, words: str) -> None:
    with pytest.raises(KdbenchError, match=words):
        libraries.parse([option])


def test_a_missing_gpu_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "available", lambda backend: "there is no GPU")
    with pytest.raises(
        BackendUnavailable, match="nothing can be compared on cuda: there is no GPU; kdbench peers --back"
    ):
        command.compare([], "cuda", 3, Libraries(), None, print)


@pytest.mark.parametrize(
    ("names", "kernels", "words"),
    [
        (["b64-d7-n1-full"], ["tree_build"], "which --kernel leaves out"),
        (["h8-n8-p16k-b32-ps64"], list(command.KERNELS), "does not run on cpu"),
        (["b64"], list(command.KERNELS), "there is no workload 'b64'"),
        (["l1-d15-n1-ps64"], list(command.KERNELS), "kv_compact, which nobody else has"),
    ],
)
def test_a_workload_that_cannot_be_is_one_sentence(names: list[str], kernels: list[str], words: str) -> None:
    with pytest.raises(KdbenchError, match=words):
        command.selected(kernels, names, "cpu")


@pytest.mark.parametrize("backend", native.BACKENDS)
def test_typical_workloads_exist_and_run_there(backend: str) -> None:
    chosen = command.selected(list(command.KERNELS), None, backend)
    assert {workload.kernel for workload in chosen} == set(command.KERNELS)
    assert all(backend in workload.backends for workload in chosen)
