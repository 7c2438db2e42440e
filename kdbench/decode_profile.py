# SPDX-License-Identifier: Apache-2.0
"""``python -m kdbench.decode_profile``: where a round's time goes, of each way of decoding, side by side.

One line a workload: tokens a second and the two numbers that make them, seconds in each stage, and how long the device
waits between two rounds. Stages and waits are read from the device's own clock, in runs of their own. With
``--results`` the lines go to ``results/decode/<machine>.jsonl``. Exit code 2: a workload said something wrong.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from kdbench import decode_clock, decode_records, decode_workloads, provenance
from kdbench.decode_subject import DecodeSubject
from kdbench.errors import BackendUnavailable, KdbenchError
from kdbench.golden import DigestMismatch
from kdbench.timing import MeasuringError

# What speculation adds to the two models' own work, draft_topk apart from the rest of its stage.
TREE_KERNELS = ("draft_topk", "tree_build", "tree_accept")


def profile(subject: DecodeSubject, samples: int = decode_workloads.SAMPLES) -> dict[str, Any]:
    """Measure a workload that is verified.

    Returns:
        workload, mode, tree_budget, batch, simulated_accept; round_s (median), round_s_samples, acceptance_length,
        output_tok_s, divergences; stage_seconds (draft without draft_topk, which stands beside it; what a stamp itself
        takes is subtracted) and stamp_seconds; tree_kernels_fraction, of a round; idle_seconds behind a round,
        idle_fraction.

    Raises:
        BackendUnavailable: a library from before the engine's clock.
    """
    workload = subject.workload
    measured = decode_clock.measure(subject, samples)
    gaps = decode_clock.round_clock(subject, samples)
    raw = subject.stage_seconds()
    clock = subject.engine.round_clock()
    stamp = clock.stamp_seconds / clock.stage_rounds
    topk = clock.draft_topk_seconds / clock.stage_rounds
    stages = {
        "draft": max(0.0, raw["draft"] - topk - stamp),
        "draft_topk": max(0.0, topk - stamp),
        **{name: max(0.0, raw[name] - stamp) for name in ("tree_build", "verify", "tree_accept", "commit")},
    }
    seconds = median(measured.round_s)
    return {
        "workload": workload.name,
        "mode": workload.mode,
        "tree_budget": workload.tree_budget or None,
        "batch": workload.batch,
        "simulated_accept": workload.simulated_accept or None,
        "round_s": seconds,
        "round_s_samples": list(measured.round_s),
        "acceptance_length": measured.acceptance_length,
        "output_tok_s": workload.batch * measured.acceptance_length / seconds,
        "divergences": measured.divergences,
        "stage_seconds": stages,
        "stamp_seconds": stamp,
        "tree_kernels_fraction": sum(stages[name] for name in TREE_KERNELS) / seconds,
        "idle_seconds": gaps.idle_seconds / gaps.gaps if gaps.gaps else None,
        "idle_fraction": gaps.idle_fraction,
    }


def table(records: Sequence[Mapping[str, Any]]) -> str:
    """Records as a table of Markdown; x is tok/s by those of plain decoding of the same model and batch."""
    plain = {_kin(record): record["output_tok_s"] for record in records if record["mode"] == "ar"}
    head = ["workload", "round, us", "acceptance_length", "tok/s", "x"]
    head += ["draft", "topk", "build", "verify", "accept", "commit", "tree kernels, %", "idle, %"]
    rows = [head, ["---"] * len(head)]
    for record in records:
        base = plain.get(_kin(record))
        times = f"{record['output_tok_s'] / base:.2f}" if base and record["mode"] != "ar" else ""
        idle = record["idle_fraction"]
        rows.append(
            [
                f"`{record['workload']}`",
                _micro(record["round_s"]),
                f"{record['acceptance_length']:.2f}",
                f"{record['output_tok_s']:.0f}",
                times,
                *(_micro(value) for value in record["stage_seconds"].values()),
                f"{100 * record['tree_kernels_fraction']:.1f}",
                "" if idle is None else f"{100 * idle:.1f}",
            ]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _kin(record: Mapping[str, Any]) -> tuple[str, int]:
    return str(record["workload"]).split("-" + record["mode"])[0], record["batch"]


def _micro(seconds: float) -> str:
    return f"{seconds * 1e6:.0f}" if seconds >= 1e-5 else f"{seconds * 1e6:.1f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m kdbench.decode_profile", description=__doc__.split("\n\n")[0])
    parser.add_argument("workloads", nargs="*", help="names; default: all of the backend's")
    parser.add_argument("--backend", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--samples", type=int, default=decode_workloads.SAMPLES)
    parser.add_argument("--results", type=Path, default=None, help="folder whose decode/<machine>.jsonl gets the lines")
    given = parser.parse_args(arguments)
    command = shlex.join(
        ["python", "-m", "kdbench.decode_profile", *(sys.argv[1:] if arguments is None else arguments)]
    )
    recorder = decode_records.Recorder(given.results, command)
    records: list[dict[str, Any]] = []
    code = 0
    for name in given.workloads or decode_workloads.names(given.backend):
        try:
            workload = decode_workloads.get(name)
            subject = DecodeSubject(workload, given.backend)
            try:
                subject.verify()
                records.append(profile(subject, given.samples))
                recorder.record(provenance.PROFILE, subject.engine, workload.model, records[-1])
            finally:
                subject.engine.close()
        except BackendUnavailable as error:
            print(f"{name}: {error}", file=sys.stderr)
            code = max(code, 1)
        except (DigestMismatch, MeasuringError, KdbenchError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            code = 2
        else:
            print(f"{name}: {records[-1]['output_tok_s']:.0f} tok/s", file=sys.stderr, flush=True)
    if records:
        print(table(records))
    return code


if __name__ == "__main__":
    sys.exit(main())
