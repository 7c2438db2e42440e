# SPDX-License-Identifier: Apache-2.0
"""Libraries of a revision, built once: kept outside the repository under what they were made of.

An entry's name is a digest of sources, compilers, flags and architectures; commits that leave the engine alone share
one. An entry appears whole or not at all (built elsewhere, then renamed), and a lock keeps two runs from building the
same. Entries made elsewhere are good too: a machine without a compiler takes what has these sources.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import platformdirs
from filelock import FileLock

from kdbench import native
from kdbench.errors import BackendUnavailable
from kdbench.paired import sources as git_sources
from kdbench.paired import toolchain
from kdbench.paired.sources import Sources
from kdbench.paired.types import Build, BuildError

# Names another folder than the user's cache directory.
CACHE_VARIABLE = "KDBENCH_BUILD_CACHE"
MANIFEST = "build.json"
SCHEMA = "kdbench/build/1"
_LOCK_TIMEOUT_S = 3600
_BUILD_TIMEOUT_S = 3600
_LINES = 6


def cache_dir() -> Path:
    """Where builds are kept."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named) if named else Path(platformdirs.user_cache_dir("kdbench", appauthor=False)) / "builds"


def build(
    repo: Path,
    revision: str | None,
    backends: Sequence[str],
    on_text: Callable[[str], None] | None = None,
) -> Build:
    """The libraries of ``revision`` (None: the working tree), from the cache or built now.

    Args:
        repo: folder inside the repository.
        revision: as git names it.
        backends: which libraries.
        on_text: told what is being built.

    Raises:
        BuildError: no such revision, no compiler, no space, or it does not compile; the log is named.
    """
    found = git_sources.read(repo, revision)
    libraries: dict[str, Path] = {}
    keys = []
    for backend in backends:
        folder = _entry(found, backend, on_text or (lambda text: None))
        libraries[backend] = folder / f"libkdtree_{backend}.so"
        keys.append(folder.name)
    key = keys[0] if len(keys) == 1 else hashlib.sha256("\n".join(keys).encode()).hexdigest()
    return Build(found.revision, found.commit, found.dirty, found.digest, key, libraries)


def made_with(path: Path) -> dict[str, Any]:
    """The toolchain that the library at ``path`` of the cache was built by; {} when its manifest does not say."""
    try:
        document = json.loads((path.parent / MANIFEST).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    found = document.get("toolchain") if isinstance(document, dict) else None
    return found if isinstance(found, dict) else {}


def key_of(sources: str, backend: str, made: dict[str, Any]) -> str:
    """Name of the entry for these sources, backend and toolchain."""
    return hashlib.sha256(json.dumps([sources, backend, made], sort_keys=True).encode()).hexdigest()


def store(library: Path, sources: str, backend: str, made: dict[str, Any]) -> Path:
    """Put a library that exists into the cache; returns its folder.

    Raises:
        BuildError: it is no library of ``backend``, or cannot be written.
    """
    key = key_of(sources, backend, made)
    with _guarded(f"the library {library}"):
        return _publish(library, sources, backend, made, key)


def _entry(found: Sources, backend: str, on_text: Callable[[str], None]) -> Path:
    try:
        made: dict[str, Any] = toolchain.describe(backend)
    except BuildError:
        if ready := _elsewhere(found.digest, backend):
            return ready
        raise
    key = key_of(found.digest, backend, made)
    folder = cache_dir() / key
    if _whole(folder, backend):
        return folder
    shown = "the working tree" if found.dirty else f"{found.revision} ({found.commit[:8]})"
    with _guarded(f"{shown} for {backend}"):
        cache_dir().mkdir(parents=True, exist_ok=True)
        with FileLock(cache_dir() / f"{key}.lock", timeout=_LOCK_TIMEOUT_S):
            if not _whole(folder, backend):  # nobody else has built it while we waited
                on_text(f"building {shown} for {backend}")
                _make(found, backend, made, key, shown)
    return folder


def _make(found: Sources, backend: str, made: dict[str, Any], key: str, shown: str) -> None:
    cmake, ninja = toolchain.tool("cmake"), toolchain.tool("ninja")
    with tempfile.TemporaryDirectory(prefix="kdbench-build-") as folder:
        found.unpack(Path(folder))
        made_in = Path(folder) / "build"
        environment = {
            **os.environ,
            # The same sources must give the same library, whichever commit asks first.
            "ASV_COMMIT": f"tree-{found.digest}",
            "KDTREE_CUDA": "1" if backend == "cuda" else "0",
        }
        configure = [cmake, "-S", str(Path(folder) / "native"), "-B", str(made_in), "-G", "Ninja"]
        configure += [f"-DCMAKE_MAKE_PROGRAM={ninja}", "-DCMAKE_BUILD_TYPE=Release"]
        output = ""
        for command in (configure, [cmake, "--build", str(made_in), "--target", f"kdtree_{backend}"]):
            code, said = _run(command, environment)
            output += said
            if code:
                raise BuildError(*_failure(shown, backend, key, output))
        _publish(made_in / f"libkdtree_{backend}.so", found.digest, backend, made, key)


def _publish(library: Path, sources: str, backend: str, made: dict[str, Any], key: str) -> Path:
    """Copy into a folder that nobody looks at, try it, and rename."""
    folder = cache_dir() / key
    cache_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=cache_dir()) as fresh:
        entry = Path(fresh) / "entry"
        entry.mkdir()
        target = entry / f"libkdtree_{backend}.so"
        shutil.copyfile(library, target)
        manifest = {"schema": SCHEMA, "sources": sources, "backend": backend, "toolchain": made}
        (entry / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", "utf-8")
        if backend == "cpu":  # the other may need a driver to load
            try:
                native.load_file(target, backend)
            except BackendUnavailable as error:
                raise BuildError(f"what was built cannot be used: {error}") from error
        if folder.exists():  # broken, or just made by somebody without our lock
            if _whole(folder, backend):
                return folder
            shutil.rmtree(folder)
        os.replace(entry, folder)
    return folder


def _whole(folder: Path, backend: str) -> bool:
    return (folder / MANIFEST).is_file() and (folder / f"libkdtree_{backend}.so").is_file()


def _elsewhere(sources: str, backend: str) -> Path | None:
    """An entry of these sources made by whatever toolchain, since none is here."""
    for path in sorted(cache_dir().glob(f"*/{MANIFEST}")):
        try:
            document = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError):
            continue
        if (document.get("sources"), document.get("backend")) == (sources, backend) and _whole(path.parent, backend):
            return path.parent
    return None


def _run(command: Sequence[str], environment: dict[str, str]) -> tuple[int, str]:
    # A group of its own would outlive Ctrl-C: this one gets it as well, and ninja stops its compilers.
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            timeout=_BUILD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return 1, f"{error}\n"
    return done.returncode, done.stdout.decode("utf-8", "replace")


def _failure(shown: str, backend: str, key: str, output: str) -> tuple[str, Path | None]:
    """The sentence about a build that failed, and the log that is kept of it."""
    if "No space left on device" in output:
        return f"{shown} cannot be built for {backend}: the disk is full", None
    lines = [line.strip() for line in output.splitlines() if "error" in line.lower()]
    reason = (lines or output.strip().splitlines()[-_LINES:] or ["no output"])[0]
    log: Path | None = cache_dir() / "logs" / f"{key}.log"
    assert log is not None
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(output, "utf-8")
    except OSError:
        log = None
    kept = f"; see {log}" if log else ""
    return f"{shown} does not build for {backend}: {reason}{kept}", log


class _guarded:  # noqa: N801 - reads as the statement it is used in
    """OSErrors inside become one sentence."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, OSError):
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            reason = "the disk is full" if full else error.strerror or str(error)
            where = f" ({error.filename})" if error.filename and not full else ""
            raise BuildError(f"{self._what} cannot be built: {reason}{where}") from error
