# SPDX-License-Identifier: Apache-2.0
"""Machine code that is compiled once and kept, so that what it runs is the same for years.

The kept code is found by its source and its architecture, not by the compiler: another compiler must not replace it
behind a reader's back. Where it is lost it is compiled again, and every record says so, with a digest that tells
whether it came out as before.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

# Instead of the user's cache folder.
CACHE_VARIABLE = "KDBENCH_CACHE_DIR"
_MANIFEST = "manifest.json"


class BuildError(RuntimeError):
    """No machine code can be made here."""


@dataclass(frozen=True)
class Code:
    """Machine code that is ready to be loaded.

    Attributes:
        path: the file.
        sha256: of the machine code.
        source_sha256: of what it was compiled from.
        compiler: that made it, with its version.
        arch: that it runs on.
        built: when, ISO 8601.
        fresh: why this process compiled it; "" when it was kept from before.
        kept: it will be there for the next process.
    """

    path: Path
    sha256: str
    source_sha256: str
    compiler: str
    arch: str
    built: str
    fresh: str
    kept: bool

    def record(self) -> dict[str, Any]:
        """As JSON; the path is left out, since it says nothing about the code."""
        return {key: value for key, value in asdict(self).items() if key != "path"}


def cache_folder() -> Path:
    """Where code is kept: KDBENCH_CACHE_DIR, else XDG_CACHE_HOME/kdbench, else ~/.cache/kdbench.

    Raises:
        RuntimeError: there is no home.
    """
    if folder := os.environ.get(CACHE_VARIABLE):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kdbench"


def keep(name: str, source: bytes, arch: str, build: Callable[[], tuple[bytes, str]]) -> Code:
    """The kept code of ``source``; compiled and kept first where there is none.

    Args:
        name: of the file, with its ending.
        source: what ``build`` compiles.
        arch: what it is for.
        build: returns the machine code and the compiler's name.

    Raises:
        BuildError: there is no kept code, and none can be made.
    """
    digest = hashlib.sha256(source).hexdigest()
    try:
        folder = cache_folder() / "calibration" / f"{arch}-{digest[:16]}"
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked(folder.with_suffix(".lock")):
            damage = _damage(folder, name)
            if damage is not None:
                _install(folder, name, *_built(build), digest, arch)
            found = _kept(folder, name, fresh=damage or "")
    except (OSError, RuntimeError) as error:
        if isinstance(error, BuildError):
            raise
        return _unkept(name, digest, arch, build, f"it cannot be kept: {error}")
    if damage is not None:
        print(f"kdbench: calibration code of {arch} compiled ({damage}): {found.sha256[:16]}", file=sys.stderr)
    return found


def _damage(folder: Path, name: str) -> str | None:
    """Why the kept code cannot be used; None when it can."""
    if not folder.exists():
        return "first use"
    try:
        manifest = json.loads((folder / _MANIFEST).read_text("utf-8"))
        code = (folder / name).read_bytes()
        wanted = str(manifest["sha256"])
        _ = [str(manifest[key]) for key in ("source_sha256", "compiler", "arch", "built")]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"what was kept is damaged: {type(error).__name__}"
    if hashlib.sha256(code).hexdigest() != wanted:
        return "what was kept is damaged: it has another digest"
    return None


def _kept(folder: Path, name: str, fresh: str) -> Code:
    manifest = json.loads((folder / _MANIFEST).read_text("utf-8"))
    fields = {key: str(manifest[key]) for key in ("sha256", "source_sha256", "compiler", "arch", "built")}
    return Code(path=folder / name, fresh=fresh, kept=True, **fields)


def _install(folder: Path, name: str, code: bytes, compiler: str, digest: str, arch: str) -> None:
    """Code and manifest appear together, and never half-written."""
    made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".new-"))
    try:
        (made / name).write_bytes(code)
        (made / _MANIFEST).write_text(json.dumps(_manifest(code, digest, compiler, arch), indent=1) + "\n", "utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        made.rename(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Of processes that want the same code at once one compiles it."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _built(build: Callable[[], tuple[bytes, str]]) -> tuple[bytes, str]:
    try:
        return build()
    except Exception as error:
        raise BuildError(str(error) or type(error).__name__) from error


def _manifest(code: bytes, digest: str, compiler: str, arch: str) -> dict[str, str]:
    return {
        "sha256": hashlib.sha256(code).hexdigest(),
        "source_sha256": digest,
        "compiler": compiler,
        "arch": arch,
        "built": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _unkept(name: str, digest: str, arch: str, build: Callable[[], tuple[bytes, str]], why: str) -> Code:
    """Code in a folder that ends with this process."""
    code, compiler = _built(build)
    folder = tempfile.TemporaryDirectory(prefix="kdbench-calibration-")
    _FOLDERS.append(folder)
    path = Path(folder.name) / name
    path.write_bytes(code)
    return Code(path=path, fresh=why, kept=False, **_manifest(code, digest, compiler, arch))


# Removed at exit: loaded code must outlive the call that made it.
_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []
