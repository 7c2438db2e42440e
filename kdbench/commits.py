# SPDX-License-Identifier: Apache-2.0
"""The history that results are laid out along: first parents, as one ``git log`` tells them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

_FORMAT = "%H%x1f%P%x1f%D%x1f%at%x1f%s"
_TIMEOUT_S = 60


@dataclass(frozen=True)
class Commit:
    """One commit as git knows it: full hash, first parent (None for a root), author time in s, title line."""

    sha: str
    parent: str | None
    time: int
    subject: str


@dataclass(frozen=True)
class History:
    """A line of first parents.

    Attributes:
        line: full hashes, oldest first.
        commits: every commit that a branch or tag reaches through first parents, by full hash: all of ``line``, and the
            commits of other branches.
    """

    line: tuple[str, ...]
    commits: Mapping[str, Commit]


def read_history(repo: Path, measured: Collection[str]) -> History | None:
    """The line of first parents that holds most of the measured commits.

    A checkout of an old commit therefore does not hide the results of newer ones; HEAD's own line wins a tie. One call
    of git.

    Args:
        repo: any folder inside a repository, or a bare one.
        measured: full hashes that results exist for.

    Returns:
        None when there is no repository, no git, or nothing in it that was measured.
    """
    command = ["git", "-C", str(repo), "log", "--all", "HEAD", "--first-parent", "--no-show-signature", "-z"]
    # Inside a git hook GIT_DIR names the hook's repository and would win over -C.
    env = {key: value for key, value in os.environ.items() if key != "GIT_DIR"}
    try:
        done = subprocess.run(
            [*command, f"--format={_FORMAT}"], capture_output=True, env=env, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    commits: dict[str, Commit] = {}
    head: str | None = None
    for record in done.stdout.decode("utf-8", "replace").split("\0"):
        fields = record.strip("\n").split("\x1f", 4)
        if len(fields) != 5:
            continue
        sha, parents, refs, time, subject = fields
        commits[sha] = Commit(sha, parents.split()[0] if parents else None, int(time or 0), subject)
        if any(ref == "HEAD" or ref.startswith("HEAD -> ") for ref in refs.split(", ")):
            head = sha
    wanted = set(measured) & commits.keys()
    if not wanted:
        return None
    best: tuple[str, ...] = ()
    best_count = -1
    for tip in _tips(commits, head):
        line = _line_to(tip, commits)
        count = len(wanted.intersection(line))
        if count > best_count:
            best, best_count = line, count
    return History(best, commits)


def _tips(commits: Mapping[str, Commit], head: str | None) -> list[str]:
    """Commits that nothing continues, HEAD before them all."""
    continued = {commit.parent for commit in commits.values()}
    ends = [sha for sha in commits if sha not in continued and sha != head]
    return ([head] if head else []) + ends


def _line_to(tip: str, commits: Mapping[str, Commit]) -> tuple[str, ...]:
    line: list[str] = []
    at: str | None = tip
    # A shallow clone names parents that it does not hold: the line ends there.
    while at is not None and at in commits:
        line.append(at)
        at = commits[at].parent
    return tuple(reversed(line))
