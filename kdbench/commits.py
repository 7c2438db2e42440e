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
    """The line of first parents that the results belong to.

    Measured work that no other branch has decides for HEAD's line: what is checked out is what one asks about, however
    little of it is measured. Otherwise it is the line that holds most of the measured commits, HEAD's in a tie. A line
    that goes on where HEAD stands counts as HEAD's, so that a checkout of an old commit does not hide newer results.
    One call of git.

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
    lines = [_line_to(tip, commits) for tip in _tips(commits, head)]
    ours = [line for line in lines if head in line]
    # The part of HEAD's line that it shares at most with lines that lead through HEAD themselves.
    own = set(ours[0]).difference(*(line for line in lines if head not in line)) if ours else set()
    # max keeps the first of equals, and the line to HEAD comes first.
    best = max(ours if wanted & own else lines, key=lambda line: len(wanted.intersection(line)))
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


def read_releases(repo: Path) -> dict[str, str]:
    """Tagged commits: full hash -> name of the tag; {} without a repository."""
    command = [
        "git",
        "-C",
        str(repo),
        "for-each-ref",
        "refs/tags",
        "--format=%(objectname) %(*objectname) %(refname:short)",
    ]
    env = {key: value for key, value in os.environ.items() if key != "GIT_DIR"}
    try:
        done = subprocess.run(command, capture_output=True, env=env, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    if done.returncode != 0:
        return {}
    rows = (line.split(" ", 2) for line in done.stdout.decode("utf-8", "replace").splitlines())
    # An annotated tag is an object of its own, which names the commit second.
    return {tagged or own: name for own, tagged, name in rows}
