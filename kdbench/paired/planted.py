# SPDX-License-Identifier: Apache-2.0
"""A known slowdown, planted into a copy of the engine's CPU sources: what judges of slowdowns are judged by.

Each kernel's entry gets an object whose end waits for a share of the time since its beginning: a proportional slowdown
inside the call, whose size depends neither on the workload nor on how busy the machine was when it was planted. The
fast version has the same object with a share of 0: two versions differ in one number and in no instruction.
"""

from __future__ import annotations

import re
from pathlib import Path

from kdbench.paired.types import BuildError

_ENTRY = re.compile(r'^extern "C" kdt_status (kdt_\w+)\(const kdt_\w+_params\* params\) \{$', re.MULTILINE)
_CLASS = """// planted: {mark}
#include <chrono>
namespace {{
struct Planted {{
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    ~Planted() {{
        const auto end = Clock::now();
        const auto wanted = std::chrono::duration<double>(end - start) * {share!r};
        while (Clock::now() - end < wanted) {{
        }}
    }}
}};
}}  // namespace
// end of planted
"""
_PLANTED = re.compile(r"\A// planted: .*?// end of planted\n", re.DOTALL)
_OBJECT = "\n    const Planted planted;"


def plant(native: Path, share: float, mark: str = "") -> list[str]:
    """Slow every kernel of the CPU sources in ``native`` (which are changed) down by ``share``; returns their names.

    Args:
        native: the engine's folder. What was planted there before is replaced.
        share: of a call's time; 0 is the base that a planted head is to be compared with.
        mark: a comment that makes this another text without making it other code.

    Raises:
        BuildError: there are no entries to plant it at.
    """
    planted = []
    for path in sorted((native / "src" / "cpu").glob("*.cpp")):
        text = _PLANTED.sub("", path.read_text("utf-8")).replace(_OBJECT, "")
        entries = _ENTRY.findall(text)
        if entries:
            body = _ENTRY.sub(lambda found: found[0] + _OBJECT, text)
            path.write_text(_CLASS.format(share=float(share), mark=mark) + body, "utf-8")
            planted += entries
    if not planted:
        raise BuildError(f"{native} has no entries of CPU kernels to plant a slowdown at")
    return planted
