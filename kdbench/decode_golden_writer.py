# SPDX-License-Identifier: Apache-2.0
"""``python -m kdbench.decode_golden_writer``: golden tokens of the shipped model, from the PyTorch reference.

Prompts come from held-out text: windows of some dozens of tokens. What is there for another checkpoint of
the same name is replaced: its series begin anew then, and CHANGELOG.md says so.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kdbench import counter_bits, decode_golden
from kdbench.decode import shipped_model
from kdbench.decode_workloads import NEW_TOKENS
from kdbench.engine import Engine
from kdbench.engine_types import Request, Rounds
from kdbench.errors import KdbenchError

NUM_PROMPTS = 24
_SEED = 9001
_SHORTEST, _LONGEST = 24, 88
_FEWEST_LINES = 40
# From a text and a place in it to the best token behind each of its tokens from there on, and its gap.
Judge = Callable[[Sequence[int], int], list[tuple[int, float]]]


def continued(
    target: Path, prompts: Iterable[Sequence[int]], new_tokens: int
) -> Iterator[tuple[list[int], list[float]]]:
    """Greedy tokens and their gaps for each prompt, in f32 with a cache of bf16 latents, as the engine has it.

    The engine guesses a whole text, and one forward of the reference says up to where it is right, and what comes next.
    """
    with Engine.from_directory(target, dtype="f32", max_seq_len=_LONGEST + new_tokens, max_tree_budget=1) as engine:
        judge = reference(target)
        for prompt in prompts:
            tokens: list[int] = []
            gaps: list[float] = []
            while len(tokens) < new_tokens:
                known = [*prompt, *tokens]
                guess = _plain(engine, known, new_tokens - len(tokens))
                # Row i says what follows the first i guesses.
                for place, (best, gap) in enumerate(judge([*known, *guess[:-1]], len(known) - 1)):
                    tokens.append(best)
                    gaps.append(gap)
                    if best != guess[place]:
                        break
            yield tokens, gaps


def _plain(engine: Engine, prompt: Sequence[int], count: int) -> tuple[int, ...]:
    slot = engine.admit(Request(prompt, count))
    if count > 1:
        engine.run(Rounds("ar"), count - 1)
    said = engine.progress(slot, wait=True).tokens
    engine.release(slot)
    return said


def reference(target: Path) -> Judge:
    """What PyTorch says in f32, with a cache of bf16 latents as the engine has it."""
    import torch

    from kdbench.models.torch_target import LatentCache, TorchTarget

    class RoundedCache(LatentCache):
        def extend(self, layer: int, rows: Any) -> Any:
            return super().extend(layer, rows.to(torch.bfloat16).to(rows.dtype))

    model = TorchTarget.from_directory(target)

    def judged(text: Sequence[int], first: int) -> list[tuple[int, float]]:
        with torch.no_grad():
            hidden = model(torch.tensor([list(text)]), cache=RoundedCache(model.config.num_hidden_layers)).hidden
            logits = model.lm_head(hidden[0, first:])
            top = logits.topk(2, -1).values
            gaps = (top[:, 0] - top[:, 1]) / logits.abs().amax(-1)
        return [(int(best), float(f"{float(gap):.3g}")) for best, gap in zip(logits.argmax(-1), gaps, strict=True)]

    return judged


def held_out_prompts(tokenizer: Any, texts: Iterable[str], count: int = NUM_PROMPTS) -> list[list[int]]:
    """``count`` windows of 24 to 88 tokens, each from the beginning of a line, the texts in turns.

    Raises:
        KdbenchError: no text is long enough.
    """
    long = [lines for lines in (text.splitlines(keepends=True) for text in texts) if len(lines) >= _FEWEST_LINES]
    if not long:
        raise KdbenchError(f"no held-out text has {_FEWEST_LINES} lines")
    lengths = counter_bits.words(_SEED, 0, count) % (_LONGEST - _SHORTEST + 1)
    places = counter_bits.words(_SEED + 1, 0, count)
    found = []
    for index in range(count):
        lines = long[index % len(long)]
        # A window's tokens fit into the last lines but for very short ones.
        at = int(places[index] % (len(lines) - _FEWEST_LINES + 1))
        found.append(tokenizer.encode("".join(lines[at:]))[: _SHORTEST + int(lengths[index])])
    return found


def entry(
    target: Path, drafter: Path, prompts: Sequence[Sequence[int]], new_tokens: int = NEW_TOKENS
) -> dict[str, Any]:
    """What decode_golden.json holds of one model."""
    said = list(continued(target, prompts, new_tokens))
    return {
        "model_sha256": decode_golden.model_digest((target, drafter)),
        "prompts": [list(prompt) for prompt in prompts],
        "tokens": [tokens for tokens, _ in said],
        "gaps": [gaps for _, gaps in said],
    }


def write(model: str, content: dict[str, Any], path: Path = decode_golden.PATH) -> None:
    """Put one model's entry into the file, the others untouched."""
    document: dict[str, Any]
    document = json.loads(path.read_text("utf-8")) if path.exists() else {"schema": decode_golden.SCHEMA, "models": {}}
    document["models"][model] = content
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(document, separators=(",", ":")) + "\n", "utf-8")
    os.replace(temporary, path)
    decode_golden.load.cache_clear()


def main() -> None:
    """Write the entry of the shipped model."""
    from kdbench.models.tokenizer import TextTokenizer
    from kdbench.models.train.corpus import standard_library

    target, drafter = shipped_model()
    prompts = held_out_prompts(TextTokenizer.from_directory(target), standard_library().held_out.values())
    write("tiny", entry(target, drafter, prompts))
    print(f"golden tokens of {NUM_PROMPTS} prompts written to {decode_golden.PATH}", file=sys.stderr)


if __name__ == "__main__":
    main()
