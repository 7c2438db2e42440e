# SPDX-License-Identifier: Apache-2.0
"""asv's result tables without the rows in which nothing was measured: one run asks for few of the many workloads."""

from __future__ import annotations

import re
from typing import Any

from asv import runner

_NOTHING = re.compile(r"^\s*\S+(?:\s+n/a)+\s*$")


def install() -> None:
    """Wrap what asv prints after each benchmark."""
    original = runner.format_benchmark_result

    def format_benchmark_result(results: Any, benchmark: Any) -> tuple[str | None, str | None]:
        info, details = original(results, benchmark)
        return info, measured_rows(details) if details else details

    runner.format_benchmark_result = format_benchmark_result


def measured_rows(table: str) -> str:
    """``table`` without its n/a rows, unless nothing else would be left."""
    lines = table.splitlines()
    kept = [line for line in lines if not _NOTHING.match(line)]
    something = any(re.search(r"[0-9](?:n|μ|m|)s\b|failed", line) for line in kept)
    return "\n".join(kept) if something else table
