# SPDX-License-Identifier: Apache-2.0
"""Golden tokens of the shipped model: what it must say, before and after it is timed.

``decode_golden.json`` holds, for one checkpoint named by its digest, prompts of held-out text as token ids, the tokens
that the PyTorch reference says greedily in f32, and how clear each of them was. ``python -m
kdbench.decode_golden_writer`` writes it.

Other sums round differently. So the first token that differs is allowed where the reference's two best logits are so
near that rounding may swap them, and is counted; behind it the texts are different ones and are not compared.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kdbench.errors import KdbenchError
from kdbench.golden import DigestMismatch

PATH = Path(__file__).with_name("decode_golden.json")
SCHEMA = "kdbench/decode-golden/1"
# Gap of the two best logits over the largest absolute one, below which a swap is rounding: some steps of bf16, of which
# one is 2^-8, through all layers; in f32 the cache's latents are bf16 all the same.
NEAR_TIE = {"f32": 2.0**-10, "bf16": 2.0**-6}


@dataclass(frozen=True)
class Golden:
    """What one checkpoint must say.

    Attributes:
        model_sha256: of the weights, see ``model_digest``.
        prompts: token ids.
        tokens: per prompt the greedy continuation.
        gaps: per token (best logit - second) / largest absolute logit.
    """

    model_sha256: str
    prompts: tuple[tuple[int, ...], ...]
    tokens: tuple[tuple[int, ...], ...]
    gaps: tuple[tuple[float, ...], ...]

    @property
    def sha256(self) -> str:
        """Of the golden tokens."""
        return tokens_digest(self.tokens)


@functools.cache
def load(model: str, path: Path = PATH) -> Golden | None:
    """The golden tokens of a model, None where there are none (yet).

    Raises:
        KdbenchError: the file is not what the writer writes.
    """
    if not path.is_file():
        return None
    try:
        document = json.loads(path.read_text("utf-8"))
        if document["schema"] != SCHEMA:
            raise KdbenchError(f"{path} has schema {document['schema']!r}, and {SCHEMA!r} is expected")
        entry = document["models"].get(model)
        return None if entry is None else _golden(entry)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise KdbenchError(f"golden tokens cannot be read from {path}: {error}") from error


def model_digest(directories: Sequence[Path]) -> str:
    """SHA-256 over the weights files of some model directories, in order."""
    state = hashlib.sha256()
    for directory in directories:
        for path in sorted(directory.glob("*.safetensors")):
            state.update(hashlib.sha256(path.read_bytes()).digest())
    return state.hexdigest()


def tokens_digest(tokens: Sequence[Sequence[int]]) -> str:
    """SHA-256 of rows of token ids."""
    return hashlib.sha256(json.dumps([list(row) for row in tokens]).encode()).hexdigest()


def check(where: str, found: Sequence[int], tokens: Sequence[int], gaps: Sequence[float], dtype: str) -> int:
    """Compare one text with its golden tokens, as far as both go.

    Args:
        where: names the text in an error.
        found: what an engine said.
        tokens, gaps: golden ones.
        dtype: of the engine's activations, "f32" or "bf16".

    Returns:
        0 for equal tokens, 1 for a first difference at a near-tie.

    Raises:
        DigestMismatch: they differ where rounding cannot explain it, or there is nothing to compare.
    """
    if not found:
        raise DigestMismatch(f"{where}: nothing was said")
    for at, (ours, golden, gap) in enumerate(zip(found, tokens, gaps, strict=False)):
        if ours == golden:
            continue
        if gap < NEAR_TIE[dtype]:
            return 1
        raise DigestMismatch(
            f"{where}: token {at} is {ours}, and {golden} is golden, {gap:.2g} of the largest logit ahead; "
            f"{dtype} may swap two that are nearer than {NEAR_TIE[dtype]:.2g}"
        )
    return 0


def _golden(entry: Mapping[str, Any]) -> Golden:
    rows = {name: tuple(map(tuple, entry[name])) for name in ("prompts", "tokens", "gaps")}
    if not len(rows["prompts"]) == len(rows["tokens"]) == len(rows["gaps"]):
        raise ValueError("prompts, tokens and gaps are not equally many")
    return Golden(str(entry["model_sha256"]), **rows)
