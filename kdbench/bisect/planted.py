# SPDX-License-Identifier: Apache-2.0
"""A slowdown of known size, planted into a kernel's source: what judges of slowdowns are judged by.

The kernel gets a loop that does nothing, in the fast version too: two versions then differ in one number and in no
instruction, so that where the code comes to lie cannot make a difference of its own.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from pathlib import Path

from kdbench import native, workloads
from kdbench.errors import KdbenchError
from kdbench.timing import Subject

# Turns of the loop in the fast version.
FAST = 100
# Turns more that the cost of a turn is measured with.
PROBE = 4000
_LOOP = re.compile(r" for \(volatile int planted = 0; [^{]*\{\}")
_MARK = re.compile(r"\n// planted: .*\n\Z")
_ROUNDS = 15


def source_of(kernel: str) -> Path:
    """The file of ``kernel`` on the CPU, from the top of the repository."""
    return Path("native/src/cpu") / f"{kernel}.cpp"


def plant(source: str, kernel: str, turns: int, mark: str) -> str:
    """The source with a loop of ``turns`` at the start of each call, in the place of one that was there.

    Args:
        source: C++ text of the kernel.
        kernel: for example "tree_accept".
        turns: of the loop.
        mark: a comment that makes this another text without making it other code.

    Raises:
        KdbenchError: the text has no single entry of that name.
    """
    clean = _MARK.sub("\n", _LOOP.sub("", source))
    # Each turn waits for the one before it through memory, which no optimiser may leave out.
    loop = f" for (volatile int planted = 0; planted < {turns}; planted = planted + 1) {{}}"
    entry = re.compile(rf"(kdt_{kernel}\([^;{{]*\)\s*(?:noexcept\s*)?\{{)")
    text, found = entry.subn(lambda match: match.group(1) + loop, clean)
    if found != 1:
        raise KdbenchError(f"{source_of(kernel)} has {found} entries kdt_{kernel}, and a slowdown is planted in one")
    return f"{text.rstrip()}\n// planted: {mark}\n"


def turns_for(slowdown: float, fast: Path, probe: Path, workload: str) -> int:
    """Turns that make a call of ``workload`` slower by ``slowdown``, a fraction.

    Args:
        fast, probe: CPU libraries with FAST and FAST + PROBE turns.
    """
    first, second = _seconds((fast, probe), workload)
    return FAST + round(slowdown * first / ((second - first) / PROBE))


def _seconds(libraries: Sequence[Path], workload: str) -> list[float]:
    """Seconds a call with each library, the libraries taken in turns."""
    subjects = [Subject(workloads.get(workload), "cpu", native.load_file(path, "cpu")) for path in libraries]
    for subject in subjects:
        subject.verify()
    found: list[list[float]] = [[] for _ in subjects]
    for _ in range(_ROUNDS):
        for values, subject in zip(found, subjects, strict=True):
            values.append(statistics.median(subject.clock("hot")(3).samples))
    return [statistics.median(values) for values in found]
