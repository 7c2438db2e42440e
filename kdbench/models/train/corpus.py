# SPDX-License-Identifier: Apache-2.0
"""The training text: sources of the running interpreter's standard library, which every machine has.

Their licence is the PSF licence. Files are sorted; a file is held out when its content's hash says so, so that the
split does not depend on which other files a distribution ships.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kdbench.errors import ModelError
from kdbench.models.tokenizer import SPECIAL_TOKENS, TextTokenizer

# Installed packages, tests that distributions leave out, and tables of code pages, which are no prose and no code.
_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "__pycache__"}
_HELD_OUT_ONE_IN = 50
_ENOUGH_BYTES = 5_000_000


@dataclass(frozen=True)
class Corpus:
    """Texts by relative path, in order.

    Attributes:
        digest: SHA-256 over the paths and contents of both parts.
    """

    training: dict[str, str]
    held_out: dict[str, str]
    digest: str

    @property
    def num_bytes(self) -> int:
        """UTF-8 bytes of both parts."""
        return sum(len(text.encode()) for part in (self.training, self.held_out) for text in part.values())


def standard_library(root: Path | None = None, enough_bytes: int = _ENOUGH_BYTES) -> Corpus:
    """The corpus under ``root``, the interpreter's own library by default.

    Raises:
        ModelError: less than ``enough_bytes`` are there; some distributions ship only a part.
    """
    root = root or Path(sysconfig.get_path("stdlib"))
    parts: tuple[dict[str, str], dict[str, str]] = ({}, {})
    total = hashlib.sha256()
    for path in _sources(root):
        content = path.read_bytes()
        try:
            text = content.decode()
        except UnicodeDecodeError:
            continue
        name = path.relative_to(root).as_posix()
        own = hashlib.sha256(content)
        total.update(f"{name}\0{own.hexdigest()}\n".encode())
        parts[int(own.hexdigest()[:8], 16) % _HELD_OUT_ONE_IN == 0][name] = text
    corpus = Corpus(*parts, total.hexdigest())
    if corpus.num_bytes < enough_bytes or not corpus.held_out:
        raise ModelError(f"{root} has {corpus.num_bytes} bytes of Python sources; wanted {enough_bytes} or more")
    return corpus


def train_tokenizer(texts: Sequence[str], vocab_size: int) -> TextTokenizer:
    """A byte-level BPE of ``texts``: the special tokens first, then the 256 bytes, then merges."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    backend: Any = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer=trainer, length=len(texts))
    tokenizer = TextTokenizer(backend)
    if tokenizer.vocab_size != vocab_size:
        raise ModelError(f"the texts gave a vocabulary of {tokenizer.vocab_size}; wanted {vocab_size}")
    return tokenizer


def token_stream(tokenizer: TextTokenizer, texts: Sequence[str]) -> list[int]:
    """All texts as one list: <|begin|>, the text's tokens, <|end|>."""
    begin, end, _ = (int(tokenizer.backend.token_to_id(name)) for name in SPECIAL_TOKENS)
    stream: list[int] = []
    for encoding in tokenizer.backend.encode_batch(list(texts), add_special_tokens=False):
        stream += [begin, *encoding.ids, end]
    return stream


def _sources(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*.py")):
        if not _LEFT_OUT.intersection(path.relative_to(root).parts[:-1]):
            yield path
