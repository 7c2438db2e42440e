# SPDX-License-Identifier: Apache-2.0
"""The engine behind its C ABI: what it takes, what it refuses in which words, what it tells."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decode_models import VOCAB_SIZE, prompts, reference, write_pair

from kdbench import blas, engine_params, native
from kdbench.engine import Engine
from kdbench.engine_types import EngineFull, Profile, Request, Rounds
from kdbench.errors import BackendUnavailable, InvalidArgument, ModelError

OLD_LIBRARY = """
unsigned kdt_abi_version(void) { return 1; }
const char* kdt_build_info(void) { return "{\\"backend\\": \\"cpu\\"}"; }
const char* kdt_last_error(void) { return ""; }
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("safetensors")
    return write_pair(tmp_path_factory.mktemp("models"))


@pytest.fixture
def make(models: Path, backend: str) -> Iterator[Callable[..., Engine]]:
    """Makes engines of the small pair, f32, and closes them."""
    made: list[Engine] = []

    def engine(**options: Any) -> Engine:
        options = {"backend": backend, "dtype": "f32", "max_seq_len": 128, "max_tree_budget": 64} | options
        made.append(Engine.from_directory(models / "target", models / "drafter", **options))
        return made[-1]

    yield engine
    for each in made:
        each.close()


def test_slots_are_given_and_taken_back(make: Callable[..., Engine]) -> None:
    engine = make(max_batch=2)
    first, second = engine.admit(Request((5, 6), 10)), engine.admit(Request((7,), 10))
    assert {first, second} == {0, 1}
    with pytest.raises(EngineFull, match="slot"):
        engine.admit(Request((8,), 10))
    engine.release(first)
    assert engine.admit(Request((8,), 10)) == first
    assert engine.info()["slots_in_use"] == 2


def test_pages_are_given_and_taken_back(make: Callable[..., Engine]) -> None:
    # 128 tokens and a tree of 65 nodes are 13 pages.
    engine = make(max_batch=4, page_size=16, num_pages=20)
    slot = engine.admit(Request((5,) * 100, 28))
    with pytest.raises(EngineFull, match="page"):
        engine.admit(Request((5,) * 100, 28))
    engine.release(slot)
    assert engine.info()["pages_free"] == 20
    engine.admit(Request((5,) * 100, 28))


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (Request(()), "the prompt has no tokens"),
        (Request((5, VOCAB_SIZE), 8), "is 32, wanted 0 .. 31"),
        (Request((5, -1)), "prompt holds -1, which is no token id"),
        (Request((2**31,)), "prompt holds 2147483648, which is no token id"),
        (Request((0.5,)), "a row of token ids is expected"),  # type: ignore[arg-type]
        (Request((5,), 0), "max_new_tokens is 0"),
        (Request((5,), 128), "max_seq_len is 128"),
        (Request((5,), 8, temperature=-1.0), "temperature is -1.0"),
        (Request((5,), 8, temperature=float("nan")), "temperature is nan"),
        (Request((5,), 8, seed=2**64), "seed is 18446744073709551616"),
        (Request((5,), 8, tuple(range(9))), "stop_tokens are 9, and 8 at most are supported"),
    ],
)
def test_a_request_that_is_wrong_is_refused_in_a_sentence(
    make: Callable[..., Engine], request_: Request, sentence: str
) -> None:
    engine = make()
    with pytest.raises(InvalidArgument, match=sentence):
        engine.admit(request_)
    assert engine.info()["slots_in_use"] == 0


@pytest.mark.parametrize(
    ("rounds", "sentence"),
    [
        (Rounds("tree"), "mode is 'tree', and one of ar, chain, ddtree is expected"),
        (Rounds("ddtree", 65), "tree_budget"),
        (Rounds("ddtree", 0), "tree_budget is 0"),
        (Rounds("ddtree", 8, topk=VOCAB_SIZE + 1), "topk"),
        (Rounds("chain", block_size=9), "block_size"),
        (Rounds("chain", block_size=1), "block_size"),
        (Rounds("chain", simulated_accept=1.5), "simulated_accept is 1.5, and 0 to 1 is expected"),
    ],
)
def test_rounds_that_are_wrong_are_refused_in_a_sentence(
    make: Callable[..., Engine], rounds: Rounds, sentence: str
) -> None:
    engine = make()
    engine.admit(Request((5,), 8))
    with pytest.raises(InvalidArgument, match=sentence):
        engine.run(rounds)


def test_without_a_drafter_there_is_plain_decoding_only(models: Path, backend: str) -> None:
    with Engine.from_directory(models / "target", backend=backend, max_seq_len=64, max_tree_budget=8) as engine:
        slot = engine.admit(Request((5,), 4))
        engine.run(Rounds("ar"), 3)
        assert engine.progress(slot, wait=True).finished
        with pytest.raises(InvalidArgument, match="drafter"):
            engine.run(Rounds("chain"))


def test_progress_counts(make: Callable[..., Engine]) -> None:
    engine = make(max_batch=2)
    slot, other = engine.admit(Request((5, 6), 12)), engine.admit(Request((9,), 3))
    start = engine.progress(slot, wait=True)
    assert (start.num_tokens, len(start.tokens), start.rounds, start.accepted, start.finished) == (1, 1, 0, 0, False)
    engine.run(Rounds("ar"), 4)
    assert engine.in_flight == 4
    now = engine.progress(slot, 1, wait=True)
    assert engine.in_flight == 0
    assert (now.num_tokens, len(now.tokens), now.rounds, now.accepted) == (5, 4, 4, 4)
    assert now.histogram[:3] == (0, 4, 0)
    assert not now.status.refused
    done = engine.progress(other)
    assert (done.num_tokens, done.rounds, done.finished) == (3, 2, True)
    assert engine.progress(slot, 5).tokens == ()


def test_logits_are_those_of_the_reference(make: Callable[..., Engine], models: Path) -> None:
    pytest.importorskip("torch")
    engine = make()
    prompt = max(prompts(4), key=len)
    slot = engine.admit(Request(prompt, 8))
    (ours,) = engine.logits(slot)
    wanted = reference(models / "target")(prompt)[-1]
    np.testing.assert_allclose(ours, wanted, atol=0.01 * float(np.abs(wanted).max()))
    engine.run(Rounds("ar"))
    token = engine.progress(slot, wait=True).tokens[0]
    (ours,) = engine.logits(slot)
    wanted = reference(models / "target")([*prompt, token])[-1]
    np.testing.assert_allclose(ours, wanted, atol=0.01 * float(np.abs(wanted).max()))


def test_stage_seconds_are_of_profiled_rounds_only(make: Callable[..., Engine]) -> None:
    engine = make()
    engine.admit(Request((5,), 60))
    engine.run(Rounds("ddtree", 8), 2)
    assert engine.stage_seconds()[1] == 0
    engine.run(Rounds("ddtree", 8), 3, profile=Profile.STAGES)
    seconds, rounds = engine.stage_seconds()
    assert rounds == 3
    assert list(seconds) == ["draft", "tree_build", "verify", "tree_accept", "commit"]
    assert seconds["verify"] > 0
    assert engine.stage_seconds()[1] == 0


def test_the_round_clock_tells_work_from_waiting(make: Callable[..., Engine]) -> None:
    engine = make(max_batch=2)
    engine.admit(Request((5,), 60))
    engine.run(Rounds("ddtree", 8), 4, profile=Profile.STAGES)
    stages = engine.round_clock()
    assert (stages.stage_rounds, stages.rounds, stages.gaps, stages.idle_fraction) == (4, 0, 0, None)
    assert 0 <= stages.stamp_seconds < stages.draft_topk_seconds
    slot = engine.admit(Request((6,), 60))
    engine.run(Rounds("ar"), 2, profile=Profile.GAPS)
    engine.progress(slot, wait=True)
    time.sleep(0.05)
    engine.run(Rounds("ar"), 1, profile=Profile.GAPS)
    clock = engine.round_clock()
    assert (clock.stage_rounds, clock.rounds, clock.gaps) == (0, 3, 2)
    assert clock.busy_seconds > 0
    assert 0.04 < clock.idle_seconds < 5
    assert clock.idle_fraction is not None
    assert 0 < clock.idle_fraction < 1
    # What an admission does is no waiting between rounds.
    engine.run(Rounds("ar"), 1, profile=Profile.GAPS)
    engine.release(slot)
    time.sleep(0.05)
    engine.admit(Request((6,), 60))
    engine.run(Rounds("ar"), 1, profile=Profile.GAPS)
    after = engine.round_clock()
    assert (after.rounds, after.gaps) == (2, 0)
    assert engine.round_clock().rounds == 0


def test_a_closed_engine_says_so(make: Callable[..., Engine]) -> None:
    engine = make()
    engine.close()
    engine.close()
    with pytest.raises(InvalidArgument, match="the engine is closed"):
        engine.admit(Request((5,), 4))
    with pytest.raises(InvalidArgument, match="slot is 1, outside 0 to 0"):
        engine.progress(1)


def test_random_weights_need_no_files(models: Path, backend: str) -> None:
    from kdbench.models.config import DrafterConfig, TargetConfig

    configs = TargetConfig.from_directory(models / "target"), DrafterConfig.from_directory(models / "drafter")
    said = []
    for seed in (0, 0, 1):
        with Engine(*configs, backend=backend, random_seed=seed, max_seq_len=64, max_tree_budget=8) as engine:
            slot = engine.admit(Request((5, 6, 7), 20))
            engine.run(Rounds("ddtree", 8), 19)
            said.append(engine.progress(slot, wait=True).tokens)
    assert len(said[0]) == 20
    assert said[0] == said[1] != said[2]


def test_a_model_of_other_widths_is_refused(models: Path, tmp_path: Path, backend: str) -> None:
    write_pair(tmp_path, hidden_size=96)
    with pytest.raises(ModelError, match="hidden_size"):
        Engine.from_directory(tmp_path / "target", tmp_path / "drafter", backend=backend)
    write_pair(tmp_path / "narrow", qk_rope_head_dim=32)
    with pytest.raises(InvalidArgument, match="qk_rope_head_dim is 32, and the kernels are made for 64"):
        Engine.from_directory(tmp_path / "narrow" / "target", backend=backend)


def test_tensors_of_a_wrong_kind_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="tensor a is float64 of 1 dimensions"):
        engine_params.tensors({"a": np.zeros(3)}, [])
    with pytest.raises(InvalidArgument, match="tensor b is float32 of 3 dimensions"):
        engine_params.tensors({"b": np.zeros((1, 1, 1), np.float32)}, [])


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_library_from_before_the_engine_is_no_backend(models: Path, tmp_path: Path) -> None:
    (tmp_path / "library.c").write_text(OLD_LIBRARY)
    subprocess.run(
        ["cc", "-shared", "-fPIC", str(tmp_path / "library.c"), "-o", str(tmp_path / "libkdtree_cpu.so")], check=True
    )
    library = native.load_file(tmp_path / "libkdtree_cpu.so", "cpu")
    with pytest.raises(BackendUnavailable, match=r"libkdtree_cpu\.so has no kdt_engine_create: an older build"):
        Engine.from_directory(models / "target", library=library)


def test_a_blas_that_is_none_is_told(models: Path, cpu_library: native.Library, tmp_path: Path) -> None:
    (tmp_path / "libblas.so").write_text("not ELF")
    with pytest.raises(Exception, match=r"libblas\.so"):
        Engine.from_directory(models / "target", library=cpu_library, blas_library=tmp_path / "libblas.so")


def test_the_blas_of_a_package_is_found_without_loading_it() -> None:
    pytest.importorskip("scipy_openblas32")
    found = blas.find("cpu")
    assert found is not None
    assert ctypes.CDLL(str(found)).scipy_cblas_sgemm
