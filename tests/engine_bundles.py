# SPDX-License-Identifier: Apache-2.0
"""Model bundles for the engine's C++ tests and demo: a model, prompts, and what PyTorch says follows.

``python tests/engine_bundles.py OUT.kdtr TARGET [DRAFTER]`` writes one of Hugging Face directories. Names of the arrays
are defined in native/tests/README.md.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kdbench import engine_params, kdtr
from kdbench.models.checkpoint import Checkpoint, load_drafter, load_target
from kdbench.models.sampling import gumbel
from kdbench.models.torch_target import LatentCache, TorchTarget

Arrays = dict[str, np.ndarray[Any, Any]]
# The engine rounds queries, latents and attention's output to bf16, which moves logits by up to 0.7 % of the largest.
# A golden text ends where the two best candidates are nearer to each other than this: there both are right.
GAP = 0.03


def bundle(target: Checkpoint, drafter: Checkpoint | None, cases: Sequence[Arrays]) -> Arrays:
    """All arrays of a bundle."""
    keep: list[Any] = []
    arrays = _fields("target", engine_params.target(target.config, keep))
    arrays["target/inv_freq"] = target.config.rope.inv_freq(target.config.qk_rope_head_dim)
    tensors = dict(target.tensors)
    if drafter is not None:
        arrays |= _fields("drafter", engine_params.drafter(drafter.config, keep))
        arrays["drafter/inv_freq"] = drafter.config.rope.inv_freq(drafter.config.head_dim)
        arrays["drafter/target_layer_ids"] = np.array(drafter.config.target_layer_ids, np.int32)
        tensors |= {f"drafter.{name}": array for name, array in drafter.tensors.items()}
    for index, (name, array) in enumerate(tensors.items()):
        arrays[f"tensor/{index}"] = array
        arrays[f"tensor/{index}/name"] = np.frombuffer(name.encode(), np.uint8)
    for index, case in enumerate(cases):
        arrays |= {f"case/{index}/{name}": array for name, array in case.items()}
    return arrays


def _fields(prefix: str, pointer: Any) -> Arrays:
    """The numbers of a config struct, one array each."""
    struct = pointer.contents
    kinds = {ctypes.c_int32: np.int32, ctypes.c_float: np.float32}
    return {
        f"{prefix}/{name}": np.array([getattr(struct, name)], kinds[kind])
        for name, kind in struct._fields_
        if kind in kinds
    }


@torch.no_grad()
def golden_case(
    model: TorchTarget, prompt: Sequence[int], most: int, temperature: float = 0.0, seed: int = 0
) -> Arrays:
    """A prompt and its continuation, up to the first token that was a near thing, at most ``most`` tokens."""
    cache = LatentCache(model.config.num_hidden_layers)
    tokens: list[int] = []
    fed = list(prompt)
    while len(tokens) < most:
        hidden = model(torch.tensor([fed]), cache=cache).hidden[0, -1]
        logits = model.lm_head(hidden).float().numpy()
        drawn, uncertainty = logits, GAP * float(np.abs(logits).max())
        if temperature >= 1e-5:
            position = len(prompt) + len(tokens)
            drawn = logits / np.float32(temperature) + gumbel(seed, position, logits.size)
            uncertainty /= temperature
        second, first = np.sort(drawn)[-2:]
        if first - second < uncertainty:
            break
        tokens.append(int(drawn.argmax()))
        fed = tokens[-1:]
    case = {"prompt": np.array(prompt, np.int32), "tokens": np.array(tokens, np.int32)}
    if temperature >= 1e-5:
        case |= {"temperature": np.array([temperature], np.float32), "seed": np.array([seed], np.uint64)}
    return case


def golden_cases(model: TorchTarget, count: int, most: int = 48, shortest: int = 4) -> Iterator[Arrays]:
    """``count`` cases of seeded prompts, ragged, every third sampled, of ``shortest`` tokens at least."""
    rng = np.random.default_rng(20260412)
    found = 0
    for attempt in range(100 * count):
        prompt = rng.integers(3, model.config.vocab_size, int(rng.integers(1, 90))).tolist()
        case = golden_case(model, prompt, most, 0.7 if attempt % 3 == 2 else 0.0, attempt)
        if case["tokens"].size >= shortest:
            yield case
            found += 1
        if found == count:
            return
    raise RuntimeError(f"only {found} of {count} prompts have a continuation that is no near thing")


def write(path: Path, target: Path, drafter: Path | None, count: int = 4) -> None:
    """Write a bundle of ``count`` cases."""
    cases = list(golden_cases(TorchTarget.from_directory(target).eval(), count))
    kdtr.write(path, bundle(load_target(target), load_drafter(drafter) if drafter else None, cases))


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None)
