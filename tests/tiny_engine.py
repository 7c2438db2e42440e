# SPDX-License-Identifier: Apache-2.0
"""An engine of one file that builds in a second and says how fast it claims to be; and a comparison that asks it."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from scratch_repo import ACCEPT, ScratchRepo, paired_result

from kdbench.paired import builds
from kdbench.paired.types import Comparison

_CMAKE = """cmake_minimum_required(VERSION 3.24)
project(tiny LANGUAGES CXX)
add_library(kdtree_cpu SHARED src/tiny.cpp)
"""
_SOURCE = """#include <cstdint>
extern "C" uint32_t kdt_abi_version() {{ return {abi}; }}
extern "C" const char* kdt_last_error() {{ return ""; }}
extern "C" const char* kdt_build_info() {{ return "{{\\"backend\\": \\"cpu\\"}}"; }}
extern "C" double speed() {{ return {speed}; }}
{more}
"""


class TinyEngine(ScratchRepo):
    """A repository of it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "native" / "src").mkdir(parents=True)
        (folder / "native" / "CMakeLists.txt").write_text(_CMAKE)

    def version(self, title: str, speed: str, *, abi: int = 1, more: str = "") -> str:
        """Commit a version of it."""
        return self.commit(title, _SOURCE.format(abi=abi, speed=speed, more=more), path="native/src/tiny.cpp")


def compare(repo: Path, base: str, head: str | None, series_regex: str | None = None, **options: Any) -> Comparison:
    """``kdbench.paired.compare`` with real builds, whose libraries are asked instead of timed."""
    sides = [builds.build(repo, revision, ("cpu",)) for revision in (base, head)]
    ratio = 1.0
    for side, power in zip(sides, (-1, 1), strict=True):
        speed = ctypes.CDLL(str(side.libraries["cpu"])).speed
        speed.restype = ctypes.c_double
        ratio *= speed() ** power
    result = paired_result(ACCEPT, "SLOWER" if ratio > 1.01 else "SAME", ratio)
    return Comparison(sides[0], sides[1], (result,), "box", "2026-12-01T00:00:00+00:00", seconds=1.0)
