# SPDX-License-Identifier: Apache-2.0
"""Trains the target: next-token cross-entropy on random windows of the token stream, the best held-out state kept."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from kdbench.models.config import TargetConfig
from kdbench.models.torch_target import TorchTarget
from kdbench.models.train.schedule import TimedRun, half_precision

_LOOKS = 10


@dataclass(frozen=True)
class TargetPlan:
    """Sizes of a run.

    Attributes:
        window, long_window: tokens of a window in the first part of the run and in the rest.
        long_from: share of the run at which windows get long, so that late positions are trained too.
        epochs: passes over the stream after which the run ends even if seconds are left.
    """

    seconds: float
    epochs: float = 36.0
    step_tokens: int = 32768
    window: int = 512
    long_window: int = 2048
    long_from: float = 0.7
    peak_rate: float = 2e-3
    weight_decay: float = 0.1
    dropout: float = 0.15


def train_target(
    config: TargetConfig, stream: Tensor, held_out: Tensor, plan: TargetPlan, seed: int
) -> tuple[TorchTarget, list[dict[str, Any]]]:
    """Train from scratch.

    Args:
        stream, held_out: i64[tokens] on the device that trains.

    Returns:
        the model with its weights rounded to bf16, in f32, and the log.
    """
    device = str(stream.device)
    torch.manual_seed(seed)
    model = TorchTarget(config, dropout=plan.dropout)
    _initialise(model, config)
    model = model.to(device).train()
    steps = max(1, round(plan.epochs * len(stream) / plan.step_tokens))
    run = TimedRun(
        model,
        seconds=plan.seconds,
        steps=steps,
        peak_rate=plan.peak_rate,
        weight_decay=plan.weight_decay,
        device=device,
    )
    generator = torch.Generator(device).manual_seed(seed)
    best, best_loss, looked, loss = model.state_dict(), math.inf, 0, torch.zeros(())
    while (share := run.share) < 1 or looked < _LOOKS:
        if share >= (looked + 1) / _LOOKS:
            looked = min(_LOOKS, int(share * _LOOKS))
            now = held_out_loss(model, held_out, plan.window)
            if now < best_loss:
                best_loss, best = now, {name: value.clone() for name, value in model.state_dict().items()}
            run.tell(training_loss=loss.item(), held_out_loss=now, tokens=run.step * plan.step_tokens)
            continue
        window = plan.window if share < plan.long_from else plan.long_window
        window = min(window, len(stream) - 1, config.max_position_embeddings)
        rows = max(1, plan.step_tokens // window)
        starts = torch.randint(len(stream) - window, (rows, 1), device=device, generator=generator)
        tokens = stream[starts + torch.arange(window + 1, device=device)]
        loss = _loss(model, tokens)
        run.descend(loss)
    model.load_state_dict({name: value.to(torch.bfloat16).to(value.dtype) for name, value in best.items()})
    model.eval().requires_grad_(False)
    run.tell(held_out_loss_of_bf16_weights=held_out_loss(model, held_out, plan.window))
    return model, run.log


@torch.no_grad()
def held_out_loss(model: TorchTarget, tokens: Tensor, window: int) -> float:
    """Mean cross-entropy in nats a token over consecutive windows of ``tokens``."""
    training = model.training
    model.eval()
    window = min(window, len(tokens) - 1)
    rows = min((len(tokens) - 1) // window, 256)
    starts = torch.arange(rows, device=tokens.device)[:, None] * window
    windows = tokens[starts + torch.arange(window + 1, device=tokens.device)]
    losses = [float(_loss(model, part)) * len(part) for part in windows.split(64)]
    model.train(training)
    return sum(losses) / rows


def _loss(model: TorchTarget, tokens: Tensor) -> Tensor:
    with half_precision(str(tokens.device)):
        logits = model.lm_head(model(tokens[:, :-1]).hidden)
    return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def _initialise(model: TorchTarget, config: TargetConfig) -> None:
    """Normal with deviation 0.02, smaller where a layer adds to the stream; norms are 1 already."""
    for name, weight in model.named_parameters():
        if weight.ndim > 1:
            adds = name.endswith(("o_proj.weight", "down_proj.weight"))
            nn.init.normal_(weight, std=0.02 / (math.sqrt(2 * config.num_hidden_layers) if adds else 1.0))
