# SPDX-License-Identifier: Apache-2.0
"""asv as a child process: told to stop once, and given the time to save."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

OK, USER_ERROR, FAILED, INTERRUPTED = 0, 1, 2, 130


def drive(command: Sequence[str], folder: Path, environment: dict[str, str], output: IO[Any] | int | None) -> int:
    """Run asv to its end; when this process is told to stop, tell asv once and wait until it has saved."""
    # A group of its own: a terminal's Ctrl-C would reach asv twice, the second time in the middle of saving.
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, process_group=0)
    interrupted = False
    with _stop_signals_raise():
        while True:
            try:
                code = process.wait()
                break
            except KeyboardInterrupt:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM if interrupted else signal.SIGINT)
                interrupted = True
    if interrupted:
        return INTERRUPTED
    return code if code in (OK, USER_ERROR, FAILED) else FAILED


@contextlib.contextmanager
def _stop_signals_raise() -> Iterator[None]:
    """SIGTERM and SIGHUP do what Ctrl-C does, since asv is out of their reach; signals belong to the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
