# SPDX-License-Identifier: Apache-2.0
"""The verb ``kdbench decode``: text as the model says it, then what it took.

Bad input, and whatever keeps a text from being decoded here, is one sentence and exit code 1, as for every verb.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from kdbench import units
from kdbench.abi import BACKENDS
from kdbench.engine_types import DEFAULT_TREE_BUDGET, MODES, Rounds
from kdbench.errors import InvalidArgument
from kdbench.terminal import finish

if TYPE_CHECKING:
    from kdbench.decode import DecodeLoop
    from kdbench.decode_stats import Decoded

# A model may say anything, also what a terminal takes for a command.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclasses.dataclass(frozen=True)
class Asked:
    """The command line, read."""

    prompt: str
    target: Path | None
    drafter: Path | None
    backend: str
    rounds: Rounds
    fields: dict[str, Any]


def decode(
    prompt: Annotated[str, typer.Option("--prompt", help="Text to go on from; - reads it from stdin.")],
    model: Annotated[
        Path | None,
        typer.Option(
            "--model",
            help="Folder with target/ and drafter/, or a Hugging Face folder of a target. By default the shipped pair.",
        ),
    ] = None,
    mode: Annotated[str, typer.Option("--mode", help="ar, chain or ddtree.")] = "ddtree",
    backend: Annotated[str, typer.Option("--backend", help="cpu or cuda.")] = "cpu",
    tree_budget: Annotated[
        int, typer.Option("--tree-budget", help="Nodes of a draft tree, the root excluded.")
    ] = DEFAULT_TREE_BUDGET,
    topk: Annotated[
        int, typer.Option("--topk", help="Candidates a position; 0 is as many as the best tree can need.")
    ] = 0,
    block_size: Annotated[
        int, typer.Option("--block-size", help="Of the drafter's block, root included; 0 is its own.")
    ] = 0,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", help="Most tokens to emit.")] = 128,
    temperature: Annotated[float, typer.Option("--temperature", help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option("--seed", help="Of the draws.")] = 0,
    stages: Annotated[
        bool, typer.Option("--stages", help="Decode twice more, with time stamps between stages and between rounds.")
    ] = False,
    json_: Annotated[
        bool, typer.Option("--json", help="One JSON document on stdout, everything else on stderr.")
    ] = False,
) -> None:
    """Print what a model says, as it says it, and what it took."""
    asked = Asked(
        _prompt(prompt),
        *_directories(model),
        _chosen("--backend", backend, BACKENDS),
        Rounds(_chosen("--mode", mode, MODES), tree_budget, topk, block_size),
        {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed},
    )
    result, label = _decode(asked, stages, sys.stderr if json_ else sys.stdout)
    content = {"schema": "kdbench/decode/1", "model": label, "backend": backend, **result.document()}
    finish(json_, content, Text("\n" + _told(result)))


def _decode(asked: Asked, stages: bool, out: IO[str]) -> tuple[Decoded, str]:
    from kdbench.decode import DecodeLoop, shipped_model

    target, drafter = (asked.target, asked.drafter) if asked.target else shipped_model()
    if asked.rounds.mode == "ar":
        drafter = None
    elif drafter is None:
        raise InvalidArgument(f"--mode {asked.rounds.mode} needs a drafter, and {target.parent} has no drafter/")
    budget = asked.rounds.tree_budget if asked.rounds.mode == "ddtree" else 1
    with DecodeLoop.load(target, drafter, backend=asked.backend, max_tree_budget=max(32, budget)) as loop:
        request = loop.request(asked.prompt, **asked.fields)
        result = _shown(loop, request, asked.rounds, out)
        if result.refusal:
            raise InvalidArgument(result.refusal)
        if stages:
            seconds = loop.profile([request], asked.rounds)
            clock = loop.round_clock([request], asked.rounds)
            result = dataclasses.replace(result, stage_seconds=seconds, idle_fraction=clock.idle_fraction)
    return result, str(target)


def _shown(loop: DecodeLoop, request: Any, rounds: Rounds, out: IO[str]) -> Decoded:
    result = None
    for chunk in loop.stream([request], rounds):
        out.write(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", chunk.text))
        out.flush()
        result = chunk.decoded or result
    assert result is not None  # the stream ends with the request's record
    return result


def _told(result: Decoded) -> str:
    """The line under the text."""
    parts = [f"{units.count(len(result.tokens), 'token')} ({result.finish_reason})", result.mode]
    if result.acceptance_length is not None:
        parts.append(f"acceptance_length {result.acceptance_length:.2f} over {units.count(result.rounds, 'round')}")
    if result.output_tok_s is not None:
        parts.append(f"{result.output_tok_s:.4g} tok/s")
    for name, seconds in (("ttft", result.ttft_s), ("tpot", result.tpot_s)):
        if seconds is not None:
            parts.append(f"{name} {units.quantity(seconds, 'seconds')}")
    told = ", ".join(parts)
    if result.stage_seconds:
        whole = sum(result.stage_seconds.values())
        stages = (
            f"{stage} {units.quantity(seconds, 'seconds')} ({100 * seconds / whole:.0f} %)"
            for stage, seconds in result.stage_seconds.items()
        )
        told += f"\na round by stage, timed apart: {', '.join(stages)}"
    if result.idle_fraction is not None:
        told += f"; idle between rounds {100 * result.idle_fraction:.1f} %"
    return told


def _prompt(text: str) -> str:
    if text == "-":
        try:
            text = sys.stdin.buffer.read().decode()
        except UnicodeDecodeError as error:
            raise InvalidArgument(f"stdin is no UTF-8: byte {error.start}") from error
    if not text:
        raise InvalidArgument("the prompt is empty")
    return text


def _directories(model: Path | None) -> tuple[Path | None, Path | None]:
    if model is None:
        return None, None
    if not model.is_dir():
        raise InvalidArgument(f"no model directory at {model}")
    if (model / "target").is_dir():
        return model / "target", model / "drafter" if (model / "drafter").is_dir() else None
    return model, None


def _chosen(option: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise InvalidArgument(f"{option} {value}: choose from {', '.join(known)}")
    return value
