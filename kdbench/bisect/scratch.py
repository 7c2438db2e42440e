# SPDX-License-Identifier: Apache-2.0
"""Repositories made for a trial: the engine of a real one, and commits whose speed is known."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Collection
from pathlib import Path

from kdbench import revisions
from kdbench.paired.planted import plant
from kdbench.runner import ENGINE

_BROKEN = "#error this commit does not compile\n"


class Scratch:
    """A repository with the engine of ``origin``'s ``revision``, to be made slower in it.

    Attributes:
        folder: of the repository.
    """

    def __init__(self, folder: Path, origin: Path, revision: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._git("init", "-q", "-b", "main")
        archive = revisions.archive(origin, revisions.resolve(origin, revision), ENGINE)
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        self._broken = folder / "native" / "src" / "cpu" / "broken.cpp"

    def commit(self, title: str, share: float, mark: str, *, broken: bool = False) -> str:
        """Commit the kernels slower by ``share``; the commit's full hash."""
        plant(self.folder / "native", share, mark)
        self._broken.unlink(missing_ok=True)
        if broken:
            self._broken.write_text(_BROKEN, "utf-8")
        self._git("add", "-A", "-f")
        self._git("commit", "-q", "--no-verify", "--no-gpg-sign", "-m", title)
        return self._git("rev-parse", "HEAD").strip()

    def history(self, commits: int, culprit: int, slow: float, broken: Collection[int]) -> list[str]:
        """A good commit and ``commits`` behind it, from ``culprit`` on slower by ``slow``; their hashes.

        Neighbours differ in a comment, and every second commit has the same text: a handful of builds serves all of
        them, and every commit still changes the engine.
        """
        made = [self.commit("good", 0.0, "even")]
        for at in range(1, commits + 1):
            share = slow if at >= culprit else 0.0
            made.append(self.commit(f"commit {at}", share, "odd" if at % 2 else "even", broken=at in broken))
        return made

    def _git(self, *arguments: str) -> str:
        identity = ("-c", "user.name=kdbench", "-c", "user.email=kdbench@localhost")
        return revisions.git(self.folder, *arguments, options=identity)
