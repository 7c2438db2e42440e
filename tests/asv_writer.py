# SPDX-License-Identifier: Apache-2.0
"""Results directories for tests, written by asv's own classes: what is read back is what asv would have stored."""

from __future__ import annotations

import itertools
import math
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from asv import util
from asv.benchmarks import Benchmarks
from asv.machine import Machine
from asv.results import Results
from asv.runner import BenchmarkResult

DAY_MS = 86_400_000
START_MS = 1_750_000_000_000


def benchmark(name: str, *, params: Mapping[str, Sequence[Any]] | None = None, **extra: Any) -> dict[str, Any]:
    """One entry of benchmarks.json; ``params`` by name, their values as Python objects."""
    params = params or {}
    return {
        "name": name,
        "params": [[repr(value) for value in values] for values in params.values()],
        "param_names": list(params),
        "unit": "seconds",
        "version": "1",
        "rounds": 5,
        "type": "kernel",
        "timeout": 60,
        **extra,
    }


class AsvDirectory:
    """An asv results directory that grows by one file a call of ``add``."""

    def __init__(self, root: Path, benchmarks: Sequence[dict[str, Any]]) -> None:
        self.root = root
        self.benchmarks = {entry["name"]: entry for entry in benchmarks}
        util.write_json(str(root / "benchmarks.json"), self.benchmarks, Benchmarks.api_version)

    def add(
        self,
        commit: str,
        cells: Mapping[str, Sequence[Any]],
        *,
        day: float = 0,
        machine: str = "box",
        env: str = "virtualenv-py3.11",
        record_samples: bool = True,
        version: str | None = None,
    ) -> Path:
        """Store results of one commit.

        Args:
            cells: per benchmark one entry a combination: a list of processes (lists of samples), a number, None
                (failed) or NaN (skipped).
            day: of the commit, after a fixed start.
            version: other than benchmarks.json says.
        """
        facts = {"machine": machine, "os": "Linux", "arch": "x86_64", "cpu": f"cpu of {machine}", "num_cpu": "2"}
        record = Machine()
        record.__dict__.update(facts)
        record.save(str(self.root))
        results = Results({**facts, "python": "3.11"}, {}, commit, int(START_MS + day * DAY_MS), "3.11", env, {})
        for name, entries in cells.items():
            entry = self.benchmarks.get(name) or benchmark(name)
            assert len(entries) == len(list(itertools.product(*entry["params"])))
            samples = [list(itertools.chain(*cell)) if isinstance(cell, list) else None for cell in entries]
            values = [float(np.median(s)) if s else cell for s, cell in zip(samples, entries, strict=True)]
            number = [1 if s else None for s in samples]
            results.add_result(
                {**entry, "version": version or entry["version"]},
                BenchmarkResult(values, samples, number, 0, "", None),
                record_samples=record_samples,
            )
        results.save(str(self.root))
        return self.root / machine / f"{commit[:8]}-{env}.json"


def processes(rng: np.random.Generator, level: float, sd: float = 0.005, count: int = 5, n: int = 20) -> list[Any]:
    """Samples of ``count`` processes around ``level`` s: between them a relative sd of ``sd``, within 0.2 %."""
    centers = level * np.exp(rng.normal(0.0, sd, count))
    return [[float(x) for x in center * np.exp(rng.normal(0.0, 0.002, n))] for center in centers]


def git_repository(root: Path, subjects: Sequence[str]) -> list[str]:
    """A repository with one empty commit a subject; their hashes, oldest first."""
    git(root, "init", "-q", "-b", "main")
    return [git_commit(root, subject, day) for day, subject in enumerate(subjects)]


def git_commit(root: Path, subject: str, day: float) -> str:
    git(root, "commit", "-q", "--allow-empty", "-m", subject, day=day)
    return git(root, "rev-parse", "HEAD")


def git(root: Path, *args: str, day: float = 0) -> str:
    root.mkdir(parents=True, exist_ok=True)
    when = f"{math.floor(START_MS / 1000 + day * 86400)} +0000"
    who = {"NAME": "A", "EMAIL": "a@example.org", "DATE": when}
    env = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in who.items()}
    env |= {
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "HOME": str(root),
        "PATH": "/usr/bin:/bin:/usr/local/bin",
    }
    done = subprocess.run(["git", *args], cwd=root, env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def planted(
    root: Path,
    repo: Path,
    *,
    commits: int = 12,
    slow_at: int = 7,
    effect: float = 1.08,
    seed: int = 1,
    sd: float = 0.005,
) -> list[str]:
    """A history in which one commit makes one of three time series and the one throughput series worse, for good.

    Slower from ``slow_at`` on: workload "b" of bench.Kern.kern_hot by ``effect``, bench.track_tok_s by its inverse.
    """
    hashes = git_repository(repo, [f"change {at}" for at in range(commits)])
    directory = AsvDirectory(
        root,
        [
            benchmark("bench.Kern.kern_hot", params={"workload": ["a", "b", "c"], "backend": ["cpu", "cuda"]}),
            benchmark("bench.track_tok_s", unit="tok/s", direction="higher"),
        ],
    )
    rng = np.random.default_rng(seed)
    for at, commit in enumerate(hashes):
        worse = effect if at >= slow_at else 1.0
        times = [12.3e-6, 40e-6 * worse, 1.7e-3]
        cells: list[Any] = [cell for t in times for cell in (processes(rng, t, sd), math.nan)]
        rate = [[1.0 / x for x in process] for process in processes(rng, worse / 950.0, sd)]
        directory.add(commit, {"bench.Kern.kern_hot": cells, "bench.track_tok_s": [rate]}, day=at)
    return hashes
