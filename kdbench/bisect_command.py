# SPDX-License-Identifier: Apache-2.0
"""The verb ``kdbench bisect``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from kdbench import selection, units
from kdbench.errors import InvalidArgument
from kdbench.terminal import finish, progress, stderr

if TYPE_CHECKING:
    from kdbench.bisect.session import Bisection
    from kdbench.paired.types import PairedResult

EXIT_CODES = (
    "Exit codes: 0 one commit is named; 1 bad input; 2 only a range is known, or nothing got slower, or nothing could "
    "be told, built or measured; 130 interrupted."
)
FAILED, INTERRUPTED = 2, 130


def bisect(
    commits: Annotated[str, typer.Argument(metavar="GOOD..BAD", help="BAD is the slower one; without it, HEAD.")],
    bench: Annotated[
        str,
        typer.Option(
            "--bench",
            "-b",
            help="Series, a regular expression. Of several the one is searched that got slower most clearly.",
        ),
    ],
    min_effect: Annotated[
        str, typer.Option("--min-effect", help="Smallest slowdown of interest, as 2% or 0.02.")
    ] = "2%",
    backend: Annotated[list[str] | None, typer.Option("--backend", help="Only cpu or cuda; may be repeated.")] = None,
    processes: Annotated[int, typer.Option("--processes", min=8, max=24, help="Most processes of a comparison.")] = 24,
    diff: Annotated[bool, typer.Option("--diff", help="Also print the commit's diff of native/.")] = False,
    repo: Annotated[Path, typer.Option("--repo", help="Folder in the git repository.")] = Path("."),
    json_: Annotated[
        bool, typer.Option("--json", help="One JSON document on stdout, everything else on stderr.")
    ] = False,
) -> None:
    """Find the commit that made a series slower, by paired comparisons of builds between the two ends."""
    from kdbench import native, revisions, runner
    from kdbench.bisect import session
    from kdbench.gate import display
    from kdbench.gate.rules import fraction
    from kdbench.paired import BuildError, compare

    good, dots, bad = commits.partition("..")
    if not dots or not good or bad.startswith("."):
        raise InvalidArgument(f"{commits!r} is no range GOOD..BAD")
    effect = fraction(min_effect, "--min-effect")
    backends = selection.chosen("--backend", backend, native.BACKENDS) or native.BACKENDS
    usable = [name for name, why in runner.usable_backends().items() if why is None and name in backends]
    names = runner.series_names(runner.MEASURED, usable, ("primary",))
    series = str(selection.pattern("-b", bench))
    try:
        with display.watching() as on_update:
            found = session.bisect(
                repo,
                good,
                bad or "HEAD",
                series,
                compare,
                names=names,
                backends=usable,
                min_effect=effect,
                processes=processes,
                tell=lambda known: progress(json_).print(Text(_step(known))),
                on_update=on_update,
            )
    except session.Interrupted as stop:
        finish(json_, stop.bisection.document(), Text(f"interrupted after {len(stop.bisection.steps)} comparisons"))
        raise typer.Exit(INTERRUPTED) from stop
    except BuildError as error:
        stderr().print(Text(f"kdbench: {error}"))
        raise typer.Exit(FAILED) from error
    text = _told(found)
    content: dict[str, Any] = found.document()
    if diff and found.candidates:
        assert found.found is not None
        whole = revisions.native_changes(
            repo, found.sha(found.found.first - 1), found.sha(found.found.last), stat=False
        )
        content["native_diff"] = whole
        text += f"\n\n{whole}"
    finish(json_, content, Text(text))
    raise typer.Exit(0 if found.commit else FAILED)


def _step(known: Bisection) -> str:
    step = known.steps[-1]
    head = known.line[step.head - 1]
    against = "the good end" if step.base == 0 else known.sha(step.base)[:10]
    said = f"{head.sha[:10]} ({step.head} of {len(known.line)}) against {against}: {step.decision}"
    if step.result is not None and step.result.ratio is not None:
        said += f", {_change(step.result)}, {units.count(step.result.processes, 'process')}"
    return f"{said}: {step.reason}" if step.reason else said


def _told(found: Bisection) -> str:
    lines = [found.series]
    ends = found.found.ends if found.found else None
    if found.commit is not None and found.found is not None and found.found.pair is not None:
        commit, pair = found.commit, found.found.pair
        sure = f", confidence {100 * found.confidence:.1f} %" if found.confidence is not None else ""
        lines += [
            f"{commit.sha[:10]} {commit.subject} ({commit.author}, {commit.date[:10]})",
            f"made it {_change(pair)} than the commit before{sure}",
        ]
        if ends is not None:
            lines.append(f"{100 * found.found.share:.0f} % of what lies between the ends: {_change(ends)}")
    elif found.found is not None:
        lines.append(f"{found.found.reason}{f': {_change(ends)}' if ends is not None and ends.ratio else ''}")
        if found.found.outcome == "range":
            lines.append(f"it is one of {units.count(len(found.candidates), 'commit')}:")
            lines += [f"  {commit.sha[:10]} {commit.subject}" for commit in found.candidates]
    lines += [f"skipped {sha[:10]}: {reason}" for sha, reason in found.skipped().items()]
    return "\n".join([*lines, *([found.native_stat] if found.native_stat else [])])


def _change(result: PairedResult) -> str:
    if result.ratio is None:
        return "n/a"
    word = f"{result.ratio:.3f}× slower" if result.ratio >= 1 else f"{1 / result.ratio:.3f}× faster"
    if result.low is None or result.high is None:
        return word
    return f"{word} ({units.change_interval(result.low - 1, result.high - 1)})"
