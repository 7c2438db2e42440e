# SPDX-License-Identifier: Apache-2.0
"""What the verbs print: text for people, or one JSON document with the text beside it on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table of plain text, wide cells folded."""
    grid = Table(show_edge=False, pad_edge=False)
    for name in header:
        grid.add_column(name, overflow="fold")
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    return grid


def finish(as_json: bool, content: dict[str, Any], for_people: RenderableType) -> None:
    """The document on stdout and the text on stderr, or the text alone on stdout."""
    progress(as_json).print(for_people)
    if as_json:
        sys.stdout.write(json.dumps(content, allow_nan=False, indent=1) + "\n")


def progress(as_json: bool) -> Console:
    """Where text for people goes."""
    return stderr() if as_json else console(sys.stdout)


def stderr() -> Console:
    """A console on stderr."""
    return console(sys.stderr)


def console(stream: Any) -> Console:
    """A console that prints foreign text as it is."""
    # Names, paths and commit titles are foreign: no markup, no emoji codes, no colouring by guess.
    return Console(file=stream, markup=False, emoji=False, highlight=False, soft_wrap=True)
