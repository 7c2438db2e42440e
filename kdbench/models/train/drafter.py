# SPDX-License-Identifier: Apache-2.0
"""Trains the drafter as the DFlash paper does (arXiv 2602.06036): many random blocks a text in one masked forward.

The text is the target's own continuation, so each block's labels are what the target went on to say. A block starts at
a random anchor; its rows see the context before the anchor and their own block. The loss is cross-entropy, weighted by
exp(-(k - 1) / decay) for the k-th drafted token, since a late token counts only if all before it were right. The target
is frozen; its features, embedding and lm_head are constants here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from kdbench.models.config import DrafterConfig
from kdbench.models.torch_drafter import TorchDrafter
from kdbench.models.torch_target import TorchTarget
from kdbench.models.train.schedule import TimedRun, half_precision

_TELLS = 8


@dataclass(frozen=True)
class Texts:
    """Continued texts.

    Attributes:
        tokens: i64[N, T].
        features: [N, T, layers * hidden], the target's.
        first_new: i64[N]: where the target's own tokens begin.
    """

    tokens: Tensor
    features: Tensor
    first_new: Tensor


@dataclass(frozen=True)
class DrafterPlan:
    """Sizes of a run.

    Attributes:
        texts, anchors: texts a step and blocks of each.
        decay: in tokens; the paper's value for blocks of 8.
        short_block, short_share: share of the steps that train a shorter block, which is one cut short when it is run.
    """

    seconds: float
    steps: int = 1_000_000
    texts: int = 32
    anchors: int = 64
    peak_rate: float = 1.5e-3
    weight_decay: float = 0.05
    decay: float = 4.0
    short_block: int = 4
    short_share: float = 0.15


def train_drafter(
    config: DrafterConfig,
    target: TorchTarget,
    texts: Texts,
    plan: DrafterPlan,
    seed: int,
    save: Callable[[TorchDrafter], None],
) -> tuple[TorchDrafter, list[dict[str, Any]]]:
    """Train from scratch; ``save`` is called now and then with what there is.

    Returns:
        the drafter with its weights rounded to bf16, in f32, and the log.
    """
    device = str(texts.tokens.device)
    torch.manual_seed(seed)
    drafter = TorchDrafter(config)
    for name, weight in drafter.named_parameters():
        if weight.ndim > 1:
            adds = name.endswith(("o_proj.weight", "down_proj.weight"))
            nn.init.normal_(weight, std=0.02 / (math.sqrt(2 * config.num_hidden_layers) if adds else 1.0))
    drafter = drafter.to(device).train()
    run = TimedRun(
        drafter,
        seconds=plan.seconds,
        steps=plan.steps,
        peak_rate=plan.peak_rate,
        weight_decay=plan.weight_decay,
        device=device,
    )
    generator = torch.Generator(device).manual_seed(seed)
    short_every = round(1 / plan.short_share)
    told = 0
    loss, right = torch.zeros(()), torch.zeros(config.block_size - 1)
    while (share := run.share) < 1 or told < _TELLS:
        if share >= (told + 1) / _TELLS:
            told = min(_TELLS, int(share * _TELLS))
            run.tell(training_loss=loss.item(), right_at_each_place=[round(value, 3) for value in right.tolist()])
            if told in (_TELLS // 2, _TELLS - 1):
                save(drafter)
            continue
        short = run.step % short_every == 1 and plan.short_block < config.block_size
        block = plan.short_block if short else config.block_size
        rows = torch.randint(len(texts.tokens), (plan.texts,), device=device, generator=generator)
        tokens, first = texts.tokens[rows], texts.first_new[rows]
        last = tokens.shape[1] - block
        spread = torch.rand(plan.texts, plan.anchors, device=device, generator=generator)
        anchors = (first[:, None] + (spread * (last - first[:, None] + 1)).long()).clamp(max=last)
        hidden = drafted_hidden(drafter, target, tokens, texts.features[rows], anchors, block)
        with half_precision(device):
            logits = target.lm_head(hidden)
        places = torch.arange(1, block, device=device)
        labels = torch.gather(tokens, 1, (anchors[..., None] + places).flatten(1)).view(*anchors.shape, block - 1)
        each = functional.cross_entropy(logits.flatten(0, 2).float(), labels.flatten(), reduction="none").view_as(
            labels
        )
        weights = torch.exp(-(places - 1) / plan.decay)
        loss = (each * weights).sum(-1).mean() / weights.sum()
        run.descend(loss)
        if not short:
            right = (logits.detach().argmax(-1) == labels).float().mean((0, 1))
    rounded = {name: value.to(torch.bfloat16).to(value.dtype) for name, value in drafter.state_dict().items()}
    drafter.load_state_dict(rounded)
    drafter.eval().requires_grad_(False)
    return drafter, run.log


def drafted_hidden(
    drafter: TorchDrafter, target: TorchTarget, tokens: Tensor, features: Tensor, anchors: Tensor, block: int
) -> Tensor:
    """Rows 1 to block-1 of a block at each anchor: [B, A, block - 1, hidden], for the target's lm_head.

    Args:
        tokens: i64[B, T].
        features: [B, T, layers * hidden].
        anchors: i64[B, A]; the token there is the block's root, the context is what stands before it.
    """
    device, (batch, length), count = tokens.device, tokens.shape, anchors.shape[1]
    ids = torch.full((batch, count, block), drafter.config.mask_token_id, device=device)
    ids[..., 0] = torch.gather(tokens, 1, anchors)
    positions = (anchors[..., None] + torch.arange(block, device=device)).flatten(1)
    context_positions = torch.arange(length, device=device).expand(batch, length)
    before = (context_positions[:, None] < anchors[..., None]).repeat_interleave(block, 1)
    owner = torch.arange(count * block, device=device) // block
    own = (owner[:, None] == owner).expand(batch, -1, -1)
    visible = torch.cat((before, own), -1)[:, None]
    with half_precision(str(device)):
        hidden: Tensor = drafter(
            target.model.embed_tokens(ids.flatten(1)),
            positions,
            drafter.context(features),
            context_positions,
            visible,
        )
    return hidden.unflatten(1, (count, block))[:, :, 1:]
