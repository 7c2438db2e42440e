# SPDX-License-Identifier: Apache-2.0
"""``python -m kdbench.decode_sweep``: does speculation ever change what the shipped model says?

Many prompts, greedily, for every tree_budget and block_size, against the engine's own plain decoding on the same
backend. A text counts as equal, or as parted at a near-tie (docs/decode.md, "Exactness"), or as wrong: then the exit
code is 2.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence

from kdbench import decode_golden
from kdbench.decode import Decoded, DecodeLoop, Request, Rounds, shipped_model, summary
from kdbench.decode_golden_writer import Judge, held_out_prompts, reference
from kdbench.models.tokenizer import TextTokenizer
from kdbench.models.train.corpus import standard_library

TREE_BUDGETS = (8, 15, 64, 256)
BLOCK_SIZES = (4, 8)


def sweep(
    loop: DecodeLoop, requests: Sequence[Request], ways: Sequence[Rounds], judge: Callable[[], Judge]
) -> list[dict[str, object]]:
    """Decode the requests plainly, then in each way, and compare.

    Args:
        loop: with a drafter.
        requests: greedy ones.
        ways: of speculating.
        judge: makes the reference; called when a text differs.

    Returns:
        A record a way: mode, tree_budget, block_size, texts, equal, near_ties, wrong (indices of requests),
        acceptance_length.
    """
    plain = loop.generate(requests, Rounds("ar"))
    records: list[dict[str, object]] = []
    for rounds in ways:
        found = loop.generate(requests, rounds)
        kinds = [_kind(loop, *texts, judge) for texts in zip(requests, plain, found, strict=True)]
        records.append(
            {
                "mode": rounds.mode,
                "tree_budget": rounds.tree_budget if rounds.mode == "ddtree" else None,
                "block_size": rounds.block_size,
                "texts": len(kinds),
                "equal": kinds.count("equal"),
                "near_ties": kinds.count("near_tie"),
                "wrong": [index for index, kind in enumerate(kinds) if kind == "wrong"],
                "acceptance_length": summary(found).acceptance_length,
            }
        )
    return records


def _kind(loop: DecodeLoop, request: Request, plain: Decoded, found: Decoded, judge: Callable[[], Judge]) -> str:
    if plain.tokens == found.tokens:
        return "equal"
    pairs = zip(plain.tokens, found.tokens, strict=False)
    at = next((index for index, (a, b) in enumerate(pairs) if a != b), None)
    if at is None:
        return "wrong"  # one of them ends early
    known = [*request.prompt, *plain.tokens[:at]]
    ((_, gap),) = judge()(known, len(known) - 1)
    return "near_tie" if gap < decode_golden.NEAR_TIE[loop.engine.dtype] else "wrong"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 0 when no text is wrong, else 2."""
    parser = argparse.ArgumentParser(prog="python -m kdbench.decode_sweep", description=__doc__.split("\n\n")[0])
    parser.add_argument("--backend", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default=None, choices=("f32", "bf16"), help="default: the backend's own")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--tree-budgets", type=int, nargs="*", default=TREE_BUDGETS)
    parser.add_argument("--block-sizes", type=int, nargs="*", default=BLOCK_SIZES)
    parser.add_argument("--batch", type=int, default=8)
    given = parser.parse_args(arguments)
    target, drafter = shipped_model()
    ways = [Rounds("chain", block_size=size) for size in given.block_sizes]
    ways += [Rounds("ddtree", budget, block_size=size) for size in given.block_sizes for budget in given.tree_budgets]
    made: list[Judge] = []

    def judge() -> Judge:
        if not made:
            made.append(reference(target))
        return made[0]

    with DecodeLoop.load(
        target, drafter, backend=given.backend, dtype=given.dtype, max_batch=given.batch, max_seq_len=512
    ) as loop:
        texts = standard_library().held_out.values()
        prompts = held_out_prompts(TextTokenizer.from_directory(target), texts, given.prompts)
        requests = [loop.request(prompt, max_new_tokens=given.new_tokens, stop=False) for prompt in prompts]
        records = sweep(loop, requests, ways, judge)
        dtype = loop.engine.dtype
    document = {"schema": "kdbench/decode-sweep/1", "backend": given.backend, "dtype": dtype, "ways": records}
    print(json.dumps(document))
    return 2 if any(record["wrong"] for record in records) else 0


if __name__ == "__main__":
    sys.exit(main())
