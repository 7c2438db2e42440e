# SPDX-License-Identifier: Apache-2.0
"""The decode loops in PyTorch, one request at a time: the oracle of the native engine's AR, chain and DDTree modes.

A round is draft, tree_build, verify, tree_accept, commit (arXiv 2604.12989); the three in the middle are
``kdbench.reference``'s. Draws are ``kdbench.models.sampling``'s: keyed, so that all modes give one text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from kdbench import reference
from kdbench.errors import InvalidArgument
from kdbench.models.sampling import draw
from kdbench.models.torch_drafter import TorchDrafter
from kdbench.models.torch_target import LatentCache, TorchTarget

Mode = Literal["ar", "chain", "ddtree"]
_Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Request:
    """What is to be generated, and how.

    Attributes:
        prompt: token ids, one at least.
        tree_budget: draft nodes of a DDTree round, the root excluded; chains and AR have their own.
        block_size: tokens of a block, the root included; None is the drafter's.
        stop_token_ids: a text ends behind the first of them.
    """

    prompt: Sequence[int]
    max_new_tokens: int
    mode: Mode = "ar"
    tree_budget: int = 64
    block_size: int | None = None
    temperature: float = 0.0
    seed: int = 0
    stop_token_ids: tuple[int, ...] = ()


@dataclass
class Generation:
    """What came out.

    Attributes:
        tokens: new tokens, the stop token included.
        acceptance_lengths: tokens that each verify round emitted, its bonus included, before any cut at the end.
    """

    tokens: list[int] = field(default_factory=list)
    acceptance_lengths: list[int] = field(default_factory=list)

    @property
    def target_forwards(self) -> int:
        """Forwards behind the prefill: the rounds."""
        return len(self.acceptance_lengths)

    @property
    def acceptance_length(self) -> float:
        """Mean tokens a round; NaN without rounds."""
        return float(np.mean(self.acceptance_lengths)) if self.acceptance_lengths else float("nan")


class TorchDecoder:
    """Decodes with a target and, for chain and DDTree, a drafter, both in evaluation mode on one device."""

    def __init__(self, target: TorchTarget, drafter: TorchDrafter | None = None) -> None:
        if drafter is not None:
            drafter.config.check_fits(target.config)
        self.target, self.drafter = target, drafter
        self.device = target.lm_head.weight.device

    @torch.no_grad()
    def generate(self, request: Request) -> Generation:
        """Run one request to its end.

        Raises:
            InvalidArgument: an empty prompt, ids outside the vocabulary, a block longer than the drafter's, no drafter
                for a mode that needs one, or more tokens than the model has positions for.
        """
        block = self._checked_block(request)
        budget = {"ar": 0, "chain": block - 1, "ddtree": request.tree_budget}[request.mode]
        topk = 1 if request.mode == "chain" else min(budget, self.target.config.vocab_size)
        layers = self.drafter.config.target_layer_ids if self.drafter is not None and budget else ()

        cache = LatentCache(self.target.config.num_hidden_layers)
        prompt = torch.tensor([list(request.prompt)], device=self.device)
        out = self.target(prompt, cache=cache, feature_layers=layers)
        context = out.features
        generation = Generation()
        self._emit(generation, request, [self._drawn(out.hidden[:, -1:], request, [cache.length])[0]])
        while not self._ended(generation, request):
            root, length = generation.tokens[-1], cache.length
            log_probs, ids = self._draft(root, length, context, block, topk) if budget else _nothing()
            roots, lengths = np.array([root], np.int32), np.array([length], np.int32)
            tree = reference.tree_build(log_probs, ids, roots, lengths, budget)
            nodes = int(tree.num_nodes[0])
            out = self.target(
                self._tensor(tree.token_ids[:, :nodes]),
                self._tensor(tree.positions[:, :nodes]),
                visible=self._visible(tree.tree_mask[0, :nodes], length, nodes),
                cache=cache,
                feature_layers=layers,
            )
            drawn = np.zeros_like(tree.token_ids)
            drawn[0, :nodes] = self._drawn(out.hidden, request, (tree.positions[0, :nodes] + 1).tolist())
            accepted = reference.tree_accept(tree, drawn)
            path = accepted.accepted_path[0, : int(accepted.acceptance_length[0])].tolist()
            cache.keep([*range(length), *(length + node for node in path)])
            context = torch.cat((context, out.features[:, path]), 1)
            generation.acceptance_lengths.append(len(path))
            self._emit(generation, request, [*tree.token_ids[0, path[1:]].tolist(), int(accepted.bonus_token[0])])
        return generation

    def _draft(self, root: int, length: int, context: Tensor, block: int, topk: int) -> tuple[_Array, _Array]:
        """Log-probs f32[1, D, K] and ids i32[1, D, K] of the tokens behind ``root``, which stands at ``length``."""
        assert self.drafter is not None
        ids = [root] + [self.drafter.config.mask_token_id] * (block - 1)
        hidden = self.drafter(
            self.target.model.embed_tokens(torch.tensor([ids], device=self.device)),
            torch.arange(length, length + block, device=self.device)[None],
            self.drafter.context(context),
            torch.arange(length, device=self.device)[None],
        )
        top = reference.draft_topk(self._logits(hidden[:, 1:]), topk)
        return top.log_probs, top.token_ids

    def _drawn(self, hidden: Tensor, request: Request, positions: list[int]) -> list[int]:
        """The target's token behind each row, which will stand at ``positions``."""
        rows = self._logits(hidden)[0]
        return [draw(row, request.temperature, request.seed, at) for row, at in zip(rows, positions, strict=True)]

    def _logits(self, hidden: Tensor) -> _Array:
        logits: _Array = self.target.lm_head(hidden).float().cpu().numpy()
        return logits

    def _visible(self, tree_mask: _Array, length: int, nodes: int) -> Tensor:
        """bool[N, length + N]: the prefix and what the mask's bits say."""
        bits = np.unpackbits(np.ascontiguousarray(tree_mask).view(np.uint8), axis=-1, bitorder="little")[:, :nodes]
        both = np.concatenate([np.ones((nodes, length), bool), bits.astype(bool)], 1)
        return torch.from_numpy(both).to(self.device)

    def _tensor(self, array: _Array) -> Tensor:
        return torch.from_numpy(array.astype(np.int64)).to(self.device)

    @staticmethod
    def _emit(generation: Generation, request: Request, tokens: list[int]) -> None:
        """Add tokens up to the first stop token and to max_new_tokens."""
        for token in tokens:
            generation.tokens.append(token)
            if TorchDecoder._ended(generation, request):
                return

    @staticmethod
    def _ended(generation: Generation, request: Request) -> bool:
        return len(generation.tokens) >= request.max_new_tokens or generation.tokens[-1] in request.stop_token_ids

    def _checked_block(self, request: Request) -> int:
        vocab_size, longest = self.target.config.vocab_size, self.target.config.max_position_embeddings
        if not request.prompt:
            raise InvalidArgument("the prompt is empty; wanted one token at least")
        if any(not 0 <= token < vocab_size for token in request.prompt):
            raise InvalidArgument(f"the prompt has a token outside the vocabulary of {vocab_size}")
        if request.max_new_tokens < 1:
            raise InvalidArgument(f"max_new_tokens is {request.max_new_tokens}; wanted 1 or more")
        if len(request.prompt) + request.max_new_tokens > longest:
            raise InvalidArgument(
                f"{len(request.prompt)} prompt tokens and {request.max_new_tokens} new ones are more than the model's "
                f"{longest} positions"
            )
        if request.mode == "ar":
            return 1
        if self.drafter is None:
            raise InvalidArgument(f"mode {request.mode} needs a drafter")
        trained = self.drafter.config.block_size
        block = trained if request.block_size is None else request.block_size
        if not 2 <= block <= trained:
            raise InvalidArgument(f"block_size is {block}; wanted 2 to {trained}, the drafter's")
        if request.mode == "ddtree" and request.tree_budget < 1:
            raise InvalidArgument(f"tree_budget is {request.tree_budget}; wanted 1 or more")
        return block


def _nothing() -> tuple[_Array, _Array]:
    """The drafts of AR: none."""
    return np.zeros((1, 0, 1), np.float32), np.zeros((1, 0, 1), np.int32)
