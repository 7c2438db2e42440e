# SPDX-License-Identifier: Apache-2.0
"""The command line: one verb a function, each thin over the module of its name.

Exit codes, of every verb:

==== =====================================================================================================
0    done; for doctor: kdbench run works here
1    a user error or bad input: a wrong option, no such directory, nothing readable; one sentence on stderr
2    something measured failed, was wrong, or could not be done; for lint: there is a finding
130  interrupted; what was measured before is kept
==== =====================================================================================================

``gate`` alone has other ones, since CI reads them: 1 is "slower", and everything that is not known is 2.

``--json`` puts one strict JSON document on stdout, ``{"schema": "kdbench/<verb>/1", ...}``, and everything else on
stderr.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from kdbench import __version__, bisect_command, gate_command
from kdbench.compare_command import compare
from kdbench.decode_command import decode
from kdbench.errors import KdbenchError
from kdbench.history_command import history
from kdbench.noise_command import noise
from kdbench.peers.cli import peers
from kdbench.selection import chosen, pattern
from kdbench.terminal import finish, progress, stderr, table
from kdbench.units import count

OK, USER_ERROR, FAILED, INTERRUPTED = 0, 1, 2, 130
_EXIT_CODES = (
    "Exit codes: 0 done; 1 user error or bad input; 2 something measured failed, was wrong or could not be done; "
    "130 interrupted."
)

_SIGNS = {"ok": "ok", "warn": "!", "missing": "-", "broken": "X"}

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Benchmarks and regression tracking for a native DDTree engine.",
    epilog=_EXIT_CODES,
)
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, everything else on stderr.")]
ResultsOption = Annotated[Path, typer.Option("--results", help="asv results directory.")]
RepoOption = Annotated[
    Path | None,
    typer.Option("--repo", help="Git repository that knows the commits; by default the one around --results."),
]

KernelOption = Annotated[list[str] | None, typer.Option("--kernel", help="Only this kernel; may be repeated.")]
BackendOption = Annotated[list[str] | None, typer.Option("--backend", help="Only cpu or cuda; may be repeated.")]
TagOption = Annotated[str | None, typer.Option("--tag", help="Only workloads with this tag, e.g. quick.")]


@app.command(epilog=_EXIT_CODES)
def doctor(results: ResultsOption = Path("results"), json_: JsonOption = False) -> None:
    """Say what this machine has, what it lacks and what to do. Exits with 2 when kdbench run cannot work."""
    from kdbench.doctor import examine

    found = examine(results)
    rows = [(_SIGNS[p.finding.state], p.name, p.finding.found, p.finding.advice) for p in found.probes]
    finish(json_, found.document(), table(("", "what", "found", "to do"), rows))
    raise typer.Exit(OK if found.can_measure else FAILED)


@app.command(epilog=_EXIT_CODES)
def report(
    results: ResultsOption = Path("results"),
    out: Annotated[Path, typer.Option("--out", help="Where index.html and report.json go.")] = Path("report"),
    repo: RepoOption = None,
    json_: JsonOption = False,
) -> None:
    """Write one HTML page that opens offline: the newest commit against its parent, and every change of the history."""
    from kdbench.report import write

    _check_repo(repo)
    content = write(results, out, repo)
    for warning in content["warnings"]:
        stderr().print(Text(f"warning: {warning}"))
    words = {"missing": "n/a"}
    summary = ", ".join(f"{count} {words.get(verdict, verdict)}" for verdict, count in content["summary"].items())
    finish(json_, content, Text(f"{out / 'index.html'}: {summary}"))


@app.command(epilog=_EXIT_CODES)
def verify(
    kernel: KernelOption = None,
    backend: BackendOption = None,
    tag: TagOption = None,
    workload: Annotated[
        str | None, typer.Option("--workload", help="Only workloads whose name fits this regular expression.")
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Check every workload's output against its golden one. Exits with 2 if one is wrong or none could be checked."""
    from kdbench import native
    from kdbench.verify import CHECKED
    from kdbench.verify import verify as check

    kernels = chosen("--kernel", kernel, CHECKED) or CHECKED
    backends = chosen("--backend", backend, native.BACKENDS) or native.BACKENDS
    outcomes = []
    for outcome in check(kernels, backends, tag, pattern("--workload", workload) or ""):
        outcomes.append(outcome)
        line = f"{outcome.status:5} {outcome.kernel} {outcome.workload} {outcome.backend} {outcome.detail}"
        progress(json_).print(line.rstrip())
    if not outcomes:
        asked = [f"the tag {tag!r}"] if tag is not None else []
        asked += [f"a name that fits {workload!r}"] if workload is not None else []
        raise KdbenchError(f"no workload has {' and '.join(asked) or 'such a kernel and backend'}")
    counts = {status: sum(outcome.status == status for outcome in outcomes) for status in ("ok", "wrong", "n/a")}
    content = {"schema": "kdbench/verify/1", "summary": counts, "workloads": [asdict(o) for o in outcomes]}
    finish(json_, content, ", ".join(f"{count} {status}" for status, count in counts.items()))
    raise typer.Exit(FAILED if counts["wrong"] or not counts["ok"] else OK)


@app.command(epilog=_EXIT_CODES)
def run(
    last: Annotated[
        int,
        typer.Option("--last", min=1, help="The newest N commits of HEAD's line that changed the engine's sources."),
    ] = 1,
    commits: Annotated[
        str | None, typer.Option("--commits", help="Instead of --last: NEW, ALL, a..b, HEAD^!, as asv run takes them.")
    ] = None,
    env: Annotated[str, typer.Option("--env", help="overlay, virtualenv, or existing:PYTHON.")] = "overlay",
    kernel: KernelOption = None,
    backend: BackendOption = None,
    tag: TagOption = None,
    mode: Annotated[
        list[str] | None, typer.Option("--mode", help="hot, cold, or primary for each kernel's own; may be repeated.")
    ] = None,
    bench: Annotated[
        str | None, typer.Option("--bench", help="Only series whose name fits this regular expression.")
    ] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", min=1, help="Processes a series; verdicts want 5.")] = None,
    machine: Annotated[str | None, typer.Option("--machine", help="Name to file results under.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Measure also what is already complete.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure, and save nothing.")] = False,
    conf: Annotated[Path, typer.Option("--conf", help="Folder of asv.conf.json.")] = Path("."),
    json_: JsonOption = False,
) -> None:
    """Measure commits with asv. Resumable: the same command after Ctrl-C goes on where it was."""
    from kdbench import native, runner

    code = runner.run(
        conf,
        commits=commits or last,
        env=env,
        tag=tag,
        bench=pattern("--bench", bench),
        kernels=chosen("--kernel", kernel, runner.MEASURED) or runner.MEASURED,
        backends=chosen("--backend", backend, native.BACKENDS) or native.BACKENDS,
        modes=chosen("--mode", mode, ("hot", "cold", "primary")),
        rounds=rounds,
        machine_name=machine,
        resume=not again,
        dry_run=dry_run,
        output=2 if json_ else None,
    )
    status = {OK: "measured", USER_ERROR: "refused", INTERRUPTED: "interrupted"}.get(code, "failed")
    said = {
        "measured": "everything asked for has been measured",
        "refused": "asv refused the request: see above",
        "interrupted": "interrupted; what was measured is kept, and the same command goes on from there",
        "failed": "something failed: see above; kdbench report shows what and why",
    }[status]
    asked = {"commits": commits or f"last {last}", "env": env, "rounds": rounds, "dry_run": dry_run}
    finish(json_, {"schema": "kdbench/run/1", "status": status, "exit_code": code, **asked}, f"kdbench: {said}")
    raise typer.Exit(code)


@app.command(epilog=_EXIT_CODES)
def calibrate(
    results: ResultsOption = Path("results"),
    machine: Annotated[str | None, typer.Option("--machine", help="Name that results are filed under.")] = None,
    json_: JsonOption = False,
) -> None:
    """Measure what this GPU gives, a device copy and a bf16 product, of which the report's floors are made.

    Exits with 2 when there is no GPU or nothing could be measured.
    """
    from kdbench import calibration
    from kdbench.errors import BackendUnavailable
    from kdbench.timing import MeasuringError

    try:
        record = calibration.measure()
    except (BackendUnavailable, MeasuringError) as error:
        stderr().print(Text(f"kdbench: {error}"))
        raise typer.Exit(FAILED) from error
    record["machine"] = machine or record["machine"]
    path = calibration.save(record, results)
    for what, why in record["absent"].items():
        stderr().print(Text(f"warning: no {what}: {why}"))
    rates = [
        f"{rate / 1e12:.4g} {unit}"
        for rate, unit in ((record["bytes_per_s"], "TB/s"), (record["flops_per_s"], "TFLOP/s"))
        if rate is not None
    ]
    content = {"schema": "kdbench/calibrate/1", "path": str(path), "record": record}
    finish(json_, content, Text(f"{path}: {', '.join(rates) or 'nothing could be measured'}"))
    raise typer.Exit(OK if rates else FAILED)


@app.command(epilog=_EXIT_CODES)
def lint(
    results: Annotated[Path, typer.Argument(help="asv results directory.")] = Path("results"),
    repo: Annotated[
        Path | None,
        typer.Option(
            "--repo", help="Repository whose branches must hold the commits; by default the one around the results."
        ),
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Find what would make asv publish hang, die or mislead. Exits with 2 if there is anything."""
    from kdbench.lint import lint as check

    if not results.is_dir():
        raise KdbenchError(f"no results directory at {results}")
    _check_repo(repo)
    findings = check(results, repo=repo)
    for finding in findings:
        progress(json_).print(str(finding))
    content = {"schema": "kdbench/lint/1", "findings": [asdict(finding) for finding in findings]}
    finish(json_, content, count(len(findings), "finding") if findings else "nothing to complain about")
    raise typer.Exit(FAILED if findings else OK)


@app.command(epilog=_EXIT_CODES)
def version() -> None:
    """Print the version."""
    print(__version__)


app.command(epilog=_EXIT_CODES)(peers)
app.command(epilog=_EXIT_CODES)(decode)
app.command(epilog=_EXIT_CODES)(compare)
app.command(epilog=_EXIT_CODES)(noise)
app.command(epilog=_EXIT_CODES)(history)
app.command(epilog=gate_command.EXIT_CODES)(gate_command.gate)
app.command(epilog=bisect_command.EXIT_CODES)(bisect_command.bisect)


def _check_repo(repo: Path | None) -> None:
    if repo is not None and not repo.is_dir():
        raise KdbenchError(f"no repository at {repo}")


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code and lets no expected error out as a traceback."""
    asked = list(sys.argv[1:] if arguments is None else arguments)
    user_error = FAILED if asked[:1] == ["gate"] else USER_ERROR
    try:
        code = app(args=arguments, prog_name="kdbench", standalone_mode=False)
    except KdbenchError as error:
        stderr().print(Text(f"kdbench: {error}"))
        return user_error
    except (KeyboardInterrupt, typer.Abort):
        # Some versions of typer let these through, others turn them into the same code.
        stderr().print("kdbench: interrupted")
        return INTERRUPTED
    except Exception as error:
        # A usage error is click's class, which typer keeps under a private name: known by what it can do.
        show = getattr(error, "show", None)
        if show is None or not hasattr(error, "exit_code"):
            raise
        show()
        return user_error
    return code if isinstance(code, int) else OK


def main() -> None:
    """Entry point of the ``kdbench`` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A µ must not end a run on a terminal that knows ASCII only.
            stream.reconfigure(errors="replace")
    sys.exit(run_command())
