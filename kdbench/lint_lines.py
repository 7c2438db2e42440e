# SPDX-License-Identifier: Apache-2.0
"""What every check of a .jsonl file begins with: its lines, each made into something or said to be nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def read_lines(path: Path, make: Callable[[dict[str, Any]], T], what: str) -> tuple[list[tuple[int, T]], list[str]]:
    """The file's lines as ``make`` reads them, by number from 1, and what is wrong with the others.

    Args:
        path: of the file.
        make: raises ValueError, KeyError, TypeError or AttributeError on a record that is none of its kind.
        what: a line should be, for example "measurement of noise".

    Raises:
        OSError: the file cannot be read.
    """
    text = path.read_text("utf-8", "replace")
    problems = ["its last line was not written to its end"] if text and not text.endswith("\n") else []
    made = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            made.append((number, make(json.loads(line))))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            problems.append(f"line {number} is no {what}: {reason or type(error).__name__}")
    return made, problems
