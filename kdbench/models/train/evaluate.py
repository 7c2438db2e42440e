# SPDX-License-Identifier: Apache-2.0
"""acceptance_length of a drafter over texts that the target continued greedily, for a chain and for draft trees.

Greedy speculation emits the target's greedy text whatever was drafted. So the rounds can be replayed over finished
texts: all blocks are drafted in one masked forward, then each round's accepted length is read off and leads to the next
anchor.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from kdbench.best_first import select
from kdbench.models.torch_drafter import TorchDrafter
from kdbench.models.torch_target import TorchTarget
from kdbench.models.train.drafter import Texts, drafted_hidden

_Array = np.ndarray[Any, Any]


def acceptance_lengths(
    drafter: TorchDrafter, target: TorchTarget, texts: Texts, budgets: tuple[int, ...], block: int
) -> dict[str, float]:
    """Mean tokens a round emits: {"chain": ..., "ddtree_64": ..., ...}, sum over all texts by rounds.

    Args:
        budgets: tree budgets, each with as many columns of the drafter's top-k.
    """
    emitted = {"chain": 0, **{f"ddtree_{budget}": 0 for budget in budgets}}
    rounds = dict.fromkeys(emitted, 0)
    for row in range(len(texts.tokens)):
        first = int(texts.first_new[row])
        log_probs, ids = _drafts(drafter, target, texts, row, first, block, max(budgets, default=1))
        said = texts.tokens[row].cpu().numpy()
        for name in emitted:
            budget = 0 if name == "chain" else int(name.removeprefix("ddtree_"))
            anchor = first
            while anchor < first + len(ids):
                wanted, place = said[anchor + 1 : anchor + block], anchor - first
                length = _accepted(log_probs[place], ids[place], wanted, budget)
                emitted[name] += length
                rounds[name] += 1
                anchor += length
    return {name: emitted[name] / rounds[name] for name in emitted}


def _accepted(log_probs: _Array, ids: _Array, wanted: _Array, budget: int) -> int:
    """Tokens of one round, bonus included; budget 0 is the chain of first choices."""
    hits = ids == wanted[:, None]
    if not budget:
        return 1 + int(np.cumprod(hits[:, 0]).sum())
    ranks = tuple(int(rank) for rank in hits.argmax(1))
    nodes = {chosen for chosen, _ in select(log_probs[:, :budget], budget)}
    length = 1
    while length <= len(wanted) and hits[length - 1].any() and ranks[:length] in nodes:
        length += 1
    return length


@torch.no_grad()
def _drafts(
    drafter: TorchDrafter, target: TorchTarget, texts: Texts, row: int, first: int, block: int, topk: int
) -> tuple[_Array, _Array]:
    """Top-k log-probs f32[A, D, K] and ids i64[A, D, K] of a block at every place from ``first`` on that has room."""
    tokens = texts.tokens[row : row + 1]
    anchors = torch.arange(first, tokens.shape[1] - block + 1, device=tokens.device)
    hidden = drafted_hidden(drafter, target, tokens, texts.features[row : row + 1], anchors[None], block)[0]
    logits: Tensor = target.lm_head(hidden.float()).log_softmax(-1)
    top = logits.topk(min(topk, logits.shape[-1]), -1)
    return top.values.cpu().numpy(), top.indices.cpu().numpy()
