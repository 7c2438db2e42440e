# SPDX-License-Identifier: Apache-2.0
"""Shapes with shared symbols: the arrays of one call against [B, D, K], and one clear sentence when they disagree."""

from __future__ import annotations

from collections.abc import Sequence

from kdbench.arrays import Array, View, view
from kdbench.errors import InvalidArgument


class Shapes:
    """Checks the arrays of one call against shapes with shared symbols, and remembers what each symbol is.

    The first array decides the device; all others must be there too.
    """

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self._source: dict[str, str] = {}
        self.first: View | None = None
        self._first_name = ""

    def __getitem__(self, symbol: str) -> int:
        return self.sizes[symbol]

    def take(
        self,
        name: str,
        array: Array,
        shape: Sequence[str | int],
        dtypes: str | tuple[str, ...],
        *,
        write: bool = False,
    ) -> View:
        """The view of ``array`` once it has ``shape`` (symbols or sizes), a dtype of ``dtypes``, C order, the device.

        Raises:
            InvalidArgument: naming the array, what it is, and what was expected.
        """
        seen = view(name, array)
        allowed = (dtypes,) if isinstance(dtypes, str) else dtypes
        if seen.dtype not in allowed:
            raise InvalidArgument(f"{name} has dtype {seen.dtype}, and {' or '.join(allowed)} is expected")
        self._match(name, seen.shape, shape)
        if not seen.contiguous:
            raise InvalidArgument(f"{name} is not contiguous in row-major order: make a contiguous copy first")
        if write and not seen.writable:
            raise InvalidArgument(f"{name} is read-only, and the call writes to it")
        if self.first is None:
            self.first, self._first_name = seen, name
        elif seen.device != self.first.device:
            raise InvalidArgument(f"{name} is on {seen.device}, but {self._first_name} is on {self.first.device}")
        return seen

    def _match(self, name: str, actual: tuple[int, ...], expected: Sequence[str | int]) -> None:
        text = "[" + ", ".join(map(str, expected)) + "]"
        if len(actual) != len(expected):
            raise InvalidArgument(f"{name} has shape {list(actual)}, and {text} is expected")
        for size, symbol in zip(actual, expected, strict=True):
            if isinstance(symbol, str) and symbol not in self.sizes:
                self.sizes[symbol], self._source[symbol] = size, name
                continue
            known = symbol if isinstance(symbol, int) else self.sizes[symbol]
            if size != known:
                where = "" if isinstance(symbol, int) else f" with {symbol} = {known} from {self._source[symbol]}"
                raise InvalidArgument(f"{name} has shape {list(actual)}, and {text} is expected{where}")
