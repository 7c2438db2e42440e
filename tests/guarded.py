# SPDX-License-Identifier: Apache-2.0
"""Output arrays between canaries: a write that leaves its array is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kdbench.arrays import to_numpy

GUARD_BYTES = 512
CANARY = 0xA5
STALE = 0x5A  # what the arrays hold before the call: an entry that is not written shows up


class Canaries:
    """Hands out arrays of a backend with canaries on both sides."""

    def __init__(self, place: Callable[[np.ndarray], Any]) -> None:
        self._place = place
        self._buffers: list[tuple[Any, int]] = []

    def array(self, shape: tuple[int, ...], dtype: str) -> Any:
        """An array of ``shape`` that is filled with stale bytes."""
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        host = np.full(nbytes + 2 * GUARD_BYTES, CANARY, np.uint8)
        host[GUARD_BYTES : GUARD_BYTES + nbytes] = STALE
        buffer = self._place(host)
        self._buffers.append((buffer, nbytes))
        return buffer[GUARD_BYTES : GUARD_BYTES + nbytes].view(np.dtype(dtype)).reshape(shape)

    def like(self, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        """One guarded array for each of ``arrays``."""
        return {name: self.array(array.shape, array.dtype.name) for name, array in arrays.items()}

    def check(self) -> None:
        """Fail when a canary is dead."""
        assert self._buffers
        for buffer, nbytes in self._buffers:
            host = to_numpy(buffer)
            assert (host[:GUARD_BYTES] == CANARY).all(), "something was written before an output"
            assert (host[GUARD_BYTES + nbytes :] == CANARY).all(), "something was written behind an output"
