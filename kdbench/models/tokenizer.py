# SPDX-License-Identifier: Apache-2.0
"""Text to token ids and back, whole or as it streams; the `tokenizers` library does the work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kdbench.errors import BackendUnavailable, InvalidArgument, ModelError

BEGIN, END, MASK = "<|begin|>", "<|end|>", "<|mask|>"
# Their ids in the shipped vocabulary: MASK stands in no text, so a drafter's blocks can use it.
SPECIAL_TOKENS = (BEGIN, END, MASK)
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class TextTokenizer:
    """A byte-level BPE tokenizer.

    Attributes:
        backend: the ``tokenizers.Tokenizer``.
    """

    def __init__(self, backend: Any) -> None:
        # A user's text that spells a special token must not become one.
        backend.encode_special_tokens = True
        self.backend = backend

    @classmethod
    def from_directory(cls, directory: Path | str) -> TextTokenizer:
        """The tokenizer.json of a Hugging Face directory.

        Raises:
            ModelError: there is none, or it is malformed.
            BackendUnavailable: `tokenizers` is not installed.
        """
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise BackendUnavailable("reading text needs tokenizers: pip install kdbench[decode]") from error
        path = Path(directory) / "tokenizer.json"
        if not path.exists():
            raise ModelError(f"{path} is missing; token ids can be decoded without it, text cannot")
        try:
            backend = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise ModelError(f"{path} is no tokenizer: {error}") from error
        return cls(backend)

    @property
    def vocab_size(self) -> int:
        """Ids in all, special ones included."""
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``, nothing added; a special token's name in the text is ordinary text.

        Raises:
            InvalidArgument: the text holds lone surrogates, which no encoding can store.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"the text has a lone surrogate at character {error.start}") from error
        return list(self.backend.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``; special tokens are left out, bytes that are no UTF-8 come out as U+FFFD."""
        return str(self.backend.decode(list(ids), skip_special_tokens=True))

    def stream(self) -> StreamDecoder:
        """A decoder to feed with tokens as they come."""
        return StreamDecoder(self)


class StreamDecoder:
    """Text of a growing list of tokens, in pieces that never end inside a UTF-8 character.

    The pieces put together are ``decode`` of all tokens.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._waiting: list[int] = []
        self._shown = 0

    def push(self, ids: Sequence[int]) -> str:
        """The text that can be shown now; "" while a character is incomplete."""
        self._waiting += ids
        text = self._tokenizer.decode(self._waiting)
        # U+FFFD at the end may be a character's beginning, and then changes; what stands before it cannot.
        settled = text.rstrip(_REPLACEMENT)
        piece = settled[self._shown :]
        self._shown = len(settled)
        if settled == text:
            self._waiting, self._shown = [], 0
        return piece

    def finish(self) -> str:
        """What is left when no token will come any more."""
        piece = self._tokenizer.decode(self._waiting)[self._shown :]
        self._waiting, self._shown = [], 0
        return piece
