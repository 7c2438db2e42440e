# SPDX-License-Identifier: Apache-2.0
"""Repositories made for a trial: the engine of a real one, and commits whose speed is known."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Collection
from pathlib import Path

from kdbench import revisions
from kdbench.bisect import planted
from kdbench.errors import KdbenchError
from kdbench.runner import ENGINE

_BROKEN = "#error this commit does not compile\n"


class Scratch:
    """A repository with the engine of ``origin``'s ``revision``, and ``kernel`` to be made slower in it.

    Attributes:
        folder: of the repository.
        kernel: whose CPU source is planted into.
    """

    def __init__(self, folder: Path, origin: Path, revision: str, kernel: str) -> None:
        self.folder = folder
        self.kernel = kernel
        folder.mkdir(parents=True, exist_ok=True)
        self._git("init", "-q", "-b", "main")
        archive = revisions.archive(origin, revisions.resolve(origin, revision), ENGINE)
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        self._file = folder / planted.source_of(kernel)
        if not self._file.is_file():
            raise KdbenchError(f"{revision} of {origin} has no {planted.source_of(kernel)}")
        self._source = self._file.read_text("utf-8")

    def commit(self, title: str, turns: int, mark: str, *, broken: bool = False) -> str:
        """Commit the kernel with a loop of ``turns``; its full hash."""
        text = planted.plant(self._source, self.kernel, turns, mark)
        self._file.write_text(_BROKEN + text if broken else text, "utf-8")
        self._git("add", "-A", "-f")
        self._git("commit", "-q", "--no-verify", "--no-gpg-sign", "-m", title)
        return self._git("rev-parse", "HEAD").strip()

    def history(self, commits: int, culprit: int, slow: int, broken: Collection[int]) -> list[str]:
        """A good commit and ``commits`` behind it, from ``culprit`` on with ``slow`` turns; their hashes.

        Neighbours differ in a comment, and every second commit has the same text: a handful of builds serves all of
        them, and every commit still changes the engine.
        """
        made = [self.commit("good", planted.FAST, "even")]
        for at in range(1, commits + 1):
            turns = slow if at >= culprit else planted.FAST
            made.append(self.commit(f"commit {at}", turns, "odd" if at % 2 else "even", broken=at in broken))
        return made

    def _git(self, *arguments: str) -> str:
        identity = ("-c", "user.name=kdbench", "-c", "user.email=kdbench@localhost")
        return revisions.git(self.folder, *arguments, options=identity)
