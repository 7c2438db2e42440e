# SPDX-License-Identifier: Apache-2.0
"""A known slowdown, planted into a copy of the engine's CPU sources.

Each kernel's entry gets an object whose end waits for a share of the time since its beginning: a proportional slowdown
inside the call, whose size does not depend on the workload. What it really comes to is measured, not assumed.
"""

from __future__ import annotations

import re
from pathlib import Path

from kdbench.paired.types import BuildError

_ENTRY = re.compile(r'^extern "C" kdt_status (kdt_\w+)\(const kdt_\w+_params\* params\) \{$', re.MULTILINE)
_CLASS = """#include <chrono>
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
"""


def plant(native: Path, share: float) -> list[str]:
    """Slow every kernel of the CPU sources in ``native`` (which are changed) down by ``share``; returns their names.

    A share of 0 plants the same code without the wait: the base that a planted head is to be compared with.

    Raises:
        BuildError: there are no entries to plant it at.
    """
    planted = []
    for path in sorted((native / "src" / "cpu").glob("*.cpp")):
        text = path.read_text("utf-8")
        entries = _ENTRY.findall(text)
        if entries:
            body = _ENTRY.sub(lambda found: found[0] + "\n    const Planted planted;", text)
            path.write_text(_CLASS.format(share=share) + body, "utf-8")
            planted += entries
    if not planted:
        raise BuildError(f"{native} has no entries of CPU kernels to plant a slowdown at")
    return planted
