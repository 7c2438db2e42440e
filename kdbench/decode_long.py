# SPDX-License-Identifier: Apache-2.0
"""``python -m kdbench.decode_long``: a server in small, for long: does anything drift, grow or get stuck?

Long greedy texts of the shipped pair, more requests than slots, and pages for fewer than there are slots. Requests join
as others leave; some stop early, some can never be served. Then the same again, a few times over. What is said is held
against plain decoding, and some texts token by token against the PyTorch reference up to their ends. Exit code 2:
something was wrong. With ``--results`` one line goes to ``results/decode/<machine>.jsonl``.
"""

from __future__ import annotations

import argparse
import json
import resource
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from kdbench import decode_golden, decode_records, provenance
from kdbench.decode import Decoded, DecodeLoop, EngineFull, Request, Rounds, shipped_model, summary
from kdbench.decode_golden_writer import Judge, held_out_prompts, reference
from kdbench.models.tokenizer import TextTokenizer
from kdbench.models.train.corpus import standard_library

# Of held_out_prompts, with a begin token.
_LONGEST_PROMPT = 96
_PAGE_SIZE = 64
# A process's own bookkeeping comes and goes by some pages.
_STEADY_BYTES = 4 << 20
_LEAST_LEAK = 1 << 16


def stopping(requests: Sequence[Request], plain: Sequence[Decoded]) -> tuple[list[Request], list[tuple[int, ...]]]:
    """Every third request with a stop token that its text has somewhere, and what must then be said.

    The token is the one of the text's first third whose first place is the latest, so that texts end here and there.
    """
    asked, wanted = [], []
    for index, (request, result) in enumerate(zip(requests, plain, strict=True)):
        text = result.tokens
        if index % 3 == 0:
            early = text[: max(2, len(text) // 3)]
            stop = max(set(early), key=early.index)
            request, text = replace(request, stop_tokens=(stop,)), text[: text.index(stop) + 1]
        asked.append(request)
        wanted.append(text)
    return asked, wanted


def hopeless(loop: DecodeLoop) -> list[Request]:
    """Requests that no engine of this size can serve: too long a prompt, too much to say, a token that is none."""
    limit = loop.engine.max_seq_len
    return [
        Request((5,) * (limit + 1), 1),
        Request((5,) * 8, limit),
        Request((5, loop.engine.target.vocab_size), 8),
    ]


def full(loop: DecodeLoop, request: Request) -> str:
    """What the engine says when it is asked for one request more than it has pages for; all slots are free again then.

    Raises:
        KdbenchError: see ``Engine.admit``.
    """
    slots = []
    try:
        while True:
            slots.append(loop.engine.admit(request))
    except EngineFull as error:
        return str(error)
    finally:
        for slot in slots:
            loop.engine.release(slot)


def run(
    loop: DecodeLoop, requests: Sequence[Request], rounds: Rounds, judge: Judge, *, repeats: int, judged: int
) -> dict[str, Any]:
    """The whole of it.

    Args:
        loop: with a drafter, and pages for fewer requests than slots.
        requests: greedy ones without stop tokens.
        rounds: of speculating.
        judge: the reference.
        repeats: how often the same requests are decoded, two at least.
        judged: texts that the reference reads to their ends.

    Returns:
        What the line in the results holds; "wrong" lists what is not as it must be.
    """
    bound = decode_golden.NEAR_TIE[loop.engine.dtype]
    asked, wanted = stopping(requests, loop.generate(requests, Rounds("ar")))
    bad = hopeless(loop)
    places = [1 + each * len(asked) // len(bad) for each in range(len(bad))]
    line = list(asked)
    for place, request in zip(reversed(places), reversed(bad), strict=True):
        line.insert(place, request)
    wrong: list[str] = []
    host, device = [], []
    first: list[tuple[int, ...]] = []
    said: list[tuple[int, ...]] = []
    start = time.perf_counter()
    for _ in range(repeats):
        found = loop.generate(line, rounds)
        refused = [found.pop(place) for place in reversed([at + i for i, at in enumerate(places)])]
        wrong += [f"a hopeless request was {one.finish_reason}" for one in refused if one.finish_reason != "refused"]
        wrong += [f"request {i} was refused: {one.refusal}" for i, one in enumerate(found) if one.refusal]
        said = [one.tokens for one in found]
        first = first or said
        if said != first:
            wrong.append("the same requests came to other texts the next time")
        host.append(_resident_bytes())
        device.append(_device_bytes(loop))
    seconds = time.perf_counter() - start
    whole = summary(found)
    parted = [index for index, text in enumerate(said) if text != wanted[index]]
    if parted and loop.engine.backend == "cpu":
        wrong += [f"request {index} says something else than plain decoding" for index in parted]
    near, read = 0, 0
    for index in parted if loop.engine.backend == "cuda" else []:
        at = next((i for i, (a, b) in enumerate(zip(said[index], wanted[index], strict=False)) if a != b), None)
        if at is None:
            wrong.append(f"request {index} ends elsewhere than plain decoding")
            continue
        known = [*asked[index].prompt, *said[index][:at]]
        ((_, gap),) = judge(known, len(known) - 1)
        if gap >= bound:
            wrong.append(
                f"request {index} parts from plain decoding at token {at}, where {gap:.2g} is between the best"
            )
    whole_texts = [index for index, request in enumerate(asked) if not request.stop_tokens]
    for index in whole_texts[:: max(1, len(whole_texts) // judged)][:judged]:
        text = [*asked[index].prompt, *said[index]]
        for at, (best, gap) in enumerate(judge(text[:-1], len(asked[index].prompt) - 1)):
            read += 1
            if best == said[index][at]:
                continue
            near += 1
            if gap >= bound:
                wrong.append(f"token {at} of request {index} is {said[index][at]}, and {best} is {gap:.2g} ahead")
    if host[-1] - host[1] > _STEADY_BYTES:
        wrong.append(f"resident bytes after each time: {host}")
    # Other processes' memory comes and goes; what leaks grows each time.
    if all(b - a > _LEAST_LEAK for a, b in pairwise(device)):
        wrong.append(f"bytes of the GPU in use after each time: {device}")
    return {
        "mode": rounds.mode,
        "tree_budget": rounds.tree_budget,
        "requests": len(asked),
        "repeats": repeats,
        "max_new_tokens": max(request.max_new_tokens for request in asked),
        "slots": loop.engine.max_batch,
        "pages": loop.engine.info()["pages"],
        "tokens": sum(map(len, said)),
        "stopped_early": sum(one.finish_reason == "stop" for one in found),
        "refused": len(bad),
        "refusals": [one.refusal for one in reversed(refused)],
        "equal_to_plain": len(asked) - len(parted),
        "judged_tokens": read,
        "near_ties": near,
        "acceptance_length": whole.acceptance_length,
        "full": full(loop, asked[1]),
        "host_bytes": host,
        "device_bytes": device,
        "seconds": round(seconds, 3),
        "wrong": wrong,
    }


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text("utf-8").split()[1]) * resource.getpagesize()


def _device_bytes(loop: DecodeLoop) -> int:
    """Memory of the GPU in use, of all processes; 0 on the CPU."""
    if loop.engine.backend == "cpu":
        return 0
    import cupy

    free, total = cupy.cuda.runtime.memGetInfo()
    return int(total - free)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 0 when nothing is wrong, else 2."""
    parser = argparse.ArgumentParser(prog="python -m kdbench.decode_long", description=__doc__.split("\n\n")[0])
    parser.add_argument("--backend", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default=None, choices=("f32", "bf16"), help="default: the backend's own")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=2000)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--tree-budget", type=int, default=15)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--judged", type=int, default=8, help="texts that the reference reads to their ends")
    parser.add_argument("--results", type=Path, default=None, help="folder whose decode/<machine>.jsonl gets the line")
    given = parser.parse_args(arguments)
    if given.repeats < 2 or given.slots < 3:
        parser.error("--repeats must be 2 at least, and --slots 3")
    target, drafter = shipped_model()
    longest = _LONGEST_PROMPT + given.new_tokens
    pages_each = -(-(longest + given.tree_budget + 1) // _PAGE_SIZE)
    command = shlex.join(["python", "-m", "kdbench.decode_long", *(sys.argv[1:] if arguments is None else arguments)])
    with DecodeLoop.load(
        target,
        drafter,
        backend=given.backend,
        dtype=given.dtype,
        max_batch=given.slots,
        max_seq_len=longest,
        max_tree_budget=given.tree_budget,
        page_size=_PAGE_SIZE,
        num_pages=(given.slots - 2) * pages_each + 1,
    ) as loop:
        texts = standard_library().held_out.values()
        prompts = held_out_prompts(TextTokenizer.from_directory(target), texts, given.requests)
        requests = [loop.request(prompt, max_new_tokens=given.new_tokens, stop=False) for prompt in prompts]
        rounds = Rounds("ddtree", given.tree_budget)
        judged = run(loop, requests, rounds, reference(target), repeats=given.repeats, judged=given.judged)
        recorder = decode_records.Recorder(given.results, command)
        print(json.dumps(recorder.record(provenance.LONG, loop.engine, "tiny", judged)))
    return 2 if judged["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
