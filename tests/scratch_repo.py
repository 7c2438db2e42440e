# SPDX-License-Identifier: Apache-2.0
"""A repository whose commits say how fast they are, and a comparison that believes them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from kdbench.paired.types import Build, BuildError, Comparison, PairedResult
from kdbench.runner import series_names

ACCEPT = "bench_tree_accept.TreeAccept.kern_hot('b64-d7-n1-full', 'cpu')"
BUILD = "bench_tree_build.TreeBuild.kern_hot('b64-d7-k16-n1-sharp', 'cpu')"


class ScratchRepo:
    """Commits that change native/src/speed, or nothing of the engine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str) -> str:
        identity = ["-c", "user.name=Ada", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"]
        command = ["git", "-C", str(self.folder), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, title: str, text: str | None = None, path: str = "native/src/speed") -> str:
        """Commit ``text`` in ``path``: the ratio of this commit's time, "broken", or whatever else."""
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(title if text is None else text)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", title)
        return self.git("rev-parse", "HEAD")

    def read(self, commit: str) -> str:
        return self.git("show", f"{commit}:native/src/speed")


def paired_result(
    series: str, verdict: str, ratio: float | None, width: float = 0.002, reasons: tuple[str, ...] = ()
) -> PairedResult:
    ends = (None, None) if ratio is None else (ratio - width, ratio + width)
    names = ("tree_accept", "b64-d7-n1-full", "cpu", "hot", "seconds", "lower")
    return PairedResult(series, *names, verdict, ratio, *ends, processes=8, reasons=reasons)


def broken_sources() -> BuildError:
    """What building a commit raises whose sources do not compile."""
    return BuildError("the commit does not compile", Path("build.log"))


class Believing:
    """``kdbench.paired.compare`` without a machine: what the commits say of themselves, in two series.

    Attributes:
        asked: (base, head, regular expression, options) of each call.
        verdicts: by series, in the place of what the commits say.
    """

    def __init__(self, repo: ScratchRepo) -> None:
        self.repo = repo
        self.asked: list[tuple[str, str, str | None, dict[str, Any]]] = []
        self.verdicts: dict[str, PairedResult] = {}
        self.interrupt_after = 10**9
        self.error: Exception | None = None

    def __call__(
        self, repo: Path, base: str, head: str | None, series_regex: str | None = None, **options: Any
    ) -> Comparison:
        assert head is not None
        self.asked.append((base, head, series_regex, options))
        if self.error is not None:
            raise self.error
        levels = [self.repo.read(commit) for commit in (base, head)]
        if any(level.startswith("broken") for level in levels):
            raise broken_sources()
        wanted = series_names(("tree_accept", "tree_build"), ("cpu",), ("primary",), None, series_regex)
        ratio = float(levels[1]) / float(levels[0])
        results = tuple(
            self.verdicts.get(series) or self._judge(series, ratio if series == ACCEPT else 1.0, options)
            for series in (ACCEPT, BUILD)
            if series in wanted
        )
        sides = [Build(commit, commit, False, "tree", "key", {}) for commit in (base, head)]
        stopped = len(self.asked) > self.interrupt_after
        return Comparison(*sides, results, "box", "2026-12-01T00:00:00+00:00", interrupted=stopped, seconds=1.5)

    def _judge(self, series: str, ratio: float, options: dict[str, Any]) -> PairedResult:
        limit = options["min_effect"]
        limit = limit.get(series, 0.02) if isinstance(limit, dict) else limit or 0.02
        verdict = "SLOWER" if ratio > 1 + limit - 0.002 else "FASTER" if ratio < 1 - limit else "SAME"
        return paired_result(series, verdict, ratio)
