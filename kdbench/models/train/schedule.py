# SPDX-License-Identifier: Apache-2.0
"""A training run that ends when its seconds are over: optimiser, learning rate by elapsed share, log lines."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

_WARMUP_STEPS = 100
_FLOOR = 0.03


class TimedRun:
    """Steps until ``seconds`` are over or ``steps`` are done, whichever share is larger.

    Attributes:
        step: steps done.
        log: what was told, each a dict that goes into the record.
    """

    def __init__(
        self, model: nn.Module, *, seconds: float, steps: int, peak_rate: float, weight_decay: float, device: str
    ) -> None:
        self.model, self.seconds, self.steps, self.peak_rate, self.device = model, seconds, steps, peak_rate, device
        matrices = [weight for weight in model.parameters() if weight.ndim > 1]
        vectors = [weight for weight in model.parameters() if weight.ndim == 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}],
            lr=peak_rate,
            betas=(0.9, 0.95),
            fused=device.startswith("cuda"),
        )
        self.began = time.monotonic()
        self.step = 0
        self.log: list[dict[str, Any]] = []

    @property
    def share(self) -> float:
        """Done share of the run, 1 at its end."""
        return max((time.monotonic() - self.began) / self.seconds, self.step / self.steps)

    def descend(self, loss: Tensor) -> None:
        """One step of AdamW along the gradient of ``loss``."""
        cosine = 0.5 * (1 + math.cos(math.pi * min(self.share, 1.0)))
        rate = self.peak_rate * min((self.step + 1) / _WARMUP_STEPS, 1.0) * (_FLOOR + (1 - _FLOOR) * cosine)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        if self.device.startswith("cuda") and self.step % 8 == 0:
            # The host must not run far ahead, or the clock that ends the run is early.
            torch.cuda.synchronize()

    def tell(self, **facts: Any) -> None:
        """Record and print facts about this moment."""
        entry = {"seconds": round(time.monotonic() - self.began, 1), "step": self.step, **facts}
        self.log.append(entry)
        print("  ", " ".join(f"{name}={_short(value)}" for name, value in entry.items()), flush=True)


@contextlib.contextmanager
def half_precision(device: str) -> Iterator[None]:
    """bf16 matrix products on a GPU, f32 on a CPU."""
    if not device.startswith("cuda"):
        yield
        return
    with torch.autocast("cuda", torch.bfloat16):
        yield


def _short(value: Any) -> Any:
    return f"{value:.4f}" if isinstance(value, float) else value
