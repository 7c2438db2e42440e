# SPDX-License-Identifier: Apache-2.0
"""The verb ``kdbench peers``; see ``kdbench.cli`` for exit codes and ``--json``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kdbench.errors import KdbenchError
from kdbench.terminal import finish, progress

_OK, _FAILED = 0, 2


def peers(
    kernel: Annotated[list[str] | None, typer.Option("--kernel", help="Only this kernel; may be repeated.")] = None,
    workload: Annotated[
        list[str] | None, typer.Option("--workload", help="Only this one; may be repeated. By default a typical few.")
    ] = None,
    backend: Annotated[str, typer.Option("--backend", help="cuda, or cpu for what runs there.")] = "cuda",
    samples: Annotated[
        int, typer.Option("--samples", min=3, help="Rounds: each takes one sample of every implementation.")
    ] = 25,
    library: Annotated[
        list[str] | None,
        typer.Option("--library", help="NAME=PATH: somebody else's library by its file; may be repeated."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", help="Results directory; records go to peers/<machine>.jsonl below it.")
    ] = Path("results"),
    figure: Annotated[
        Path | None, typer.Option("--figure", help="Where the figure goes; by default report/peers-<machine>.png.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure, and save nothing.")] = False,
    json_: Annotated[
        bool, typer.Option("--json", help="One JSON document on stdout, everything else on stderr.")
    ] = False,
) -> None:
    """Time our kernels beside other people's, in turns in one process. Exits with 2 when one had to be refused."""
    from kdbench import native
    from kdbench.analysis.peers import ratios
    from kdbench.peers import command, libraries, show

    for option, names, known in (
        ("--backend", [backend], native.BACKENDS),
        ("--kernel", kernel or [], command.KERNELS),
    ):
        for name in names:
            if name not in known:
                raise KdbenchError(f"{option} {name}: choose from {', '.join(known)}")
    kernels = kernel or command.KERNELS
    named = libraries.Libraries(libraries.parse(library or ()))
    chosen = command.selected(kernels, workload, backend)
    results = None if dry_run else out
    found = command.compare(chosen, backend, samples, named, results, progress(json_).print)
    compared = ratios(found.frame)
    progress(json_).print("")
    drawn = None if dry_run else show.draw(compared, figure or Path("report") / f"peers-{found.machine}.png")
    finish(json_, show.document(found, compared, drawn), show.shown(compared, found.passed_over))
    for path in (found.path, drawn):
        if path is not None:
            progress(json_).print(f"written: {path}")
    raise typer.Exit(_OK if found.sound else _FAILED)
