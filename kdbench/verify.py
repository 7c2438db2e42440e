# SPDX-License-Identifier: Apache-2.0
"""Are the kernels right? Every workload against its golden output, on every backend that is there.

``python -m kdbench.verify`` checks, and exits with 1 when an output is wrong. ``--write-golden`` is for maintainers:
it adds entries for new workloads from the oracles, and never changes one that exists.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kdbench import golden, native, reference, sampled_attention, workloads
from kdbench.errors import BackendUnavailable, KernelError
from kdbench.timing import Subject
from kdbench.tree import DraftTree


@dataclass(frozen=True)
class Outcome:
    """What checking one workload on one backend found.

    Attributes:
        status: "ok", "wrong" (the output is not the golden one, or the kernel failed) or "n/a".
        detail: why, when it is not "ok".
    """

    kernel: str
    workload: str
    backend: str
    status: str
    detail: str = ""


def verify(
    kernels: Sequence[str] = workloads.KERNELS,
    backends: Sequence[str] = native.BACKENDS,
    tag: str | None = None,
) -> Iterator[Outcome]:
    """Check the workloads of ``kernels`` one by one, each in fresh, poisoned outputs."""
    missing = {backend: native.available(backend) for backend in backends}
    for workload in workloads.every():
        if workload.kernel not in kernels or (tag is not None and tag not in workload.tags):
            continue
        for backend in backends:
            if backend not in workload.backends:
                continue
            reason = missing[backend]
            status, detail = ("n/a", reason) if reason else _check(workload, backend)
            yield Outcome(workload.kernel, workload.name, backend, status, detail)


def _check(workload: workloads.Workload, backend: str) -> tuple[str, str]:
    try:
        Subject(workload, backend).verify()
    except BackendUnavailable as error:
        return "n/a", str(error)
    except (golden.DigestMismatch, KernelError) as error:
        return "wrong", str(error)
    return "ok", ""


def golden_entry(workload: workloads.Workload) -> dict[str, Any]:
    """The entry that the oracles give: digest of the inputs, cost, and the outputs' digest or sketch."""
    arrays = workload.inputs()
    cost = workload.computed_cost()
    return {
        "kernel": workload.kernel,
        "inputs": golden.digest(arrays),
        "bytes_moved": cost.bytes_moved,
        "flops": cost.flops,
        "outputs": _oracle(workload, arrays),
    }


def _oracle(workload: workloads.Workload, arrays: dict[str, Any]) -> dict[str, Any]:
    if workload.kernel == "tree_build":
        return golden.exact(reference.tree_build(**arrays, tree_budget=workload.shape["budget"]).arrays())
    if workload.kernel == "tree_accept":
        tree = DraftTree.from_parents(
            arrays["token_ids"],
            arrays["parents"],
            arrays["num_nodes"],
            arrays["num_nodes"] * 0,
            workload.shape["horizon"],
        )
        return golden.exact(vars(reference.tree_accept(tree, arrays["target_tokens"])))
    if workload.kernel == "verify_attn":
        rows = sampled_attention.sample_rows(workload.seed, arrays["num_nodes"], workload.shape["heads"])
        out, lse = sampled_attention.attend(arrays, rows, workloads.SOFTMAX_SCALE)
        return golden.attention_sketch(arrays["num_nodes"], rows, out, lse)
    answer = reference.draft_topk(arrays["logits"], workload.shape["topk"])
    return golden.topk_sketch(answer.log_probs, answer.token_ids, answer.status)


def write_golden() -> list[str]:
    """Add entries for workloads that have none to golden.json; returns their names."""
    entries = dict(golden.load()) if golden.PATH.exists() else {}
    added = [workload for workload in workloads.every() if workload.name not in entries]
    for workload in added:
        print(f"{workload.kernel} {workload.name}", file=sys.stderr)
        entries[workload.name] = golden_entry(workload)
    lines = [f"{json.dumps(name)}: {json.dumps(entry, allow_nan=False)}" for name, entry in entries.items()]
    text = f'{{"schema": "{golden.SCHEMA}", "workloads": {{\n' + ",\n".join(lines) + "\n}}\n"
    temporary = golden.PATH.with_suffix(".tmp")
    temporary.write_text(text, "utf-8")
    os.replace(temporary, golden.PATH)
    golden.load.cache_clear()
    return [workload.name for workload in added]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns 0 when everything that could be checked is right, 1 otherwise."""
    parser = argparse.ArgumentParser(
        prog="python -m kdbench.verify", description="Check kernels against golden outputs."
    )
    parser.add_argument("--kernel", action="append", choices=workloads.KERNELS, help="only this kernel (repeatable)")
    parser.add_argument("--backend", action="append", choices=native.BACKENDS, help="only this backend (repeatable)")
    parser.add_argument("--tag", help="only workloads with this tag, e.g. quick")
    parser.add_argument("--write-golden", action="store_true", help="add golden outputs of new workloads, and stop")
    chosen = parser.parse_args(arguments)
    if chosen.write_golden:
        added = write_golden()
        print(f"{len(added)} golden outputs added to {golden.PATH}")
        return 0
    wrong = 0
    for outcome in verify(chosen.kernel or workloads.KERNELS, chosen.backend or native.BACKENDS, chosen.tag):
        wrong += outcome.status == "wrong"
        print(f"{outcome.status:5} {outcome.kernel:11} {outcome.workload:24} {outcome.backend:4} {outcome.detail}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
