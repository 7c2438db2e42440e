# SPDX-License-Identifier: Apache-2.0
"""The verb ``kdbench compare``: which series does a commit, or the working tree, change?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.live import Live
from rich.text import Text

from kdbench.abi import BACKENDS
from kdbench.errors import InvalidArgument
from kdbench.selection import chosen, pattern
from kdbench.terminal import finish, progress, stderr, table
from kdbench.units import quantity

if TYPE_CHECKING:
    from kdbench.paired import Comparison, PairedResult, Update

_FAILED, _INTERRUPTED = 2, 130


def compare(
    base: Annotated[str, typer.Argument(help="Revision to compare with.")],
    head: Annotated[
        str | None, typer.Argument(help="Revision that may have changed something; by default the working tree.")
    ] = None,
    bench: Annotated[
        str | None, typer.Option("-b", "--bench", help="Only series whose name fits this regular expression.")
    ] = None,
    kernel: Annotated[list[str] | None, typer.Option("--kernel", help="Only this kernel; may be repeated.")] = None,
    backend: Annotated[list[str] | None, typer.Option("--backend", help="Only cpu or cuda; may be repeated.")] = None,
    mode: Annotated[
        list[str] | None, typer.Option("--mode", help="hot, cold, or primary for each kernel's own; may be repeated.")
    ] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="Only workloads with this tag, e.g. quick.")] = None,
    min_effect: Annotated[
        str | None, typer.Option("--min-effect", help="Smallest change that counts, 2% or 0.02; by default 2%.")
    ] = None,
    max_processes: Annotated[int, typer.Option("--max-processes", help="Most processes a series, 8 to 24.")] = 24,
    results: Annotated[Path, typer.Option("--results", help="Where the record goes.")] = Path("results"),
    machine: Annotated[str | None, typer.Option("--machine", help="Name to file results under.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure, and save nothing.")] = False,
    repo: Annotated[Path, typer.Option("--repo", help="Folder of the repository.")] = Path("."),
    json_: Annotated[
        bool, typer.Option("--json", help="One JSON document on stdout, everything else on stderr.")
    ] = False,
) -> None:
    """Say of each series whether HEAD is the SAME, FASTER or SLOWER than BASE, or that it cannot be told (AMBIGUOUS).

    Both builds run in the same processes, in turns. Without HEAD the working tree is compared, uncommitted changes
    included. Ctrl-C prints what is known. Exits with 2 when a series could not be measured, whatever the verdicts.
    """
    from kdbench import runner
    from kdbench.paired import compare as measure

    if head is None:
        stderr().print(Text(f"kdbench: comparing {base} with the working tree, uncommitted changes included"))
    with Live(console=stderr(), transient=True, auto_refresh=False) as live:

        def show(update: Update) -> None:
            live.update(Text(_line(update)), refresh=True)

        found = measure(
            repo,
            base,
            head,
            pattern("--bench", bench),
            kernels=chosen("--kernel", kernel, runner.MEASURED),
            backends=chosen("--backend", backend, BACKENDS) or BACKENDS,
            modes=chosen("--mode", mode, ("hot", "cold", "primary")) or ("primary",),
            tag=tag,
            min_effect=share(min_effect) if min_effect is not None else None,
            processes=max_processes,
            results_dir=None if dry_run else results,
            machine_name=machine,
            on_update=show,
        )
    if found.same_sources:
        stderr().print("kdbench: both sides are the same engine: this is an A/A run")
    progress(json_).print(_table(found.results))
    for reason in _reasons(found.results):
        progress(json_).print(Text(reason))
    finish(json_, document(found), Text(_summary(found)))
    raise typer.Exit(_INTERRUPTED if found.interrupted else _FAILED if found.count("FAILED") else 0)


def document(found: Comparison) -> dict[str, Any]:
    """The comparison as ``kdbench/compare/1``."""
    from kdbench.paired import VERDICTS

    return {
        "schema": "kdbench/compare/1",
        "base": found.base.document(),
        "head": found.head.document(),
        "machine": found.machine,
        "started": found.started,
        "seconds": found.seconds,
        "interrupted": found.interrupted,
        "same_sources": found.same_sources,
        "summary": {verdict: found.count(verdict) for verdict in VERDICTS},
        "results": [asdict(result) for result in found.results],
    }


def share(text: str) -> float:
    """0.02 of "2%" or "0.02"; InvalidArgument for what is no number."""
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise InvalidArgument(f"{text!r} is no share: 2% or 0.02 is expected") from None


def _line(update: Update) -> str:
    if update.stage != "measure":
        return update.text
    open_ = [result for result in update.results if not result.settled]
    known = [result for result in open_ if result.ratio is not None]
    worst = max(known, key=lambda result: abs((result.ratio or 1.0) - 1), default=None)
    said = f"process {update.done} of {update.total}, {len(open_)} of {len(update.results)} series open"
    if worst is not None and worst.ratio is not None:
        said += f"; largest estimate {100 * (worst.ratio - 1):+.2f} % ({worst.workload})"
    return f"{said}, {update.elapsed_s:.0f} s"


def _table(results: Sequence[PairedResult]) -> Any:
    rows = []
    for result in results:
        value = "" if result.base_value is None else quantity(result.base_value, result.unit)
        mde = "" if result.mde is None else f"{100 * result.mde:.2g} %"
        name = f"{result.kernel} {result.workload} {result.backend} {result.mode}"
        cycles = _change(result.cycles_ratio, result.cycles_low, result.cycles_high)
        change = _change(result.ratio, result.low, result.high)
        verdict = result.verdict if result.settled else f"({result.verdict})"
        rows.append((verdict, name, value, change, cycles, mde, str(result.processes)))
    return table(("verdict", "series", "base", "change", "in cycles", "can see", "processes"), rows)


def _reasons(results: Sequence[PairedResult]) -> list[str]:
    return [f"{result.kernel} {result.workload}: {reason}" for result in results for reason in result.reasons]


def _change(ratio: float | None, low: float | None, high: float | None) -> str:
    if ratio is None:
        return ""
    around = "" if low is None or high is None else f" [{100 * (low - 1):+.2f}, {100 * (high - 1):+.2f}]"
    return f"{100 * (ratio - 1):+.2f} %{around}"


def _summary(found: Comparison) -> str:
    from kdbench.paired import VERDICTS

    counts = ", ".join(f"{found.count(verdict)} {verdict}" for verdict in VERDICTS if found.count(verdict))
    how = "interrupted, estimates as they stood; " if found.interrupted else ""
    return f"{how}{found.head} against {found.base} on {found.machine}: {counts} in {found.seconds:.0f} s"
