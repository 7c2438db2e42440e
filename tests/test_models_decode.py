# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402 - what is optional is imported first, or the file is skipped
"""The PyTorch loops: speculation never changes a text, greedy or drawn, whatever the drafter proposes."""

from __future__ import annotations

import numpy as np
import pytest
from model_files import small_drafter, small_target

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from kdbench.errors import InvalidArgument, ModelError
from kdbench.models.torch_decode import Generation, Request, TorchDecoder
from kdbench.models.torch_drafter import TorchDrafter
from kdbench.models.torch_target import TorchTarget

# One thread: these matrices are small, and threads that wait for each other on a shared machine are slower.
torch.set_num_threads(1)

SPECULATION = [
    {"mode": "chain"},
    {"mode": "chain", "block_size": 4},
    {"mode": "chain", "block_size": 2},
    {"mode": "ddtree", "tree_budget": 1},
    {"mode": "ddtree", "tree_budget": 8},
    {"mode": "ddtree", "tree_budget": 15, "block_size": 4},
    {"mode": "ddtree", "tree_budget": 64},
    {"mode": "ddtree", "tree_budget": 256, "block_size": 2},
]


class Prophet(TorchDecoder):
    """Its drafts hold the true continuation at a random rank, or not at all: real paths of all lengths.

    A sure one always has it first, far ahead.
    """

    def __init__(self, decoder: TorchDecoder, truth: list[int], start: int, seed: int, sure: bool = False) -> None:
        super().__init__(decoder.target, decoder.drafter)
        self.truth, self.start, self.random, self.sure = truth, start, np.random.default_rng(seed), sure

    def _draft(self, root, length, context, block, topk):
        steps = self.random.uniform(0, 1, (1, block - 1, topk)) + 9 * self.sure
        log_probs = (steps[..., :1] - 0.1 - np.cumsum(steps, -1)).clip(max=-0.01).astype(np.float32)
        ids = np.zeros((1, block - 1, topk), np.int32)
        for depth in range(block - 1):
            ids[0, depth] = self.random.permutation(self.target.config.vocab_size)[:topk]
            at = length - self.start + 1 + depth
            if at < len(self.truth) and (self.sure or self.random.random() < 0.85):
                others = ids[0, depth][ids[0, depth] != self.truth[at]]
                rank = 0 if self.sure else min(int(self.random.exponential(0.6)), topk - 1)
                ids[0, depth] = np.insert(others, rank, self.truth[at])[:topk]
        return log_probs, ids


@pytest.fixture(scope="module")
def decoder(tmp_path_factory) -> TorchDecoder:
    root = tmp_path_factory.mktemp("models")
    target = TorchTarget.from_directory(small_target(root / "target"))
    return TorchDecoder(target, TorchDrafter.from_directory(small_drafter(root / "drafter")))


def prompt_of(seed: int) -> list[int]:
    random = np.random.default_rng(seed)
    return random.integers(0, 61, int(random.integers(1, 12))).tolist()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("how", SPECULATION, ids=str)
def test_every_mode_gives_ars_text(decoder, how, temperature):
    for seed in range(3):
        asked = {"prompt": prompt_of(seed), "max_new_tokens": 24, "temperature": temperature, "seed": seed}
        plain = decoder.generate(Request(**asked))
        assert plain.target_forwards == len(plain.tokens) - 1 == 23
        assert decoder.generate(Request(**asked, **how)).tokens == plain.tokens
        prophet = Prophet(decoder, plain.tokens, len(asked["prompt"]), seed)
        told = prophet.generate(Request(**asked, **how))
        assert told.tokens == plain.tokens
        assert told.target_forwards <= plain.target_forwards


def test_a_good_drafter_is_followed_to_the_end_of_its_block(decoder):
    plain = decoder.generate(Request(prompt_of(4), 50))
    prophet = Prophet(decoder, plain.tokens, len(prompt_of(4)), 0, sure=True)
    chain = prophet.generate(Request(prompt_of(4), 50, "chain"))
    assert chain.tokens == plain.tokens
    assert chain.acceptance_lengths[:-1] == [8] * (len(chain.acceptance_lengths) - 1)
    # With the whole spine in it, a tree accepts as much.
    tree = prophet.generate(Request(prompt_of(4), 50, "ddtree", tree_budget=7))
    assert tree.acceptance_lengths == chain.acceptance_lengths


def test_seeds_differ_and_repeat(decoder):
    asked = {"prompt": [1, 2, 3], "max_new_tokens": 30, "mode": "ddtree", "tree_budget": 8, "temperature": 1.0}
    texts = [decoder.generate(Request(**asked, seed=seed)).tokens for seed in (0, 1, 0)]
    assert texts[0] == texts[2] != texts[1]


@pytest.mark.parametrize("how", [{}, {"mode": "chain"}, {"mode": "ddtree"}], ids=str)
def test_a_text_ends_behind_its_stop_token(decoder, how):
    plain = decoder.generate(Request(prompt_of(5), 40)).tokens
    stop = plain[17]
    cut = plain[: plain.index(stop) + 1]
    assert decoder.generate(Request(prompt_of(5), 40, stop_token_ids=(stop,), **how)).tokens == cut


@pytest.mark.parametrize("count", [1, 2, 7])
def test_no_more_tokens_than_asked_for(decoder, count):
    plain = decoder.generate(Request(prompt_of(6), 40)).tokens
    prophet = Prophet(decoder, plain, len(prompt_of(6)), 1)
    for how in SPECULATION:
        assert prophet.generate(Request(prompt_of(6), count, **how)).tokens == plain[:count]


def test_the_last_position_can_be_reached(tmp_path):
    target = TorchTarget.from_directory(small_target(tmp_path / "t", max_position_embeddings=32))
    decoder = TorchDecoder(target, TorchDrafter.from_directory(small_drafter(tmp_path / "d")))
    plain = decoder.generate(Request([1] * 8, 24)).tokens
    assert len(plain) == 24
    assert decoder.generate(Request([1] * 8, 24, "ddtree", tree_budget=64)).tokens == plain


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"prompt": []}, "the prompt is empty"),
        ({"prompt": [61]}, "a token outside the vocabulary of 61"),
        ({"prompt": [-1]}, "a token outside the vocabulary of 61"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0; wanted 1 or more"),
        ({"max_new_tokens": 4096}, "more than the model's 4096 positions"),
        ({"mode": "chain", "block_size": 9}, "block_size is 9; wanted 2 to 8, the drafter's"),
        ({"mode": "chain", "block_size": 1}, "block_size is 1; wanted 2 to 8, the drafter's"),
        ({"mode": "ddtree", "tree_budget": 0}, "tree_budget is 0; wanted 1 or more"),
    ],
)
def test_odd_requests_are_refused(decoder, changes, told):
    with pytest.raises(InvalidArgument) as refusal:
        decoder.generate(Request(**({"prompt": [1], "max_new_tokens": 4} | changes)))
    assert told in str(refusal.value)


def test_modes_that_draft_need_a_drafter_that_fits(decoder, tmp_path):
    with pytest.raises(InvalidArgument, match="mode chain needs a drafter"):
        TorchDecoder(decoder.target).generate(Request([1], 2, "chain"))
    other = TorchDrafter.from_directory(small_drafter(tmp_path, vocab_size=62))
    with pytest.raises(ModelError, match="vocab_size is 62 and the target has 61"):
        TorchDecoder(decoder.target, other)


def test_no_rounds_no_mean():
    assert np.isnan(Generation(tokens=[1]).acceptance_length)
    assert Generation(acceptance_lengths=[1, 4]).acceptance_length == 2.5
