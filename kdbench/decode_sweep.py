# SPDX-License-Identifier: Apache-2.0
"""``python -m kdbench.decode_sweep``: does speculation ever change what the shipped model says?

Many prompts, greedily, for every tree_budget and block_size, against the engine's own plain decoding on the same
backend. A text counts as equal, or as parted at a near-tie (docs/decode.md, "Exactness"), or as wrong: then the exit
code is 2. One line a way goes to ``results/decode/<machine>.jsonl`` where ``--results`` names the folder.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kdbench import decode_golden, decode_records, provenance
from kdbench.decode import Decoded, DecodeLoop, Request, Rounds, shipped_model, summary
from kdbench.decode_golden_writer import Judge, held_out_prompts, reference
from kdbench.models.tokenizer import TextTokenizer
from kdbench.models.train.corpus import standard_library

TREE_BUDGETS = (8, 15, 64, 256)
BLOCK_SIZES = (4, 8)
# Of held_out_prompts, with a begin token.
_LONGEST_PROMPT = 96


def sweep(
    loop: DecodeLoop, requests: Sequence[Request], ways: Sequence[Rounds], judge: Callable[[], Judge]
) -> Iterator[dict[str, Any]]:
    """Decode the requests plainly, then in each way, and compare.

    Args:
        loop: with a drafter.
        requests: greedy ones.
        ways: of speculating.
        judge: makes the reference; called once, when a text differs.

    Yields:
        A record a way, as it is done: mode, tree_budget, block_size, texts, equal, near_ties, wrong (indices of
        requests), widest_gap (of the near-ties), acceptance_length, tokens, seconds.
    """
    gaps = _Gaps(judge)
    plain = loop.generate(requests, Rounds("ar"))
    for rounds in ways:
        start = time.perf_counter()
        found = loop.generate(requests, rounds)
        seconds = time.perf_counter() - start
        bound = decode_golden.NEAR_TIE[loop.engine.dtype]
        parted = {
            index: gaps.at(request, ours, theirs)
            for index, (request, ours, theirs) in enumerate(zip(requests, plain, found, strict=True))
            if ours.tokens != theirs.tokens
        }
        near = [gap for gap in parted.values() if gap is not None and gap < bound]
        yield {
            "mode": rounds.mode,
            "tree_budget": rounds.tree_budget if rounds.mode == "ddtree" else None,
            "block_size": rounds.block_size,
            "texts": len(requests),
            "equal": len(requests) - len(parted),
            "near_ties": len(near),
            "wrong": [index for index, gap in parted.items() if gap is None or gap >= bound],
            "widest_gap": max(near, default=None),
            "acceptance_length": summary(found).acceptance_length,
            "tokens": sum(len(result.tokens) for result in found),
            "seconds": round(seconds, 3),
        }


class _Gaps:
    """How far apart the two best tokens are where texts part; ways part at the same places again and again."""

    def __init__(self, judge: Callable[[], Judge]) -> None:
        self._make = judge
        self._judge: Judge | None = None
        self._known: dict[tuple[int, ...], float] = {}

    def at(self, request: Request, plain: Decoded, found: Decoded) -> float | None:
        """The gap at the first difference; None where one of the texts ends there."""
        pairs = zip(plain.tokens, found.tokens, strict=False)
        place = next((index for index, (a, b) in enumerate(pairs) if a != b), None)
        if place is None:
            return None
        known = (*request.prompt, *plain.tokens[:place])
        if known not in self._known:
            self._judge = self._judge or self._make()
            ((_, self._known[known]),) = self._judge(known, len(known) - 1)
        return self._known[known]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 0 when no text is wrong, else 2."""
    parser = argparse.ArgumentParser(prog="python -m kdbench.decode_sweep", description=__doc__.split("\n\n")[0])
    parser.add_argument("--backend", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default=None, choices=("f32", "bf16"), help="default: the backend's own")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--tree-budgets", type=int, nargs="*", default=TREE_BUDGETS)
    parser.add_argument("--block-sizes", type=int, nargs="*", default=BLOCK_SIZES)
    parser.add_argument("--batch", type=int, default=None, help="slots; default: 4 on the CPU, 16 on a GPU")
    parser.add_argument("--results", type=Path, default=None, help="folder whose decode/<machine>.jsonl gets the lines")
    given = parser.parse_args(arguments)
    target, drafter = shipped_model()
    ways = [Rounds("chain", block_size=size) for size in given.block_sizes]
    ways += [Rounds("ddtree", budget, block_size=size) for size in given.block_sizes for budget in given.tree_budgets]
    command = shlex.join(["python", "-m", "kdbench.decode_sweep", *(sys.argv[1:] if arguments is None else arguments)])
    recorder = decode_records.Recorder(given.results, command)
    records: list[dict[str, Any]] = []
    with DecodeLoop.load(
        target,
        drafter,
        backend=given.backend,
        dtype=given.dtype,
        max_batch=given.batch or (4 if given.backend == "cpu" else 16),
        max_seq_len=_LONGEST_PROMPT + given.new_tokens,
        max_tree_budget=max([32, *given.tree_budgets]),
    ) as loop:
        texts = standard_library().held_out.values()
        prompts = held_out_prompts(TextTokenizer.from_directory(target), texts, given.prompts)
        requests = [loop.request(prompt, max_new_tokens=given.new_tokens, stop=False) for prompt in prompts]
        for record in sweep(loop, requests, ways, lambda: reference(target)):
            records.append(record)
            recorder.record(provenance.SWEEP, loop.engine, "tiny", record)
            print(_told(record), file=sys.stderr, flush=True)
        dtype = loop.engine.dtype
    print(json.dumps({"schema": provenance.SWEEP, "backend": given.backend, "dtype": dtype, "ways": records}))
    return 2 if any(record["wrong"] for record in records) else 0


def _told(record: dict[str, Any]) -> str:
    way = "chain" if record["tree_budget"] is None else f"ddtree {record['tree_budget']}"
    return (
        f"{way}, block {record['block_size']}: {record['equal']} of {record['texts']} texts equal, "
        f"{record['near_ties']} parted at a near-tie, {len(record['wrong'])} wrong; "
        f"acceptance_length {record['acceptance_length']:.2f}, {record['seconds']:.1f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
