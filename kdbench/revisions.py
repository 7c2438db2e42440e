# SPDX-License-Identifier: Apache-2.0
"""What people call commits, as git knows them: names, ranges, and the commits of a line that changed the engine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kdbench.errors import InvalidArgument, KdbenchError
from kdbench.runner import ENGINE

_FORMAT = "%H%x1f%an%x1f%aI%x1f%s"
_TIMEOUT_S = 60


@dataclass(frozen=True)
class Revision:
    """A commit: full hash, author's name, author's date (ISO 8601) and title line."""

    sha: str
    author: str
    date: str
    subject: str


def resolve(repo: Path, name: str) -> str:
    """The full hash of the commit that ``name`` stands for.

    Raises:
        InvalidArgument: ``repo`` is no repository, or knows no such commit.
    """
    # What begins with a dash would be read as an option.
    sound = name.strip() and not name.startswith("-")
    found = _run(repo, "rev-parse", "-q", "--verify", f"{name}^{{commit}}") if sound else None
    if found is None or found.returncode:
        if _run(repo, "rev-parse", "--git-dir").returncode:
            raise InvalidArgument(f"{repo} is no git repository")
        raise InvalidArgument(f"{repo} has no commit {name!r}")
    return found.stdout.strip()


def ends(repo: Path, text: str) -> tuple[str, str]:
    """Full hashes of both ends of a range.

    ``A..B`` is A and B, ``A...B`` their merge base and B, and ``B`` alone its first parent and B. An end that is left
    out is HEAD.

    Raises:
        InvalidArgument: an end is unknown, or B has no parent.
    """
    if "..." in text:
        left, _, right = text.partition("...")
        head = resolve(repo, right or "HEAD")
        return merge_base(repo, resolve(repo, left or "HEAD"), head), head
    if ".." in text:
        left, _, right = text.partition("..")
        return resolve(repo, left or "HEAD"), resolve(repo, right or "HEAD")
    head = resolve(repo, text)
    parent = _run(repo, "rev-parse", "-q", "--verify", f"{head}^1")
    if parent.returncode:
        raise InvalidArgument(
            f"{text} has no parent here to be compared with (in a shallow clone: git fetch --unshallow)"
        )
    return parent.stdout.strip(), head


def merge_base(repo: Path, one: str, other: str) -> str:
    """The newest commit that both hold; InvalidArgument when there is none."""
    found = _run(repo, "merge-base", one, other)
    if found.returncode:
        raise InvalidArgument(f"{one[:10]} and {other[:10]} have no commit in common here")
    return found.stdout.strip()


def is_ancestor(repo: Path, old: str, new: str) -> bool:
    """True when ``new`` holds ``old``; False also when ``old`` is unknown here."""
    return _run(repo, "merge-base", "--is-ancestor", old, new).returncode == 0


def holds(repo: Path, base: str, head: str, commits: str) -> bool:
    """True when ``base..head`` holds the commit, or one of the "a..b", that ``commits`` names."""
    if ".." not in commits:
        return is_ancestor(repo, commits, head) and not is_ancestor(repo, commits, base)
    wanted = _run(repo, "rev-list", commits)
    if wanted.returncode:
        return False
    here = set(git(repo, "rev-list", f"{base}..{head}").split())
    return not here.isdisjoint(wanted.stdout.split())


def engine_line(repo: Path, good: str, bad: str) -> list[Revision]:
    """The commits of ``bad``'s line of first parents behind ``good`` that changed the engine, oldest first.

    Raises:
        InvalidArgument: ``bad`` does not hold ``good``.
    """
    if not is_ancestor(repo, good, bad):
        base = merge_base(repo, good, bad)
        raise InvalidArgument(
            f"{good[:10]} is no ancestor of {bad[:10]}; {base[:10]} is the newest commit that both have: start there"
        )
    asked = ["--first-parent", "--reverse", "-z", f"--format={_FORMAT}", f"{good}..{bad}", "--", *_engine_paths()]
    told = git(repo, "log", *asked)
    return [_revision(record) for record in told.split("\0") if record.strip()]


def same_engine(repo: Path, base: str, head: str) -> bool:
    """True when no source of the engine differs between two commits."""
    code = _run(repo, "diff", "--quiet", "--no-ext-diff", base, head, "--", *_engine_paths()).returncode
    if code not in (0, 1):
        raise KdbenchError(f"git cannot compare {base[:10]} with {head[:10]} in {repo}")
    return code == 0


def describe(repo: Path, sha: str) -> Revision:
    """Who wrote ``sha``, when, and its title."""
    return _revision(git(repo, "log", "-1", f"--format={_FORMAT}", sha))


def native_changes(repo: Path, base: str, head: str, *, stat: bool) -> str:
    """``git diff`` of native/ between two commits, as a table of files or whole."""
    options = ["--stat=100", "--no-color"] if stat else ["--no-color", "--no-ext-diff"]
    return git(repo, "diff", *options, base, head, "--", ":/native").rstrip()


def archive(repo: Path, commit: str, paths: Sequence[str]) -> bytes:
    """Those of ``paths`` that ``commit`` has, with all below them, as a tar."""
    there = [path for path in paths if git(repo, "ls-tree", "--full-tree", commit, "--", path)]
    command = ["git", "-C", str(repo), "archive", "--format=tar", commit, "--", *(f":/{path}" for path in there)]
    try:
        return subprocess.run(command, capture_output=True, env=_environment(), timeout=_TIMEOUT_S, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise KdbenchError(f"git cannot archive {commit[:10]} of {repo}: {error}") from error


def git(repo: Path, *arguments: str, options: Sequence[str] = ()) -> str:
    """What git says; KdbenchError with its own words when it fails.

    Args:
        options: of git itself, before the command.
    """
    done = _run(repo, *arguments, options=options)
    if done.returncode:
        raise KdbenchError(f"git {arguments[0]} failed in {repo}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def _engine_paths() -> list[str]:
    """From the top of the repository, in whichever folder of it one stands."""
    return [f":/{path}" for path in ENGINE]


def _revision(record: str) -> Revision:
    sha, author, date, subject = record.strip("\n").split("\x1f", 3)
    return Revision(sha, author, date, subject)


def _run(repo: Path, *arguments: str, options: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    command = ["git", "-C", str(repo), "-c", "log.showSignature=false", *options, *arguments]
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            env=_environment(),
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KdbenchError(f"git cannot be run in {repo}: {error}") from error


def _environment() -> dict[str, str]:
    # Inside a git hook these name the hook's repository and would win over -C.
    names = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
    return {key: value for key, value in os.environ.items() if key not in names}
