# SPDX-License-Identifier: Apache-2.0
"""Is a results folder sound? Everything that would make asv hang, crash or mislead, found before it does.

A finding is *fatal* when ``asv publish`` would not end or not write a page; ``kdbench.asv_plugin`` refuses to publish
then. The others mislead or lose history, and ``kdbench lint`` fails on them too.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kdbench.lint_results import check_file
from kdbench.provenance import MEASUREMENT

_MACHINE_KEYS = {"machine", "os", "arch", "cpu", "num_cpu", "ram", "gpu", "version"}
_RESULT_NAME = re.compile(r"[0-9a-f]{8}-.+\.json")
_HASH = re.compile(r"[0-9a-f]{40,}")
_GIT_TIMEOUT_S = 60


@dataclass(frozen=True, order=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        path: the file, relative to the results folder.
        series: "benchmark(parameters)" where one is meant, else "".
        problem: what is wrong, in one sentence.
        fatal: asv publish would hang or die on it.
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
        repo: the measured repository; without it nobody asks whether commits are on a branch.
        branches: the branches that are published; None means all local ones.
    """
    benchmarks, findings = _benchmarks(results_dir)
    on_branch = _commits(repo, branches) if repo else None
    recorded = _recorded(results_dir)
    seen: dict[str, str] = {}
    for path in sorted(results_dir.rglob("*.json")):
        name = str(path.relative_to(results_dir))
        if name == "benchmarks.json":
            continue
        if path.name == "machine.json":
            findings += _machine(path, name)
        elif path.parent == results_dir or not _RESULT_NAME.fullmatch(path.name):
            findings.append(Finding(name, "", "not a file of asv: it reads every .json here, use .jsonl"))
        else:
            findings += _results(path, name, benchmarks, on_branch, recorded, seen)
    return sorted(findings)


def _results(
    path: Path,
    name: str,
    benchmarks: Mapping[str, Any],
    on_branch: set[str] | None,
    recorded: set[tuple[str, ...]],
    seen: dict[str, str],
) -> Iterator[Finding]:
    document, problem = _read(path)
    if problem:
        yield Finding(name, "", problem)
        return
    missing = [key for key in ("commit_hash", "env_name", "params", "results", "result_columns") if key not in document]
    if missing:
        yield Finding(name, "", f"not a result file of asv: it has no {missing[0]}")
        return
    commit, params = str(document["commit_hash"]), document["params"]
    if on_branch is not None and commit not in on_branch:
        yield Finding(name, "", f"commit {commit[:8]} is not on a published branch, and publish leaves it out")
    if str(document["env_name"]).startswith("existing") and not params.get("python"):
        yield Finding(name, "", "an existing environment without the interpreter that it was")
    key = json.dumps([commit, params, document.get("env_vars", {})], sort_keys=True)
    if key in seen:
        yield Finding(name, "", f"same commit and parameters as {seen[key]}: publish averages the two into one point")
    seen.setdefault(key, name)
    if not (path.parent / "machine.json").is_file():
        yield Finding(name, "", "no machine.json beside it, and asv skips it")
    for series, problem, fatal in check_file(document, benchmarks, recorded):
        yield Finding(name, series, problem, fatal)


def _benchmarks(results_dir: Path) -> tuple[Mapping[str, Any], list[Finding]]:
    name = "benchmarks.json"
    if not (results_dir / name).is_file():
        return {}, [Finding(name, "", "missing: asv writes it on every run, and publish needs it", True)]
    document, problem = _read(results_dir / name)
    if problem:
        return {}, [Finding(name, "", problem, True)]
    benchmarks = {key: value for key, value in document.items() if isinstance(value, dict)}
    findings = [
        Finding(name, key, "its version is a hash of its source: a comment would orphan its history")
        for key, value in benchmarks.items()
        if _HASH.fullmatch(str(value.get("version", "")))
    ]
    findings += [
        Finding(name, key, f"direction is {value['direction']!r}, and lower or higher is expected")
        for key, value in benchmarks.items()
        if value.get("direction", "lower") not in ("lower", "higher")
    ]
    return benchmarks, findings


def _machine(path: Path, name: str) -> list[Finding]:
    document, problem = _read(path)
    if problem:
        return [Finding(name, "", problem)]
    findings = [
        Finding(name, "", f"unknown key {key!r}: asv makes a graph of its own for each of its values")
        for key in document
        if key not in _MACHINE_KEYS
    ]
    if document.get("machine") != path.parent.name:
        findings.append(Finding(name, "", f"names machine {document.get('machine')!r} in a folder of another name"))
    return findings


def _read(path: Path) -> tuple[dict[str, Any], str]:
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        return {}, f"cannot be read: {error}"
    return (document, "") if isinstance(document, dict) else ({}, "not a JSON object")


def _recorded(results_dir: Path) -> set[tuple[str, ...]]:
    """(commit, env_name, benchmark, *parameters) of every measurement that passed its digest."""
    found = set()
    for path in results_dir.rglob("*.jsonl"):
        for line in path.read_text("utf-8", "replace").splitlines():
            try:
                record = json.loads(line)
                if record["schema"] == MEASUREMENT and record["workload"]["digest_ok"]:
                    where = (record["commit"], record["env_name"], record["benchmark"])
                    found.add((*map(str, where), *map(str, record["params"].values())))
            except (ValueError, KeyError, TypeError):
                continue
    return found


def _commits(repo: Path, branches: Sequence[str | None] | None) -> set[str] | None:
    """Commits on the first-parent line of ``branches``, and tagged ones; None when git does not tell."""
    tips = ["--branches"] if branches is None else [branch or "HEAD" for branch in branches]
    found: set[str] = set()
    for tip, options in [*((tip, ["--first-parent"]) for tip in tips), ("--tags", ["--no-walk"])]:
        command = ["git", "-C", str(repo), "rev-list", *options, tip, "--"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        if done.returncode == 0:
            found |= set(done.stdout.split())
        elif tip != "--tags":
            return None
    return found
