# SPDX-License-Identifier: Apache-2.0
"""The engine's sources at a revision, or in the working tree as it is now: their identity, and a copy of them.

The working tree is read through an index and an object store of its own, so that nothing of the repository is changed:
neither what is staged, nor its objects.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from kdbench.paired.types import BuildError
from kdbench.runner import ENGINE

WORKTREE = "worktree"
_TIMEOUT_S = 120
_SUBMODULE = "160000"
_OF_A_HOOK = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")


@dataclass(frozen=True)
class Sources:
    """The engine as git knows it.

    Attributes:
        revision: as asked for; "worktree" for the working tree.
        commit: full hash; of the working tree, HEAD's.
        dirty: the working tree's engine differs from that commit's.
        digest: SHA-256 over modes, paths and blobs of all files that a library is built from.
        archive: those files, as a tar.
    """

    revision: str
    commit: str
    dirty: bool
    digest: str
    archive: bytes

    def unpack(self, folder: Path) -> None:
        """Write the files below ``folder``."""
        with tarfile.open(fileobj=BytesIO(self.archive)) as archive:
            archive.extractall(folder, filter="data")


def read(repo: Path, revision: str | None) -> Sources:
    """The engine's sources at ``revision``, or of the working tree for None.

    Raises:
        BuildError: no repository, no such revision, or nothing to build there.
    """
    if not repo.is_dir():
        raise BuildError(f"no repository at {repo}")
    top = _top(repo)
    if revision is not None:
        commit = _commit(top, revision)
        return _of_tree(top, revision, commit, commit, {})
    commit = _commit(top, "HEAD")
    with _snapshot(top) as (tree, environment):
        found = _of_tree(top, WORKTREE, commit, tree, environment)
    return found


def _of_tree(repo: Path, revision: str, commit: str, tree: str, environment: Mapping[str, str]) -> Sources:
    listing = _listing(repo, tree, environment)
    shown = "the working tree" if revision == WORKTREE else f"{revision} ({commit[:8]})"
    if not any(line.endswith("\tnative/CMakeLists.txt") for line in listing):
        raise BuildError(f"{shown} has no native/CMakeLists.txt: there is no engine to build")
    for line in listing:
        if line.startswith(_SUBMODULE):
            name = line.partition("\t")[2]
            raise BuildError(
                f"{name} of {shown} is a git submodule, whose files belong to no commit of this repository"
            )
    # git archive dies on a path that is not there.
    present = [path for path in ENGINE if any(_below(line.partition("\t")[2], path) for line in listing)]
    archive = _git_bytes(repo, "archive", "--format=tar", tree, "--", *present, environment=environment)
    dirty = revision == WORKTREE and listing != _listing(repo, commit, {})
    digest = hashlib.sha256("\n".join(listing).encode()).hexdigest()
    return Sources(revision, commit, dirty, digest, archive)


def _listing(repo: Path, tree: str, environment: Mapping[str, str]) -> list[str]:
    text = _git_bytes(repo, "ls-tree", "-r", "-z", "--full-tree", tree, "--", *ENGINE, environment=environment)
    return [line for line in text.decode("utf-8", "surrogateescape").split("\0") if line]


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


@contextlib.contextmanager
def _snapshot(top: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """A tree of native/ as it lies on disk, untracked files included, ignored ones not; and how git can see it."""
    objects = Path(_git(top, "rev-parse", "--path-format=absolute", "--git-path", "objects").strip())
    with tempfile.TemporaryDirectory(prefix="kdbench-worktree-") as folder:
        environment = {
            "GIT_INDEX_FILE": str(Path(folder) / "index"),
            "GIT_OBJECT_DIRECTORY": str(Path(folder) / "objects"),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(objects),
        }
        (Path(folder) / "objects").mkdir()
        _git_bytes(top, "read-tree", "HEAD", environment=environment)
        if (top / "native").is_dir():
            _git_bytes(top, "add", "-A", "--", "native", environment=environment)
        tree = _git_bytes(top, "write-tree", environment=environment).decode().strip()
        yield tree, environment


def _top(repo: Path) -> Path:
    try:
        return Path(_git(repo, "rev-parse", "--show-toplevel").strip())
    except BuildError:  # a bare repository has commits, and no working tree
        return Path(_git(repo, "rev-parse", "--absolute-git-dir").strip())


def _commit(repo: Path, revision: str) -> str:
    try:
        found = _git(repo, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}").split()
    except BuildError:
        found = []
    if not found:
        raise BuildError(f"{revision!r} is no commit of {repo}")
    return found[-1]


def _git(repo: Path, *arguments: str) -> str:
    return _git_bytes(repo, *arguments).decode("utf-8", "surrogateescape")


def _git_bytes(repo: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> bytes:
    # Inside a git hook these name the hook's repository, and would win over -C.
    given = {
        name: value for name, value in os.environ.items() if name not in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
    }
    command = ["git", "-C", str(repo), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, env={**given, **(environment or {})}, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"git does not answer for {repo}: {error}") from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
        raise BuildError(f"git {arguments[0]} fails in {repo}: {said[0].removeprefix('fatal: ')}")
    return done.stdout
