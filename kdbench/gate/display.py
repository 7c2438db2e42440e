# SPDX-License-Identifier: Apache-2.0
"""Where a comparison stands, while it runs: a bar on a terminal, a line a build in a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from kdbench import terminal

if TYPE_CHECKING:
    from kdbench.paired.types import PairedResult, Update


@contextmanager
def watching() -> Iterator[Callable[[Update], None]]:
    """What to hand to ``kdbench.paired.compare`` as ``on_update``."""
    console = terminal.stderr()
    if not console.is_terminal:
        last: list[str] = []

        def line(update: Update) -> None:
            if update.stage == "build" and update.text not in last:
                last[:] = [update.text]
                console.print(Text(update.text))

        yield line
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def draw(update: Update) -> None:
            text = " ".join(part for part in (update.text, estimate(update.results)) if part)
            bar.update(task, description=text, completed=update.done, total=update.total or None)

        yield draw


def estimate(results: tuple[PairedResult, ...]) -> str:
    """The worst of what is not settled, or how much is settled."""
    known = [result for result in results if result.ratio is not None]
    if not known:
        return ""
    worst = max(known, key=lambda result: result.ratio or 0.0)
    settled = sum(result.settled for result in results)
    return f"({settled} of {len(results)} settled; at most {worst.ratio:.3f}×)"
