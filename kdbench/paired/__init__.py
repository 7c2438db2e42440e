# SPDX-License-Identifier: Apache-2.0
"""Paired A/B: two builds of the engine in one process, interleaved, judged by a sequential rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kdbench.paired.types import (
    AMBIGUOUS,
    FAILED,
    FASTER,
    SAME,
    SLOWER,
    VERDICTS,
    Build,
    BuildError,
    Comparison,
    PairedResult,
    Update,
)

if TYPE_CHECKING:
    from kdbench.paired.session import compare

__all__ = [
    "AMBIGUOUS",
    "FAILED",
    "FASTER",
    "SAME",
    "SLOWER",
    "VERDICTS",
    "Build",
    "BuildError",
    "Comparison",
    "PairedResult",
    "Update",
    "compare",
]


def __getattr__(name: str) -> Any:
    # A worker process is a module of this package, and must start without pandas and asv.
    if name == "compare":
        from kdbench.paired.session import compare

        return compare
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
