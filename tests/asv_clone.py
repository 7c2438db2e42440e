# SPDX-License-Identifier: Apache-2.0
"""A scratch clone with a history of its own, and asv and kdbench as a user would run them in it."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# What is needed to build the CPU library and measure with it.
_PARTS = ("kdbench", "benchmarks", "native", "asv.conf.json", "pyproject.toml", "README.md", "LICENSE", ".gitignore")
_IGNORED = shutil.ignore_patterns("__pycache__", "build", "build-*", "cuda", "*.so")

SERIES = "bench_tree_accept.TreeAccept.kern_hot('b64-d7-n1-full', 'cpu')"
THROUGHPUT = "bench_throughput.track_output_tok_s"

# More is better, and the value depends on the commit alone: a stand-in for tokens a second.
_THROUGHPUT_SUITE = """
import json, os
from pathlib import Path

VALUES = Path({path!r})


def track_output_tok_s():
    return json.loads(VALUES.read_text())[os.environ["ASV_COMMIT"]]


track_output_tok_s.direction = "higher"
track_output_tok_s.unit = "tokens/s"
track_output_tok_s.version = "1"
"""


class Clone:
    """A repository with the working tree's files, in which commits differ as told.

    Attributes:
        commits: full hashes by title, oldest first.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "clone"
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        self.commits: dict[str, str] = {}
        self._values = folder / "throughput.json"
        for part in _PARTS:
            source = ROOT / part
            target = self.folder / part
            if source.is_dir():
                shutil.copytree(source, target, ignore=_IGNORED)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)
        suite = _THROUGHPUT_SUITE.format(path=str(self._values))
        (self.folder / "benchmarks" / "bench_throughput.py").write_text(suite)
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("KDTREE_", "KDBENCH_", "ASV_"))},
            "HOME": str(self.home),
            "KDBENCH_MACHINE": "box",
            "KDTREE_CUDA": "0",
            # Objects survive from commit to commit: what is tested is asv, not the compiler.
            "SKBUILD_BUILD_DIR": str(folder / "objects"),
            "GIT_CONFIG_GLOBAL": "/dev/null",
        }
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
        command = ["git", "-C", str(self.folder), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, title: str, throughput: float = 100.0) -> str:
        """Commit the working tree, with something in native/src/ that makes every commit a build of its own."""
        (self.folder / "native" / "src" / "TITLE").write_text(title)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", title)
        self.commits[title] = self.git("rev-parse", "HEAD")
        known = json.loads(self._values.read_text()) if self._values.exists() else {}
        self._values.write_text(json.dumps({**known, self.commits[title]: throughput}))
        return self.commits[title]

    def edit(self, path: str, pattern: str, replacement: str) -> None:
        """Replace the one match of ``pattern`` in a file."""
        text, count = re.subn(pattern, replacement, (self.folder / path).read_text())
        assert count == 1, f"{pattern} matches {count} times in {path}"
        (self.folder / path).write_text(text)

    def run(self, *command: str, code: int = 0, **environment: str) -> str:
        """Run Python with ``command`` in the clone; its output, once it ended with ``code``."""
        done = subprocess.run(
            [sys.executable, *command],
            cwd=self.folder,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == code, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def asv(self, *arguments: str, code: int = 0) -> str:
        """Run asv."""
        return self.run("-m", "asv", *arguments, code=code)

    def result(self, title: str, machine: str = "box") -> Mapping[str, Any]:
        """asv's result file of a commit."""
        path = self.folder / "results" / machine / f"{self.commits[title][:8]}-overlay-py{python()}.json"
        document: Mapping[str, Any] = json.loads(path.read_text())
        return document

    def row(self, title: str, series: str, machine: str = "box") -> dict[str, Any]:
        """The columns of one series of one commit."""
        document = self.result(title, machine)
        name, _, parameters = series.partition("(")
        cells = dict(zip(document["result_columns"], document["results"][name], strict=False))
        if not parameters:
            return {key: value[0] if isinstance(value, list) and value else value for key, value in cells.items()}
        workload, backend = parameters.rstrip(")").split(", ")
        workloads, backends = cells["params"]
        index = workloads.index(workload) * len(backends) + backends.index(backend)
        picked = ("result", "samples", "stats_repeat", "stats_number")
        return {key: cells[key][index] for key in picked if isinstance(cells.get(key), list)}

    def lines(self, name: str, machine: str = "box") -> list[dict[str, Any]]:
        """Records of a .jsonl file, which may be growing: a line counts once it has its end."""
        path = self.folder / "results" / machine / name
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def measurements(self, title: str, machine: str = "box") -> list[dict[str, Any]]:
        """Side records of a commit."""
        return self.lines(f"{self.commits[title][:8]}-overlay-py{python()}.jsonl", machine)


def python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def kdbench_run(**options: Any) -> list[str]:
    """Arguments of a Python that ends with the exit code of kdbench.runner.run."""
    text = "import sys, pathlib; from kdbench.runner import run; sys.exit(run(pathlib.Path('.').absolute(), **{}))"
    return ["-c", text.format(options)]


@functools.cache
def history(folder: Path) -> Clone:
    """Nine commits: the third does not compile, the fifth is slow, the seventh costs a quarter of throughput.

    One clone a session: its library is compiled once.
    """
    made = Clone(folder / "history")
    accept = "native/src/cpu/tree_accept.cpp"
    entry = r"(kdt_tree_accept\([^;{]*\)\s*(?:noexcept\s*)?\{)"
    made.commit("one")
    made.commit("two")
    made.edit(accept, entry, r"\1 this does not compile;")
    made.commit("broken")
    made.edit(accept, " this does not compile;", "")
    made.commit("mended")
    made.edit(accept, entry, r"\1 for (volatile int spin = 0; spin < 60000; spin = spin + 1) {}")
    made.commit("slow")
    made.commit("six")
    for title in ("seven", "eight", "nine"):
        made.commit(title, throughput=75.0)
    return made
