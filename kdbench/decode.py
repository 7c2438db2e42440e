# SPDX-License-Identifier: Apache-2.0
"""Decoding text: a model, a way of speculating, and what came of it.

    loop = DecodeLoop.load(backend="cpu")
    for chunk in loop.stream([loop.request("def main(")], Rounds("ddtree", tree_budget=64)):
        print(chunk.text, end="")

Whatever the mode, tree_budget, block_size and batch: the same request gives the same tokens, greedy or sampled, but for
near-ties that bf16 rounds (docs/decode.md).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kdbench import scheduler
from kdbench.decode_stats import Decoded, Summary, decoded, summary
from kdbench.engine import Engine
from kdbench.engine_types import EngineFull, Profile, Request, RoundClock, Rounds
from kdbench.errors import InvalidArgument, KdbenchError, ModelError

if TYPE_CHECKING:
    from kdbench.models.tokenizer import StreamDecoder, TextTokenizer

__all__ = [
    "Chunk",
    "DecodeLoop",
    "Decoded",
    "EngineFull",
    "Request",
    "RoundClock",
    "Rounds",
    "Summary",
    "shipped_model",
    "summary",
]

# What a request may have in all where a model would allow more: caches are set aside when the model is loaded.
_MAX_SEQ_LEN = 4096


@dataclass(frozen=True)
class Chunk:
    """What was new of one request.

    Attributes:
        index: which of the requests.
        tokens: that had not been seen.
        text: that is complete with them; a character's last byte may be behind its first by a chunk.
        decoded: the whole request, in its last chunk; else None.
    """

    index: int
    tokens: tuple[int, ...]
    text: str
    decoded: Decoded | None = None


class DecodeLoop:
    """A loaded engine and its tokenizer.

    Args:
        engine: used by nobody else.
        tokenizer: None for requests of token ids; texts are "" then.
        in_flight: rounds kept enqueued on CUDA; None for the loop's own choice.
    """

    def __init__(self, engine: Engine, tokenizer: TextTokenizer | None = None, *, in_flight: int | None = None) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.in_flight = in_flight

    @classmethod
    def load(
        cls,
        target: str | os.PathLike[str] | None = None,
        drafter: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> DecodeLoop:
        """The models in two Hugging Face directories, or the shipped ones.

        Args:
            target: directory of the target; None for the shipped target and drafter.
            drafter: directory of its drafter; None allows the mode "ar" only.
            options: as of ``kdbench.engine.Engine``, e.g. backend and max_batch.

        Raises:
            ModelError: no such model, or one of another architecture.
            BackendUnavailable: no library, GPU or BLAS here, or a library from before the engine.
        """
        if target is None:
            target, drafter = shipped_model()
        options.setdefault("max_seq_len", min(_MAX_SEQ_LEN, _max_positions(target)))
        engine = Engine.from_directory(target, drafter, **options)
        return cls(engine, _tokenizer(Path(target)))

    def request(self, prompt: str | Sequence[int], *, stop: bool = True, **fields: Any) -> Request:
        """A request for the continuation of ``prompt``.

        Args:
            prompt: text, which gets the model's begin token before it, or token ids as they are.
            stop: end behind the model's own end-of-text tokens.
            fields: max_new_tokens, temperature, seed, ..., as of ``Request``.
        """
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise InvalidArgument("this model has no tokenizer.json: give the prompt as token ids")
            begin = self.engine.target.bos_token_id
            prompt = [*([] if begin is None else [begin]), *self.tokenizer.encode(prompt)]
        if stop:
            fields.setdefault("stop_tokens", self.engine.target.eos_token_ids)
        return Request(tuple(prompt), **fields)

    def stream(self, requests: Sequence[Request], rounds: Rounds | None = None) -> Iterator[Chunk]:
        """Decode, and tell of tokens and text as they come; a request's last chunk holds its record.

        More requests than slots wait in line. One that cannot be served is "refused", and the others are not touched.
        """
        return self._run(requests, rounds or Rounds(), Profile.NONE)

    def generate(
        self, requests: Sequence[Request], rounds: Rounds | None = None, *, stages: bool = False
    ) -> list[Decoded]:
        """Decode to the end.

        Args:
            requests: see ``stream``.
            rounds: how they are decoded; None for the default tree.
            stages: also fill ``stage_seconds``, by a second run with time stamps between the stages: these slow a
                round, and so are never part of a run whose times count.

        Returns:
            One record a request, in their order.
        """
        chosen = rounds or Rounds()
        results = _collect(len(requests), self._run(requests, chosen, Profile.NONE))
        if not stages:
            return results
        seconds = self.profile(requests, chosen)
        return [dataclasses.replace(result, stage_seconds=seconds) for result in results]

    def profile(self, requests: Sequence[Request], rounds: Rounds | None = None) -> dict[str, float]:
        """Mean seconds a round in each stage, over a run of its own of these requests; {} where no round ran."""
        self.engine.stage_seconds()  # what an earlier run left
        _collect(len(requests), self._run(requests, rounds or Rounds(), Profile.STAGES))
        seconds, count = self.engine.stage_seconds()
        return {stage: value / count for stage, value in seconds.items()} if count else {}

    def round_clock(self, requests: Sequence[Request], rounds: Rounds | None = None) -> RoundClock:
        """How long the device is busy in a round and idle behind it, over a run of its own of these requests.

        Raises:
            BackendUnavailable: a library from before it.
        """
        self.engine.round_clock()  # what an earlier run left
        _collect(len(requests), self._run(requests, rounds or Rounds(), Profile.GAPS))
        return self.engine.round_clock()

    def close(self) -> None:
        """Give the engine's memory back."""
        self.engine.close()

    def __enter__(self) -> DecodeLoop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, requests: Sequence[Request], rounds: Rounds, profile: Profile) -> Iterator[Chunk]:
        texts = [_Text(self.tokenizer) for _ in requests]
        news = scheduler.run(self.engine, requests, rounds, in_flight=self.in_flight, profile=profile)
        for item in news:
            request, text = requests[item.index], texts[item.index]
            new = text.push(item.tokens, last=item.end is not None)
            record = None
            if item.refusal:
                record = Decoded(mode=rounds.mode, prompt_tokens=len(request.prompt), refusal=item.refusal)
            elif item.end is not None:
                record = decoded(
                    rounds.mode,
                    len(request.prompt),
                    text.tokens,
                    text.text,
                    request.stop_tokens,
                    item.end,
                    item.clock,
                    rounds.simulated_accept > 0 and rounds.mode != "ar",
                )
            yield Chunk(item.index, item.tokens, new, record)


@dataclass
class _Text:
    """A request's tokens and text so far."""

    tokenizer: TextTokenizer | None
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    _stream: StreamDecoder | None = field(init=False)

    def __post_init__(self) -> None:
        self._stream = self.tokenizer.stream() if self.tokenizer else None

    def push(self, tokens: Sequence[int], *, last: bool) -> str:
        self.tokens += tokens
        if self._stream is None:
            return ""
        new = self._stream.push(tokens) + (self._stream.finish() if last else "")
        self.text += new
        return new


def shipped_model() -> tuple[Path, Path]:
    """Directories of the target and the drafter that come with kdbench.

    Raises:
        ModelError: they are not there.
    """
    from kdbench import models

    folder = Path(models.__file__).parent / "tiny"
    pair = folder / "target", folder / "drafter"
    for path in pair:
        if not (path / "config.json").is_file():
            raise ModelError(f"the shipped model is not there: {path} has no config.json; name another with --model")
    return pair


def _max_positions(target: str | os.PathLike[str]) -> int:
    from kdbench.models.config import TargetConfig

    return TargetConfig.from_directory(Path(target)).max_position_embeddings


def _collect(count: int, chunks: Iterator[Chunk]) -> list[Decoded]:
    found: Mapping[int, Decoded] = {chunk.index: chunk.decoded for chunk in chunks if chunk.decoded is not None}
    if len(found) != count:
        raise KdbenchError(f"{count} requests went in, and {len(found)} came to an end")
    return [found[index] for index in range(count)]


def _tokenizer(directory: Path) -> TextTokenizer | None:
    from kdbench.models.tokenizer import TextTokenizer

    return TextTokenizer.from_directory(directory) if (directory / "tokenizer.json").is_file() else None
