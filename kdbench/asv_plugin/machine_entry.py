# SPDX-License-Identifier: Apache-2.0
"""A machine entry that writes itself.

asv refuses to run until ``~/.asv-machine.json`` names the machine, and looks it up by host name, which changes with
every container. Here the name is the hardware's, and a missing entry is added without touching the others.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from asv import machine as asv_machine
from asv import util
from asv.commands.compare import Compare

from kdbench import machine

# Used when the home folder cannot be written to; relative to the folder of asv.conf.json.
_FALLBACK = Path(".asv/machine.json")


_current: list[str] = []


def current() -> str:
    """The machine name that results are saved under: ``--machine``, else this machine's own."""
    return _current[-1] if _current else str(asv_machine.Machine.get_unique_machine_name())


def install() -> None:
    """Make asv use this machine's entry, which is written when it is missing."""
    entry = machine.identity()
    save = asv_machine.Machine.save

    def remember(self: Any, results_dir: str) -> None:
        _current.append(self.machine)
        save(self, results_dir)

    asv_machine.Machine.save = remember
    asv_machine.Machine.hardcoded_machine_name = entry["machine"]
    _compare_here(entry["machine"])
    path = Path(asv_machine.MachineCollection.get_machine_file_path())
    try:
        add_entry(path, entry)
    except OSError:
        fallback = _FALLBACK.absolute()
        add_entry(fallback, entry)
        asv_machine.MachineCollection.get_machine_file_path = staticmethod(lambda: str(fallback))


def _compare_here(name: str) -> None:
    """Let ``asv compare`` take this machine's results when there are others beside them, instead of asking which."""
    original = Compare.run.__func__

    def run(cls: Any, /, conf: Any, *args: Any, machine: str | None = None, **options: Any) -> Any:
        here = name if (Path(conf.results_dir) / name).is_dir() else None
        return original(cls, conf, *args, machine=machine or here, **options)

    Compare.run = classmethod(run)


def add_entry(path: Path, entry: dict[str, str]) -> None:
    """Add ``entry`` to asv's machine file under its own name unless that name is there; atomic.

    Raises:
        asv.util.UserError: the file is there and is not what asv writes.
        OSError: the folder cannot be written to.
    """
    known: dict[str, Any] = {}
    if path.exists():
        try:
            known = json.loads(path.read_text("utf-8"))
            valid = isinstance(known, dict)
        except ValueError:
            valid = False
        if not valid:
            raise util.UserError(f"{path} is not a machine file of asv: repair or remove it")
    if entry["machine"] in known:
        # asv itself rewrites the file on every run: better to hear of a read-only folder here.
        if not os.access(path, os.W_OK):
            raise PermissionError(f"{path} cannot be written")
        return
    known[entry["machine"]] = entry
    known["version"] = asv_machine.MachineCollection.api_version
    write_atomically(path, json.dumps(known, indent=4, sort_keys=True))


def write_atomically(path: Path, text: str) -> None:
    """Write ``text`` to a temporary file beside ``path`` and rename it: nobody ever sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        # mkstemp's 0600 would hide results from other users.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
