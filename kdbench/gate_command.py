# SPDX-License-Identifier: Apache-2.0
"""The verb ``kdbench gate``: what it is given, and what it writes where."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from kdbench import atomic, selection
from kdbench.errors import KdbenchError
from kdbench.terminal import finish, progress, stderr

if TYPE_CHECKING:
    from kdbench.gate.session import Gated

EXIT_CODES = (
    "Exit codes: 0 every series is the same or faster, or its slowdown is accepted; 1 a series is slower than allowed; "
    "2 something could not be told, measured or understood, a wrong option too; 130 interrupted before anything was "
    "found slower. Only 0 is green."
)
FAILED = 2


def gate(
    commits: Annotated[
        str,
        typer.Argument(
            metavar="BASE..HEAD", help="BASE...HEAD starts at their merge base; HEAD alone at its first parent."
        ),
    ],
    max_regression: Annotated[
        str | None,
        typer.Option(
            "--max-regression",
            help="Slowdown that passes, as 2% or 0.02; by default what gate.toml or the series says, 2%.",
        ),
    ] = None,
    bench: Annotated[
        str | None, typer.Option("--bench", "-b", help="Only series whose name fits this regular expression.")
    ] = None,
    kernel: Annotated[list[str] | None, typer.Option("--kernel", help="Only this kernel; may be repeated.")] = None,
    backend: Annotated[list[str] | None, typer.Option("--backend", help="Only cpu or cuda; may be repeated.")] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="Only workloads with this tag, e.g. quick.")] = None,
    processes: Annotated[int, typer.Option("--processes", min=8, max=24, help="Most processes a series.")] = 24,
    rules: Annotated[
        Path | None,
        typer.Option("--rules", help="Thresholds and accepted regressions; by default benchmarks/gate.toml."),
    ] = None,
    junit: Annotated[Path | None, typer.Option("--junit", help="Write JUnit XML here.")] = None,
    markdown: Annotated[Path | None, typer.Option("--markdown", help="Write a pull request's comment here.")] = None,
    annotate: Annotated[
        bool | None,
        typer.Option("--annotate/--no-annotate", help="Print GitHub's annotations; by default where GitHub runs it."),
    ] = None,
    repo: Annotated[Path, typer.Option("--repo", help="Folder in the git repository.")] = Path("."),
    json_: Annotated[
        bool, typer.Option("--json", help="One JSON document on stdout, everything else on stderr.")
    ] = False,
) -> None:
    """Compare the ends of a range of commits, and say with the exit code whether anything got slower."""
    from kdbench.gate import annotations

    annotated = os.environ.get("GITHUB_ACTIONS") == "true" if annotate is None else annotate
    try:
        found = _measured(commits, max_regression, bench, kernel, backend, tag, processes, rules, repo)
        _write(found, junit, markdown)
    except KdbenchError as error:
        # 1 would say "slower".
        stderr().print(Text(f"kdbench: {error}"))
        if annotated:
            progress(json_).print(Text(annotations.error(str(error))))
        raise typer.Exit(FAILED) from error
    if annotated:
        for line in annotations.lines(found.decisions):
            progress(json_).print(Text(line))
    _tell(found, json_)
    raise typer.Exit(found.code)


def _measured(
    commits: str,
    max_regression: str | None,
    bench: str | None,
    kernels: list[str] | None,
    backends: list[str] | None,
    tag: str | None,
    processes: int,
    rules_file: Path | None,
    repo: Path,
) -> Gated:
    from kdbench import native, runner
    from kdbench.gate import display, rules, session
    from kdbench.paired import compare

    limit = None if max_regression is None else rules.fraction(max_regression, "--max-regression")
    with display.watching() as on_update:
        return session.gate(
            repo,
            commits,
            compare,
            bench=selection.pattern("--bench", bench),
            kernels=selection.chosen("--kernel", kernels, runner.MEASURED),
            backends=selection.chosen("--backend", backends, native.BACKENDS),
            tag=tag,
            max_regression=limit,
            rules_file=rules_file,
            processes=processes,
            on_update=on_update,
        )


def _write(found: Gated, junit_file: Path | None, markdown_file: Path | None) -> None:
    from kdbench.gate import junit, markdown

    if junit_file is not None:
        atomic.write_text(junit_file, junit.document(found.decisions, found.asked, found.seconds))
    if markdown_file is not None:
        about = [f"{found.machine}, {found.started}, {found.seconds:.0f} s", *found.warnings]
        comment = markdown.comment(found.decisions, found.base[:10], found.head[:10], about)
        atomic.write_text(markdown_file, comment)


def _tell(found: Gated, json_: bool) -> None:
    from kdbench.gate import words

    # Lines and no table: names are long, and a CI log is narrow.
    for decision in found.decisions:
        progress(json_).print(Text(f"{decision.state:8} {decision.series}  {words.sentence(decision)}"))
    for warning in found.warnings:
        stderr().print(Text(f"warning: {warning}"))
    said = "the engine is the same" if found.same_engine else words.headline(found.decisions)
    headline = f"{found.base[:10]}..{found.head[:10]}: {said}"
    finish(json_, found.document(), Text(f"{headline}{' (interrupted)' if found.interrupted else ''}"))
