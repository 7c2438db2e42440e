# SPDX-License-Identifier: Apache-2.0
"""Speculation changes nothing but the time: every mode, tree, block, batch and seed says what the target says."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from decode_models import END, VOCAB_SIZE, greedy_gaps, prompts, reference, write_pair

from kdbench.decode import Decoded, DecodeLoop, Request, Rounds, summary

BUDGETS, BLOCKS = (8, 15, 64, 256), (4, 8)
SPECULATIVE = [
    *(Rounds("chain", block_size=block) for block in BLOCKS),
    *(Rounds("ddtree", tree_budget=budget, block_size=block) for budget in BUDGETS for block in BLOCKS),
]
NAMES = [f"{r.mode}{r.tree_budget if r.mode == 'ddtree' else ''}-block{r.block_size}" for r in SPECULATIVE]
# By the largest logit, what f32 sums of another order may move: on CUDA a product's order changes with its rows.
ROUNDING = 1e-3
# A reference in another framework rounds its latents to bf16 from other last bits.
REFERENCE_ROUNDING = 1e-2


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("safetensors")
    return write_pair(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def loop(request: pytest.FixtureRequest, models: Path) -> Iterator[DecodeLoop]:
    """Five slots; f32 on both backends."""
    from kdbench import native

    if reason := native.available(request.param):
        pytest.skip(reason)
    with DecodeLoop.load(
        models / "target", models / "drafter", backend=request.param, dtype="f32", max_batch=5, max_seq_len=320
    ) as found:
        yield found


def asked(count: int = 8, new: int = 24, **fields: float) -> list[Request]:
    return [
        Request(prompt, new + at % 3, (END,), seed=1000 + at, **fields)  # type: ignore[arg-type]
        for at, prompt in enumerate(prompts(count))
    ]


@pytest.fixture(scope="module")
def plain(loop: DecodeLoop) -> list[Decoded]:
    """What the target says by itself."""
    return loop.generate(asked(), Rounds("ar"))


def check_equal(models: Path, backend: str, golden: Sequence[Decoded], found: Sequence[Decoded]) -> None:
    """The same tokens; on CUDA the first other one must be as good by rounding."""
    for request, wanted, ours in zip(asked(), golden, found, strict=True):
        if ours.tokens == wanted.tokens:
            continue
        assert backend == "cuda", f"{ours.tokens} and {wanted.tokens}"
        at = next(i for i, pair in enumerate(zip(ours.tokens, wanted.tokens, strict=False)) if pair[0] != pair[1])
        assert greedy_gaps(models / "target", request.prompt, ours.tokens[: at + 1])[at] < ROUNDING


def test_plain_decoding_says_what_the_reference_says(models: Path, plain: list[Decoded]) -> None:
    pytest.importorskip("torch")
    for request, result in zip(asked(), plain, strict=True):
        assert greedy_gaps(models / "target", request.prompt, result.tokens).max() < REFERENCE_ROUNDING
        assert result.acceptance_length == 1.0
        assert result.rounds == len(result.tokens) - 1


@pytest.mark.parametrize("rounds", SPECULATIVE, ids=NAMES)
def test_speculation_says_what_plain_decoding_says(
    models: Path, loop: DecodeLoop, plain: list[Decoded], rounds: Rounds
) -> None:
    found = loop.generate(asked(), rounds)
    check_equal(models, loop.engine.backend, plain, found)
    for result in found:
        length = rounds.block_size
        assert sum(result.histogram) == result.rounds
        assert len(result.histogram) <= length + 1
        # Before cuts: the last round may have come to more than the text could take.
        assert len(result.tokens) - 1 <= result.accepted < len(result.tokens) + length
    # A random drafter's first choices are as good as any; a tree of many is bound to be right now and then.
    assert (
        rounds.mode == "chain" or rounds.tree_budget < 15 or max(result.acceptance_length or 0 for result in found) > 1
    )


@pytest.mark.parametrize("rounds", SPECULATIVE, ids=NAMES)
def test_text_is_the_same_where_much_is_accepted(
    models: Path, loop: DecodeLoop, plain: list[Decoded], rounds: Rounds
) -> None:
    """Drafts that are often right: deep paths, and their rows moved within the cache round after round."""
    requests = [
        dataclasses.replace(request, golden_tokens=golden.tokens)
        for request, golden in zip(asked(), plain, strict=True)
    ]
    found = loop.generate(requests, dataclasses.replace(rounds, simulated_accept=0.8))
    check_equal(models, loop.engine.backend, plain, found)
    whole = summary(found)
    assert whole.acceptance_length is not None
    assert whole.acceptance_length > 1.5
    assert sum(whole.histogram[4:]) > 0


def test_a_batch_says_what_its_requests_say_alone(models: Path, loop: DecodeLoop) -> None:
    rounds = Rounds("ddtree", 15)
    together = loop.generate(asked(), rounds)
    alone = [loop.generate([request], rounds)[0] for request in asked()]
    check_equal(models, loop.engine.backend, alone, together)
    if loop.engine.backend == "cpu":
        assert [r.histogram for r in together] == [r.histogram for r in alone]


@pytest.mark.parametrize("rounds", [SPECULATIVE[1], Rounds("ddtree", 15), Rounds("ddtree", 64, block_size=4)])
@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_sampled_text_depends_on_the_seed_and_not_on_the_mode(
    loop: DecodeLoop, rounds: Rounds, temperature: float
) -> None:
    requests = asked(temperature=temperature)
    golden, found = loop.generate(requests, Rounds("ar")), loop.generate(requests, rounds)
    same = sum(a.tokens == b.tokens for a, b in zip(golden, found, strict=True))
    # A draw that rounding tips over is rarer than one in a thousand.
    assert same == len(requests) or (loop.engine.backend == "cuda" and same >= len(requests) - 1)
    other = loop.generate([dataclasses.replace(request, seed=request.seed + 1) for request in requests], rounds)
    assert sum(a.tokens != b.tokens for a, b in zip(found, other, strict=True)) >= len(requests) // 2


def test_draws_follow_the_targets_law(models: Path, loop: DecodeLoop) -> None:
    """50,000 draws of a draft tree, each against the reference's distribution at its place.

    Sum over draws of (one-hot - p) has mean 0 and covariance sum of (diag(p) - p p'): its squared Mahalanobis length is
    chi-square with one degree of freedom less than there are tokens.
    """
    pytest.importorskip("torch")
    stats = pytest.importorskip("scipy.stats")
    temperature, count, new = 1.0, 1250, 40
    requests = [Request((3 + seed % 29,), new, (), temperature, seed) for seed in range(count)]
    with DecodeLoop.load(
        models / "target",
        models / "drafter",
        backend=loop.engine.backend,
        dtype="f32",
        max_batch=50,
        max_tree_budget=8,
    ) as wide:
        found = wide.generate(requests, Rounds("ddtree", tree_budget=3, block_size=3))
    assert sum(len(result.tokens) for result in found) == count * new >= 50_000
    assert np.mean([result.acceptance_length for result in found]) > 1.02
    off, covariance = np.zeros(VOCAB_SIZE), np.zeros((VOCAB_SIZE, VOCAB_SIZE))
    for request, result in zip(requests, found, strict=True):
        logits = reference(models / "target")([*request.prompt, *result.tokens])[:-1].astype(np.float64)
        p = np.exp((logits - logits.max(1, keepdims=True)) / temperature)
        p /= p.sum(1, keepdims=True)
        off += np.bincount(result.tokens, minlength=VOCAB_SIZE) - p.sum(0)
        covariance += np.diag(p.sum(0)) - p.T @ p
    chi_square = off @ np.linalg.pinv(covariance) @ off
    assert 1e-4 < stats.chi2.sf(chi_square, VOCAB_SIZE - 1) < 1 - 1e-4


def test_stop_tokens_end_a_text_wherever_a_round_meets_them(loop: DecodeLoop) -> None:
    (free,) = loop.generate([Request(prompts(1)[0], 40)], Rounds("ar"))
    for at in range(1, 12):
        stop = free.tokens[at]
        first = free.tokens.index(stop)
        for rounds in (Rounds("ar"), Rounds("ddtree", 64)):
            (found,) = loop.generate([Request(prompts(1)[0], 40, (stop, 0))], rounds)
            assert found.tokens == free.tokens[: first + 1]
            assert found.finish_reason == "stop"


def test_most_tokens_are_never_exceeded(loop: DecodeLoop) -> None:
    (free,) = loop.generate([Request(prompts(1)[0], 40)], Rounds("ar"))
    for new in range(1, 12):
        (found,) = loop.generate([Request(prompts(1)[0], new)], Rounds("ddtree", 64))
        assert found.tokens == free.tokens[:new]
        assert found.finish_reason == "length"


def test_a_tree_that_holds_the_chain_accepts_no_less(loop: DecodeLoop, plain: list[Decoded]) -> None:
    """One round from the same place in the same text; 6 + 36 nodes are all that 6 candidates at 2 places give."""
    engine, deeper = loop.engine, 0
    for request, text in zip(asked(), plain, strict=True):
        places = [Request((*request.prompt, *text.tokens[:at]), 8) for at in range(0, len(text.tokens), 4)][:5]
        accepted = []
        for rounds in (Rounds("chain", block_size=3), Rounds("ddtree", tree_budget=42, topk=6, block_size=3)):
            slots = [engine.admit(place) for place in places]
            engine.run(rounds)
            accepted.append([engine.progress(slot, wait=True).accepted for slot in slots])
            for slot in slots:
                engine.release(slot)
        assert all(tree >= chain for chain, tree in zip(*accepted, strict=True))
        deeper += sum(accepted[1]) - sum(accepted[0])
    assert deeper > 0


def test_nobody_pays_for_a_request_that_cannot_be_served(models: Path, loop: DecodeLoop, plain: list[Decoded]) -> None:
    requests = asked()
    requests.insert(2, Request(tuple([5] * 400), 4))
    requests.insert(5, Request((5, VOCAB_SIZE), 4))
    found = loop.generate(requests, Rounds("ddtree", 64))
    bad = [found.pop(5), found.pop(2)]
    assert [result.finish_reason for result in bad] == ["refused", "refused"]
    assert str(VOCAB_SIZE) in bad[0].refusal
    assert "max_seq_len is 320" in bad[1].refusal
    check_equal(models, loop.engine.backend, plain, found)


def test_a_cache_too_small_for_all_makes_them_wait(models: Path, loop: DecodeLoop, plain: list[Decoded]) -> None:
    backend = loop.engine.backend
    with DecodeLoop.load(
        models / "target",
        models / "drafter",
        backend=backend,
        dtype="f32",
        max_batch=5,
        max_seq_len=128,
        max_tree_budget=15,
        page_size=16,
        num_pages=16,
    ) as small:
        found = small.generate(asked(), Rounds("ddtree", 15))
        check_equal(models, backend, plain, found)
        info = small.engine.info()
        assert info["pages_free"] == 16
        assert info["slots_in_use"] == 0
        (refused,) = small.generate([Request(tuple([5] * 120), 20)])
        assert refused.finish_reason == "refused"


def test_stages_are_timed_apart(loop: DecodeLoop) -> None:
    (found,) = loop.generate(asked(1), Rounds("ddtree", 15), stages=True)
    assert set(found.stage_seconds) == {"draft", "tree_build", "verify", "tree_accept", "commit"}
    assert all(seconds >= 0 for seconds in found.stage_seconds.values())
    assert found.stage_seconds["verify"] > found.stage_seconds["tree_accept"]


def settled(models: Path, loop: DecodeLoop, request: Request, rounds: Rounds) -> Decoded:
    """A text of its own golden tokens; on CUDA a mode may part from plain decoding at a near-tie."""
    (plain,) = loop.generate([dataclasses.replace(request, max_new_tokens=request.max_new_tokens + 10)], Rounds("ar"))
    golden = plain.tokens
    for _ in range(8):
        (found,) = loop.generate([dataclasses.replace(request, golden_tokens=golden)], rounds)
        if found.tokens == golden[: len(found.tokens)]:
            return found
        assert loop.engine.backend == "cuda", f"{found.tokens} and {golden}"
        at = next(i for i, (a, b) in enumerate(zip(found.tokens, golden, strict=False)) if a != b)
        assert greedy_gaps(models / "target", request.prompt, found.tokens[: at + 1])[at] < ROUNDING
        golden = found.tokens
    pytest.fail("the text parts from itself again and again")


def test_simulated_acceptance_is_what_was_asked_for_and_says_so(models: Path, loop: DecodeLoop) -> None:
    request = Request(prompts(1)[0], 190)
    for rounds in (Rounds("chain", simulated_accept=1.0), Rounds("ddtree", 64, simulated_accept=1.0)):
        found = settled(models, loop, request, rounds)
        assert found.simulated
        # A whole block a round, but for the last one; a tree may spend its nodes on width instead of depth.
        assert found.acceptance_length == pytest.approx(8, abs=0.35) or rounds.mode == "ddtree"
        assert (found.acceptance_length or 0) > 4
    half = settled(models, loop, request, Rounds("chain", simulated_accept=0.5))
    # 1 + 1/2 + 1/4 + ... tokens.
    assert half.acceptance_length == pytest.approx(2, abs=0.4)
