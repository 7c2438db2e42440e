# SPDX-License-Identifier: Apache-2.0
"""A native call that is checked once and launched often, and what puts one together from arrays and sizes."""

from __future__ import annotations

import ctypes
import dataclasses
import operator
from typing import Any, SupportsIndex, TypeVar

from kdbench import native
from kdbench.arrays import Array, View, check_current_device, empty, scratch, stream_pointer, view
from kdbench.errors import InvalidArgument
from kdbench.shapes import Shapes

Record = TypeVar("Record")


class Call:
    """One native call, ready to launch.

    Attributes:
        symbol: the C function, e.g. "kdt_tree_build".
        library: the library it is called in.
        params: its params struct.
        outputs: arrays that a launch writes, by name.
        in_place: arrays that a launch reads and changes, by name.
    """

    def __init__(
        self,
        symbol: str,
        library: native.Library,
        params: native.Params,
        outputs: dict[str, Array],
        in_place: dict[str, Array],
        keep: Any,
    ) -> None:
        self.symbol = symbol
        self.library = library
        self.params = params
        self.outputs = outputs
        self.in_place = in_place
        self._keep = keep  # the params hold bare addresses of these
        self._function = library.function(symbol)
        self._reference = ctypes.byref(params)

    def launch(self) -> None:
        """Call the library, without checks of any kind before; raises KernelError when it does not return KDT_OK."""
        status = self._function(self._reference)
        if status:
            self.library.check(self.symbol, status)

    def twin(self, library: native.Library) -> Call:
        """The same call of another library, over the same buffers; its workspace has to be large enough for both."""
        params = type(self.params).from_buffer_copy(self.params)
        return Call(self.symbol, library, params, self.outputs, self.in_place, self._keep)

    def set_stream(self, pointer: int) -> None:
        """Let later launches go to the cudaStream_t ``pointer`` (0: the default stream)."""
        self.params.stream = pointer


class CallBuilder:
    """Collects what one call needs; the order of ``read`` is the order in which errors are found."""

    def __init__(self) -> None:
        self.shapes = Shapes()
        self.pointers: dict[str, int] = {}
        self.outputs: dict[str, Array] = {}
        self.in_place: dict[str, Array] = {}
        self._keep: list[Any] = []
        self._pending: list[tuple[str, Array | None, tuple[int, ...], str | tuple[str, ...]]] = []

    def read(self, name: str, array: Array, shape: tuple[str | int, ...], dtypes: str | tuple[str, ...]) -> View:
        """An input: checked against ``shape`` and kept alive."""
        seen = self.shapes.take(name, array, shape, dtypes)
        self.pointers[name] = seen.pointer
        self._keep.append(seen.owner)
        return seen

    def change(self, name: str, array: Array, shape: tuple[str | int, ...], dtypes: str | tuple[str, ...]) -> View:
        """An input that the call also writes to."""
        seen = self.shapes.take(name, array, shape, dtypes, write=True)
        self.pointers[name] = seen.pointer
        self.in_place[name] = array
        self._keep.append(seen.owner)
        return seen

    def write(self, name: str, array: Array | None, shape: tuple[int, ...], dtypes: str | tuple[str, ...]) -> None:
        """An output: ``array`` when the caller gave one, else a new one of the first dtype."""
        if array is not None:
            seen = self.shapes.take(name, array, shape, dtypes, write=True)
            self.pointers[name] = seen.pointer
        self._pending.append((name, array, shape, dtypes))

    def finish(
        self, symbol: str, backend: str | None, library: native.Library | None, stream: Any, **sizes: Any
    ) -> Call:
        """The call, its missing outputs and its workspace allocated; ``sizes`` are the params that are no arrays."""
        first = self.shapes.first
        assert first is not None
        chosen = _library(backend, library, first)
        check_current_device(first)
        handle = stream_pointer(stream, first)
        for name, array, shape, dtypes in self._pending:
            if array is None:
                array = empty(first, shape, dtypes if isinstance(dtypes, str) else dtypes[0], handle)
                self.pointers[name] = view(name, array).pointer
            self.outputs[name] = array
        params = native.PARAMS[symbol](**self.pointers, **sizes, stream=handle)
        needed = chosen.workspace_size(symbol, params)
        if needed:
            block, address = scratch(first, needed, handle)
            self._keep.append(block)
            params.workspace, params.workspace_size = address, needed
        return Call(symbol, chosen, params, self.outputs, self.in_place, self._keep)


def _library(backend: str | None, library: native.Library | None, first: View) -> native.Library:
    if backend is not None and backend not in native.BACKENDS:
        raise InvalidArgument(f"backend is {backend!r}, and {' or '.join(map(repr, native.BACKENDS))} is expected")
    if library is not None and backend not in (None, library.backend):
        raise InvalidArgument(f"backend is {backend!r}, but the library is a {library.backend} one")
    native_to = "cpu" if first.on_host else "cuda"
    chosen = library.backend if library else backend or native_to
    if chosen != native_to:
        memory = "host" if chosen == "cpu" else "device"
        raise InvalidArgument(f"backend {chosen!r} needs arrays in {memory} memory, and these are on {first.device}")
    return library or native.load(chosen)


def of_type(name: str, value: Any, kind: type[Record]) -> Record:
    """``value`` when it is a ``kind``, else InvalidArgument about ``name``."""
    if not isinstance(value, kind):
        raise InvalidArgument(f"{name} is a {type(value).__name__}, and {kind.__name__} is expected")
    return value


def output_record(value: Any, kind: type[Record]) -> Record | None:
    """The caller's ``out``: None, or a ``kind`` that lacks none of its fields but optional ones."""
    if value is None:
        return None
    record = of_type("out", value, kind)
    for field in dataclasses.fields(value):
        # A field of None would have a new array made that the caller, who gets out back, never sees.
        if getattr(record, field.name) is None and field.default is dataclasses.MISSING:
            raise InvalidArgument(f"out.{field.name} is None, and an array to write into is expected")
    return record


def in_range(name: str, value: SupportsIndex, low: int, high: int) -> int:
    """``value`` as an int from ``low`` to ``high``, or InvalidArgument about ``name``."""
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{name} is {value!r}, and an integer is expected") from None
    if not low <= number <= high:
        raise InvalidArgument(f"{name} is {number}, outside {low} to {high}")
    return number
