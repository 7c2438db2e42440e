# SPDX-License-Identifier: Apache-2.0
"""A paired comparison of two revisions: builds, processes, looks, verdicts."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from kdbench import decode_workloads, machine, native, runner, workloads
from kdbench.analysis.paired import LOOKS
from kdbench.errors import InvalidArgument
from kdbench.paired import builds, records
from kdbench.paired.plan import DONE, SIDES, Answer, Item, Plan
from kdbench.paired.types import Build, BuildError, Comparison, Update
from kdbench.paired.verdicts import Verdicts

# A process that says nothing for so long hangs: the longest series takes some seconds.
_SILENCE_S = 300
# The smallest change that a reader is told of, as for every benchmark here.
MIN_EFFECT = 0.02
_NAME = re.compile(r"^\w+\.\w+\.(?:kern_(?P<mode>\w+)|\w+)\('(?P<workload>[^']+)', '(?P<backend>\w+)'\)$")


def compare(
    repo: Path,
    base: str,
    head: str | None,
    series_regex: str | None = None,
    *,
    kernels: Sequence[str] | None = None,
    backends: Sequence[str] = native.BACKENDS,
    modes: Sequence[str] = ("primary",),
    tag: str | None = None,
    min_effect: float | Mapping[str, float] | None = None,
    processes: int = 24,
    results_dir: Path | None = None,
    machine_name: str | None = None,
    on_update: Callable[[Update], None] | None = None,
) -> Comparison:
    """Which series does ``head`` change against ``base``?

    Args:
        repo: folder inside the repository.
        base, head: revisions as git names them; a head of None is the working tree's state, uncommitted changes
            included.
        series_regex: only series whose asv name this regular expression finds.
        kernels, backends, modes, tag: as for ``kdbench.runner.run``; a backend that cannot be used here is left out.
        min_effect: smallest change that counts, for all series or by asv name (others keep theirs); None is each
            series's own, 2 %.
        processes: most processes a series; looks are at 8, 12, 16 and 24 of them.
        results_dir: where ``<machine>/paired.jsonl`` gets a line a series; None writes nothing.
        machine_name: name to file them under, instead of this machine's.
        on_update: called after each build and each process; what it raises ends the comparison.

    Returns:
        The comparison; after Ctrl-C (KeyboardInterrupt) what is known by then, ``interrupted``.

    Raises:
        InvalidArgument: no series fits, or an argument is out of range.
        BuildError: a revision is unknown, or cannot be built; nothing is left half-built.
    """
    started, start = datetime.now(UTC).isoformat(timespec="seconds"), time.perf_counter()
    tell = on_update or (lambda update: None)
    if not LOOKS[0] <= processes <= LOOKS[-1]:
        raise InvalidArgument(f"processes is {processes}, and {LOOKS[0]} to {LOOKS[-1]} are expected")
    items = choose(series_regex, kernels=kernels, backends=backends, modes=modes, tag=tag)
    wanted = list(dict.fromkeys(item.backend for item in items))
    sides = [
        builds.build(repo, revision, wanted, lambda text: tell(Update("build", text))) for revision in (base, head)
    ]
    _same_toolchain(sides, wanted)
    verdicts = Verdicts(items, effects(items, min_effect), processes)
    interrupted = False
    try:
        with Session(({"base": sides[0].libraries, "head": sides[1].libraries},)) as session:
            for index in range(processes):
                left = verdicts.unsettled()
                if not left:
                    break
                for answer in session.process(index, left):
                    verdicts.add(answer)
                    tell(_update(verdicts, index, answer.series, start))
                verdicts.look(index + 1)
                tell(_update(verdicts, index + 1, "", start))
    except KeyboardInterrupt:
        interrupted = True
    comparison = Comparison(
        base=sides[0],
        head=sides[1],
        results=verdicts.results(),
        machine=machine_name or machine.identity()["machine"],
        started=started,
        interrupted=interrupted,
        seconds=time.perf_counter() - start,
        same_sources=sides[0].sources == sides[1].sources,
        covariates=machine.covariates(),
    )
    if results_dir is not None:
        records.save(comparison, verdicts, results_dir)
    return comparison


def choose(
    series_regex: str | None,
    *,
    kernels: Sequence[str] | None,
    backends: Sequence[str],
    modes: Sequence[str],
    tag: str | None,
) -> tuple[Item, ...]:
    """The series that fit and can be measured here; InvalidArgument when there is none.

    The decode loop takes longer than all kernels together: it is part of what ``series_regex`` or ``kernels`` name.
    """
    reasons = {backend: _unusable(backend) for backend in backends}
    usable = [backend for backend, reason in reasons.items() if reason is None]
    chosen = kernels or (runner.MEASURED if series_regex else workloads.KERNELS)
    names = runner.series_names(chosen, usable, modes, tag, series_regex)
    items = [item for item in map(_item, names) if item is not None]
    if not items:
        why = "; ".join(f"{backend}: {reason}" for backend, reason in reasons.items() if reason)
        raise InvalidArgument(f"no series fits the selection{f' ({why})' if why else ''}")
    return tuple(items)


def effects(items: Sequence[Item], given: float | Mapping[str, float] | None) -> dict[str, float]:
    """The smallest change that counts, by series."""
    named = given if isinstance(given, Mapping) else {}
    default = MIN_EFFECT if given is None or isinstance(given, Mapping) else given
    found = {item.series: named.get(item.series, default) for item in items}
    for series, effect in found.items():
        if not 0 < effect < 1:
            raise InvalidArgument(f"min_effect of {series} is {effect}, and more than 0 and less than 1 is expected")
    return found


class Session:
    """Fresh processes over the same copies of the libraries, and inputs that are made once.

    Args:
        libraries: per pair side -> backend -> file.
    """

    def __init__(self, libraries: Sequence[Mapping[str, Mapping[str, Path]]]) -> None:
        self._files = libraries

    def __enter__(self) -> Session:
        self._folder = tempfile.TemporaryDirectory(prefix="kdbench-paired-")
        self._path = Path(self._folder.name)
        (self._path / "shared").mkdir()
        try:
            self._libraries = [self._copied(number, pair) for number, pair in enumerate(self._files)]
        except OSError as error:
            self._folder.cleanup()
            raise BuildError(f"the libraries cannot be copied to {self._path}: {error.strerror or error}") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def _copied(self, number: int, pair: Mapping[str, Mapping[str, Path]]) -> dict[str, dict[str, str]]:
        # The loader knows a file by its inode: two names of one file would be one library.
        found: dict[str, dict[str, str]] = {}
        for side in SIDES:
            found[side] = {}
            for backend, path in pair[side].items():
                target = self._path / f"{side}{number}" / path.name
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(path, target)
                found[side][backend] = str(target)
        return found

    def process(self, index: int, items: Sequence[Item]) -> list[Answer]:
        """Measure ``items`` in a fresh process; one that dies costs only the series that it was at.

        Raises:
            KdbenchError: processes die without measuring anything.
        """
        answers: list[Answer] = []
        left = list(items)
        while left:
            found, last_words = self._run(index, left)
            answers += found
            left = left[len(found) :]
            if left:
                lines = last_words.strip().splitlines() or ["without a word"]
                answers.append(Answer(left.pop(0).series, error=f"its process died: {lines[-1]}"))
        return answers

    def _run(self, index: int, items: Sequence[Item]) -> tuple[list[Answer], str]:
        plan = self._path / "plan.json"
        Plan(index, tuple(self._libraries), tuple(items), str(self._path / "shared")).write(plan)
        answers: list[Answer] = []
        with (self._path / "stderr").open("w+") as errors:
            command = [sys.executable, "-m", "kdbench.paired.worker", str(plan)]
            # Out of a terminal's Ctrl-C: this process tells it to stop, once.
            child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, process_group=0)
            assert child.stdout is not None
            try:
                for line in child.stdout:
                    document = json.loads(line)
                    if DONE not in document:
                        answers.append(Answer.of(document))
                child.wait(_SILENCE_S)
            finally:
                if child.poll() is None:
                    child.kill()
                    child.wait()
                child.stdout.close()
            return answers, _tail(errors)


def _tail(stream: IO[str]) -> str:
    stream.seek(0)
    return stream.read()[-4000:]


def _item(name: str) -> Item | None:
    found = _NAME.match(name)
    if found is None:
        return None
    workload, backend, mode = found["workload"], found["backend"], found["mode"]
    if mode is not None:
        return Item(name, workloads.get(workload).kernel, workload, backend, mode)
    if name.startswith(decode_workloads.SERIES["tpot"] + "("):
        return Item(name, decode_workloads.KERNEL, workload, backend, "loop")
    return None  # follows from tpot, or is no time


def _unusable(backend: str) -> str | None:
    if backend == "cpu":
        return None
    if not machine.gpu_answers():
        return "no NVIDIA GPU answers"
    try:
        importlib.import_module("cupy")
    except ImportError as error:
        return f"cupy cannot be imported: {error}"
    return None


def _same_toolchain(sides: Sequence[Build], backends: Sequence[str]) -> None:
    for backend in backends:
        made = [builds.made_with(side.libraries[backend]) for side in sides]
        if made[0] != made[1]:
            raise BuildError(f"the {backend} libraries of {sides[0]} and {sides[1]} were built by different compilers")


def _update(verdicts: Verdicts, done: int, text: str, start: float) -> Update:
    total = verdicts.next_stop(done)
    return Update("measure", text, done, total, time.perf_counter() - start, verdicts.results())
