# SPDX-License-Identifier: Apache-2.0
"""Running asv over commits: which ones, which benchmarks, in which environment; resumable, and recorded.

Only combinations that can run here are asked for, since asv starts a process for each of the others just to hear
"n/a". What is finished is skipped, so that the same command after Ctrl-C, or after new commits, measures what is
missing.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from kdbench import decode_workloads, machine, native, provenance, workloads
from kdbench.asv_benchmark import ROUNDS
from kdbench.asv_process import FAILED, INTERRUPTED, OK, USER_ERROR, drive
from kdbench.errors import InvalidArgument, KdbenchError
from kdbench.timing import MODES

# What a reader of one number wants: the engine's steady state of the tree kernels, attention with its prefix in memory.
PRIMARY_MODE = {
    "tree_build": "hot",
    "tree_accept": "hot",
    "verify_attn": "cold",
    "draft_topk": "hot",
    "kv_compact": "hot",
    "merge_attn_states": "hot",
    "verify_mla": "cold",
}
_SUITES = {
    "tree_build": "bench_tree_build.TreeBuild",
    "tree_accept": "bench_tree_accept.TreeAccept",
    "verify_attn": "bench_verify_attn.VerifyAttn",
    "draft_topk": "bench_draft_topk.DraftTopk",
    "kv_compact": "bench_kv_compact.KvCompact",
    "merge_attn_states": "bench_merge_attn_states.MergeAttnStates",
    "verify_mla": "bench_verify_mla.VerifyMla",
}
# What kdbench run measures: the kernels, and the loop that they make.
MEASURED = (*workloads.KERNELS, decode_workloads.KERNEL)
# What a library is built from: a commit that changes only tests or the bench would be the same one measured twice.
ENGINE = tuple(f"native/{name}" for name in ("include", "src", "python", "cmake", "CMakeLists.txt", "pyproject.toml"))
# What asv run takes besides ranges of git.
_NO_RANGES = ("ALL", "EXISTING", "TAGS")
_GIT_TIMEOUT_S = 60

__all__ = [
    "FAILED",
    "INTERRUPTED",
    "MEASURED",
    "OK",
    "PRIMARY_MODE",
    "USER_ERROR",
    "run",
    "series_names",
    "usable_backends",
]


def series_names(
    kernels: Sequence[str],
    backends: Sequence[str],
    modes: Sequence[str],
    tag: str | None = None,
    bench: str | None = None,
) -> list[str]:
    """asv's names of the series that fit; for the arguments see ``run``."""
    found = [
        f"{_SUITES[kernel]}.kern_{mode}({workload!r}, {backend!r})"
        for kernel in kernels
        if kernel != decode_workloads.KERNEL
        for mode in ((PRIMARY_MODE[kernel],) if "primary" in modes else modes)
        for backend in backends
        for workload in workloads.names(kernel, backend, tag)
    ]
    # The loop is neither hot nor cold: it is left out where those are asked for.
    if decode_workloads.KERNEL in kernels and ("primary" in modes or set(modes) == set(MODES)):
        found += decode_workloads.series(backends, tag)
    return [name for name in found if bench is None or re.search(bench, name)]


def usable_backends() -> dict[str, str | None]:
    """Each backend with None when commits can be measured on it here, else the reason why not.

    The CPU always can: its library is built for each commit. CUDA needs a GPU, cupy, and nvcc to build with.
    """
    return {"cpu": None, "cuda": _no_cuda()}


def _no_cuda() -> str | None:
    if not machine.gpu_answers():
        return "no NVIDIA GPU answers"
    home = os.environ.get("CUDA_HOME")
    if shutil.which("nvcc") is None and not (home and (Path(home) / "bin" / "nvcc").is_file()):
        return "there is a GPU, but no nvcc in PATH or CUDA_HOME to build its library with"
    try:
        count = int(importlib.import_module("cupy").cuda.runtime.getDeviceCount())
    except Exception as error:  # ImportError, or cupy's own error class, which only cupy could name
        return f"there is a GPU, but cupy cannot use it: {error}"
    return None if count else "cupy sees no GPU"


def run(
    conf_dir: Path,
    *,
    commits: str | int = 1,
    env: str = "overlay",
    tag: str | None = None,
    bench: str | None = None,
    kernels: Sequence[str] = MEASURED,
    backends: Sequence[str] = native.BACKENDS,
    modes: Sequence[str] | None = None,
    rounds: int | None = None,
    machine_name: str | None = None,
    resume: bool = True,
    dry_run: bool = False,
    output: IO[Any] | int | None = None,
) -> int:
    """Measure commits with asv.

    Args:
        conf_dir: folder of asv.conf.json.
        commits: N for the newest N of HEAD's first-parent line that changed the engine's sources (the others have the
            same library); "NEW" for all since the newest one measured; or anything that asv run takes ("ALL",
            "main~5..main", "HEAD^!").
        env: asv's environment: "overlay", "virtualenv", or "existing:PYTHON" for what that interpreter holds, saved
            under HEAD.
        tag: only workloads with this tag, e.g. "quick".
        bench: only series whose asv name, "suite.Class.kern_mode('workload', 'backend')", this regular expression
        finds.
        kernels, backends: all of these, where they can run here.
        modes: "hot", "cold" or "primary" (each kernel's own); None is primary for the tag "quick", and both otherwise.
            The decode loop has no modes, and is not part of a selection of hot or cold only.
        rounds: processes a series; None for the suites' own.
        machine_name: name to save under, instead of this machine's.
        resume: skip series that already have all their rounds.
        dry_run: measure, and save nothing.
        output: where asv's own output goes, as for subprocess; None for this process's stdout.

    Returns:
        0 everything was measured; 1 a user error, told by asv; 2 a benchmark failed or a commit did not build; 130
        Ctrl-C.

    Raises:
        InvalidArgument: the selection is empty, or commits are not to be found.
    """
    conf_dir = conf_dir.resolve()
    reasons = usable_backends()
    usable = [backend for backend in backends if reasons[backend] is None]
    modes = modes or (("primary",) if tag == "quick" else MODES)
    names = series_names(kernels, usable, modes, tag, bench)
    if not names:
        excluded = "; ".join(f"{name}: {why}" for name, why in reasons.items() if why and name in backends)
        raise InvalidArgument(f"no benchmark fits the selection{' (' + excluded + ')' if excluded else ''}")
    results_dir = conf_dir / _results_dir(conf_dir)
    existing = env.startswith("existing")
    identity = {**machine.identity(), **({"machine": machine_name} if machine_name else {})}
    chosen = (
        _git(conf_dir, "rev-parse", "HEAD").split()
        if existing
        else _commits(conf_dir, results_dir / identity["machine"], commits)
    )
    command = [sys.executable, "-m", "asv", "run", "--config", str(conf_dir / "asv.conf.json"), "-E", env]
    command += ["--record-samples", "--show-stderr"]
    environment = {**os.environ, **({"KDBENCH_MACHINE": machine_name} if machine_name else {})}
    environment.pop("KDBENCH_RESUME_ROUNDS", None)
    if dry_run:
        command.append("--dry-run")
    elif resume:
        # asv regards a benchmark as done when nothing failed; the plugin knows about n/a, rounds and single parameters.
        environment["KDBENCH_RESUME_ROUNDS"] = str(rounds or ROUNDS)
        command.append("--skip-existing")
    command += ["-a", f"rounds={rounds}"] if rounds is not None else []
    if not existing and not dry_run:
        # A machine drifts over minutes: commits take turns, each round in the opposite order, so that all see it alike.
        command.append("--interleave-rounds")
    for name in names:
        command += ["-b", f"^{re.escape(name)}$"]
    started = datetime.now(UTC)
    with _range(chosen) as arguments:
        if existing:
            arguments = [] if dry_run else ["--set-commit-hash", chosen[0]]
        code = drive([*command, *arguments], conf_dir, environment, output)
    if not dry_run:
        provenance.append(
            results_dir / identity["machine"] / "runs.jsonl",
            {
                "schema": provenance.RUN,
                "commits": chosen,
                "env": env,
                "series": names,
                "rounds": rounds or ROUNDS,
                "excluded_backends": {name: why for name, why in reasons.items() if why},
                "started": started.isoformat(timespec="seconds"),
                "ended": datetime.now(UTC).isoformat(timespec="seconds"),
                "exit_code": code,
                "machine": identity,
                "covariates": machine.covariates(),
            },
        )
    return code


@contextlib.contextmanager
def _range(commits: str | list[str]) -> Iterator[list[str]]:
    if isinstance(commits, str):
        yield [commits]
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "commits"
        path.write_text("\n".join(commits) + "\n", "utf-8")
        yield [f"HASHFILE:{path}"]


def _commits(conf_dir: Path, machine_dir: Path, commits: str | int) -> str | list[str]:
    """What asv should measure: full hashes, or a range that asv understands itself."""
    if isinstance(commits, int):
        if commits < 1:
            raise InvalidArgument(f"commits is {commits}, and at least 1 is expected")
        line = _git(conf_dir, "rev-list", "--first-parent", f"--max-count={commits}", "HEAD", "--", *ENGINE).split()
        if not line:
            raise InvalidArgument(f"no commit of {conf_dir} has a native/ folder to build")
        return line
    if commits != "NEW":
        if commits not in _NO_RANGES and not commits.startswith("HASHFILE:"):
            _git(conf_dir, "rev-list", "--max-count=1", *commits.split(), "--")  # asv would end in a traceback
        return commits
    line = _git(conf_dir, "rev-list", "--first-parent", "HEAD", "--", *ENGINE).split()
    measured = {path.name[:8] for path in machine_dir.glob("*.json") if path.name[8:9] == "-"}
    known = next((index for index, commit in enumerate(line) if commit[:8] in measured), len(line) - 1)
    # From the newest known one, which may be unfinished, up: an interrupt then leaves no hole behind it.
    return line[: known + 1][::-1]


def _git(conf_dir: Path, *arguments: str) -> str:
    command = ["git", "-C", str(conf_dir), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KdbenchError(f"git cannot be run: {error}") from error
    if done.returncode:
        raise InvalidArgument(f"{conf_dir} has no commits to measure: {done.stderr.strip()}")
    return done.stdout


def _results_dir(conf_dir: Path) -> str:
    path = conf_dir / "asv.conf.json"
    if not path.is_file():
        raise InvalidArgument(f"{path} is not there: kdbench run needs the folder of an asv configuration")
    from asv.config import Config  # measuring needs asv, the other commands do not
    from asv.util import UserError

    try:
        return str(Config.load(str(path)).results_dir)
    except (UserError, ValueError) as error:
        raise InvalidArgument(f"{path} is no asv configuration: {error}") from error
