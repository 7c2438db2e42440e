# SPDX-License-Identifier: Apache-2.0
"""Is a results folder sound? Everything that would make asv hang, crash or mislead, found before it does.

A finding is *fatal* when ``asv publish`` would not end or not write a page, or a file has another shape than asv
writes; ``kdbench.asv_plugin`` refuses to publish then. The others mislead or lose history, and ``kdbench lint`` fails
on them too.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kdbench import lint_decode, lint_noise, lint_peers, lint_shapes, noise_records
from kdbench.commits import read_history
from kdbench.errors import KdbenchError
from kdbench.lint_results import check_file
from kdbench.provenance import DECODE_FOLDER, MEASUREMENT, PEERS_FOLDER
from kdbench.result_values import plain_text

_MACHINE_KEYS = {"machine", "os", "arch", "cpu", "num_cpu", "ram", "gpu", "version"}
_RESULT_NAME = re.compile(r"[0-9a-f]{8}-.+\.json")
_HASH = re.compile(r"[0-9a-f]{40,}")
_GIT_TIMEOUT_S = 60
_EVERY_BRANCH = ("--all", "HEAD")


@dataclass(frozen=True, order=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        path: the file, relative to the results folder.
        series: "benchmark(parameters)" where one is meant, else "".
        problem: what is wrong, in one sentence.
        fatal: asv publish would hang or die on it, or the file is not what asv writes.
    """

    path: str
    series: str
    problem: str
    fatal: bool = False

    def __str__(self) -> str:
        return f"{self.path}: {self.series + ': ' if self.series else ''}{self.problem}"


def lint(results_dir: Path, *, repo: Path | None = None, branches: Sequence[str | None] | None = None) -> list[Finding]:
    """All findings of a results folder, sorted by file.

    Args:
        results_dir: asv's results folder.
        repo: the measured repository; without it the one around ``results_dir``, if that knows a measured commit.
        branches: the branches that are published; None means all local ones, and without ``repo`` those that
            asv.conf.json beside ``results_dir`` names.

    Raises:
        KdbenchError: git does not answer for ``repo``, or does not know one of ``branches``.
    """
    benchmarks, findings = _benchmarks(results_dir)
    recorded, unreadable = _recorded(results_dir)
    findings += unreadable
    documents: dict[Path, dict[str, Any]] = {}
    for path in sorted(results_dir.rglob("*.json")):
        name = str(path.relative_to(results_dir))
        if name == "benchmarks.json":
            continue
        document, problem = lint_shapes.read(path)
        if path.name == "machine.json":
            findings += [Finding(name, "", problem, True)] if problem else _machine(document, path, name)
        elif path.parent == results_dir or not _RESULT_NAME.fullmatch(path.name):
            findings.append(Finding(name, "", "not a file of asv: it reads every .json here, use .jsonl"))
            # Beside a machine.json asv parses it as a result file all the same, and dies on its shape.
            if (path.parent / "machine.json").is_file() and (problem := problem or lint_shapes.result_file(document)):
                findings.append(Finding(name, "", problem, True))
        elif not problem and (problem := lint_shapes.missing_key(document)):
            findings.append(Finding(name, "", problem))  # asv skips it
        elif problem := problem or lint_shapes.result_file(document):
            findings.append(Finding(name, "", problem, True))
        else:
            documents[path] = document
    findings += _beside(results_dir)
    if repo is None:
        on_branch = _commits_around(results_dir, branches, {each["commit_hash"] for each in documents.values()})
    else:
        on_branch = _commits(repo, branches)
    seen: dict[str, str] = {}
    for path, document in documents.items():
        name = str(path.relative_to(results_dir))
        findings += _results(document, path, name, on_branch, seen)
        for series, problem, fatal in check_file(document, benchmarks, recorded):
            findings.append(Finding(name, series, problem, fatal))
    # A name may hold what no terminal can show.
    return sorted(
        Finding(plain_text(found.path), plain_text(found.series), plain_text(found.problem), found.fatal)
        for found in findings
    )


def _results(
    document: Mapping[str, Any], path: Path, name: str, on_branch: Collection[str] | None, seen: dict[str, str]
) -> Iterator[Finding]:
    commit, params = document["commit_hash"], document["params"]
    if on_branch is not None and commit not in on_branch:
        yield Finding(name, "", f"commit {commit[:8]} is not on a published branch, and publish leaves it out")
    if document["env_name"].startswith("existing") and not params.get("python"):
        yield Finding(name, "", "an existing environment without the interpreter that it was")
    key = json.dumps([commit, params, document.get("env_vars", {})], sort_keys=True)
    if key in seen:
        yield Finding(name, "", f"same commit and parameters as {seen[key]}: publish averages the two into one point")
    seen.setdefault(key, name)
    if not (path.parent / "machine.json").is_file():
        yield Finding(name, "", "no machine.json beside it, and asv skips it")


def _benchmarks(results_dir: Path) -> tuple[Mapping[str, Any], list[Finding]]:
    """Entries by name, {} for a broken one, and what is wrong with them."""
    name = "benchmarks.json"
    if not (results_dir / name).exists():
        return {}, [Finding(name, "", "missing: asv writes it on every run, and publish needs it", True)]
    document, problem = lint_shapes.read(results_dir / name)
    if problem := problem or lint_shapes.version_of_benchmarks(document):
        return {}, [Finding(name, "", problem, True)]
    benchmarks: dict[str, Any] = {}
    findings: list[Finding] = []
    for key, value in document.items():
        if key == "version":
            continue
        if problem := lint_shapes.benchmark_entry(value):
            benchmarks[key] = {}
            findings.append(Finding(name, key, problem, True))
            continue
        benchmarks[key] = value
        if _HASH.fullmatch(value.get("version") or ""):
            problem = "its version is a hash of its source: a comment would orphan its history"
            findings.append(Finding(name, key, problem))
        if value.get("direction", "lower") not in ("lower", "higher"):
            problem = f"direction is {lint_shapes.short(value['direction'])}, and lower or higher is expected"
            findings.append(Finding(name, key, problem))
    return benchmarks, findings


def _machine(document: Mapping[str, Any], path: Path, name: str) -> Iterator[Finding]:
    if problem := lint_shapes.machine_file(document):
        yield Finding(name, "", problem, True)
        return
    for key in document:
        if key not in _MACHINE_KEYS:
            yield Finding(name, "", f"unknown key {key!r}: asv makes a graph of its own for each of its values")
    if document["machine"] != path.parent.name:
        yield Finding(name, "", f"names machine {document['machine']!r} in a folder of another name")


def _recorded(results_dir: Path) -> tuple[set[tuple[str, ...]], list[Finding]]:
    """(commit, env_name, benchmark, *parameters) of every measurement that passed its digest; unreadable files."""
    found, findings = set(), []
    for path in sorted(results_dir.rglob("*.jsonl")):
        try:
            lines = path.read_text("utf-8", "replace").splitlines()
        except OSError as error:
            problem = f"cannot be read: {error.strerror or error}"
            findings.append(Finding(str(path.relative_to(results_dir)), "", problem, True))
            continue
        for line in lines:
            try:
                record = json.loads(line)
                if record["schema"] == MEASUREMENT and record["workload"]["digest_ok"]:
                    where = (record["commit"], record["env_name"], record["benchmark"])
                    found.add((*map(str, where), *map(str, record["params"].values())))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                continue
    return found, findings


def _beside(results_dir: Path) -> Iterator[Finding]:
    """Of the records that are not about one commit's benchmark."""
    for pattern, check in (
        (f"{PEERS_FOLDER}/*.jsonl", lint_peers.check_file),
        (f"{DECODE_FOLDER}/*.jsonl", lint_decode.check_file),
        (f"*/{noise_records.FILE}", lint_noise.check_file),
    ):
        for path in sorted(results_dir.glob(pattern)):
            name = str(path.relative_to(results_dir))
            try:
                yield from (Finding(name, series, problem) for series, problem in check(path))
            except OSError:
                continue  # told of by _recorded, which reads every .jsonl


def _commits(repo: Path, branches: Sequence[str | None] | None) -> set[str]:
    """Commits on the first-parent line of ``branches``, and tagged ones."""
    tips = ["--branches"] if branches is None else [branch or "HEAD" for branch in branches]
    found: set[str] = set()
    for tip, options in [*((tip, ["--first-parent"]) for tip in tips), ("--tags", ["--no-walk"])]:
        found |= set(_git(repo, "rev-list", *options, tip, "--").split())
    return found


def _commits_around(
    results_dir: Path, branches: Sequence[str | None] | None, measured: Collection[str]
) -> set[str] | None:
    """The same of the repository that ``results_dir`` lies in; None where none knows the measured commits."""
    if not measured or read_history(results_dir, measured) is None:
        return None
    if _git(results_dir, "rev-parse", "--is-shallow-repository").strip() == "true":
        return None  # it does not hold the commits that it cannot place
    if branches is None:
        branches = _configured_branches(results_dir.resolve().parent / "asv.conf.json")
    try:
        return _commits(results_dir, branches)
    except KdbenchError:  # e.g. a checkout of one commit, which has no branch of that name
        return _commits(results_dir, _EVERY_BRANCH)


def _configured_branches(path: Path) -> Sequence[str | None]:
    from asv.config import Config
    from asv.util import UserError

    if not path.is_file():
        return _EVERY_BRANCH
    try:
        conf = Config.load(str(path))
        branches = _EVERY_BRANCH if conf.branches == [None] else conf.branches
    except (OSError, ValueError, TypeError, AttributeError, RecursionError, UserError) as error:
        raise KdbenchError(f"{path} cannot be read: {error}") from error
    if not isinstance(branches, list | tuple) or not all(isinstance(branch, str | None) for branch in branches):
        raise KdbenchError(f"{path} names branches {branches!r}, and a list of names is expected")
    return branches


def _git(repo: Path, *arguments: str) -> str:
    # Inside a git hook GIT_DIR names the hook's repository and would win over -C.
    env = {key: value for key, value in os.environ.items() if key != "GIT_DIR"}
    command = ["git", "-C", str(repo), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, env=env, timeout=_GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KdbenchError(f"git does not answer for {repo}: {error}") from error
    if done.returncode != 0:
        said = plain_text(done.stderr.decode("utf-8", "replace")).strip().splitlines() or ["no reason given"]
        raise KdbenchError(f"git does not tell which commits {repo} has: {said[0].removeprefix('fatal: ')}")
    return done.stdout.decode("utf-8", "replace")
