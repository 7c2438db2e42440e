# SPDX-License-Identifier: Apache-2.0
"""KDTR: named arrays in one little-endian file, read alike by Python and by the native tests.

Layout, version 1::

    0    header, 64 bytes: "KDTR", u32 version, u32 num_arrays, u32 crc32(table), u64 file_size, zeros,
         and at byte 60 u32 crc32(bytes 0..59)
    64   table, 128 bytes an array: name[48] (UTF-8, NUL padded), u32 dtype, u32 ndim, u64 shape[6] (0 beyond ndim),
         u64 offset, u64 nbytes, u32 crc32(data), u32 0
    ...  data, each array on a 64-byte boundary, zeros between; file_size is a multiple of 64
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kdbench.errors import KdtrError

MAGIC = b"KDTR"
VERSION = 1
ALIGNMENT = 64
MAX_NDIM = 6
MAX_NAME_BYTES = 47

Buffer = bytes | bytearray | memoryview | mmap.mmap

_HEADER = struct.Struct("<4sIIIQ36sI")
_ENTRY = struct.Struct("<48sII6QQQII")

# bf16 travels as its bit patterns, which NumPy holds as uint16.
_DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype("<f4"),
    2: np.dtype("<f8"),
    3: np.dtype("<i4"),
    4: np.dtype("<i8"),
    5: np.dtype("<u8"),
    6: np.dtype("<u1"),
    7: np.dtype("<u2"),
    8: np.dtype("<u4"),
}
# NumPy's own bound on the product of an array's sizes and its element size, sizes of 0 left out.
_MAX_SPAN = np.iinfo(np.intp).max
_CODES = {dtype.name: code for code, dtype in _DTYPES.items()} | {"bfloat16": 7}


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def dumps(arrays: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    """The bytes of a container with ``arrays``, in their order.

    Args:
        arrays: name (1 to 47 bytes of UTF-8, no NUL) to array of at most 6 dimensions and dtype float32, float64,
            int32, int64, uint64, uint8, uint32, uint16 or ml_dtypes.bfloat16 (both stored as bf16).

    Raises:
        KdtrError: a name, dtype or rank that the format cannot hold.
    """
    table = bytearray()
    data = bytearray()
    start = ALIGNMENT + _ENTRY.size * len(arrays)
    for name, array in arrays.items():
        try:
            encoded = name.encode()
        except UnicodeEncodeError as error:
            raise KdtrError(f"array name {name!r} has no UTF-8 form") from error
        if not 1 <= len(encoded) <= MAX_NAME_BYTES or b"\0" in encoded:
            raise KdtrError(f"array name {name!r} must be 1 to {MAX_NAME_BYTES} bytes without NUL")
        if array.dtype.name not in _CODES:
            raise KdtrError(f"array {name!r} has dtype {array.dtype}, which KDTR does not hold")
        if array.ndim > MAX_NDIM:
            raise KdtrError(f"array {name!r} has {array.ndim} dimensions, and KDTR holds at most {MAX_NDIM}")
        code = _CODES[array.dtype.name]
        # tobytes() of a view as the little-endian type: a big-endian array is converted, bfloat16 keeps its bits.
        bits = array.view(np.uint16) if code == 7 and array.dtype.name == "bfloat16" else array
        payload = bits.astype(_DTYPES[code], copy=False).tobytes()
        data += bytes(_aligned(len(data)) - len(data))
        shape = [*array.shape, *[0] * (MAX_NDIM - array.ndim)]
        offset = start + len(data)
        table += _ENTRY.pack(encoded, code, array.ndim, *shape, offset, len(payload), zlib.crc32(payload), 0)
        data += payload
    data += bytes(_aligned(len(data)) - len(data))
    header = _HEADER.pack(MAGIC, VERSION, len(arrays), zlib.crc32(table), start + len(data), bytes(36), 0)[:60]
    return b"".join((header, struct.pack("<I", zlib.crc32(header)), table, data))


def loads(source: Buffer) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a container, in file order.

    Args:
        source: the whole file. Arrays are views into it: writable when it is, as a bytearray.

    Raises:
        KdtrError: anything that the layout above does not allow, or a checksum that does not match.
    """
    buffer = memoryview(source)
    if len(buffer) < ALIGNMENT:
        raise KdtrError(f"a KDTR file has at least {ALIGNMENT} bytes, and this one has {len(buffer)}")
    magic, version, count, table_crc, file_size, zeros, header_crc = _HEADER.unpack_from(buffer)
    if magic != MAGIC:
        raise KdtrError(f"the file does not start with {MAGIC!r}: it is no KDTR container")
    if version != VERSION:
        raise KdtrError(f"the container has version {version}, and version {VERSION} is read")
    if zlib.crc32(buffer[:60]) != header_crc:
        raise KdtrError("the checksum of the header does not match")
    if file_size != len(buffer) or file_size % ALIGNMENT:
        raise KdtrError(f"the header speaks of {file_size} bytes, and the file has {len(buffer)}")
    if any(zeros):
        raise KdtrError("reserved header bytes are not zero")
    start = ALIGNMENT + _ENTRY.size * count
    if start > file_size:
        raise KdtrError(f"a table of {count} arrays does not fit into {file_size} bytes")
    if zlib.crc32(buffer[ALIGNMENT:start]) != table_crc:
        raise KdtrError("the checksum of the table does not match")
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    spans: list[tuple[int, int, str]] = []
    for index in range(count):
        name, array, span = _entry(buffer, index, start)
        if name in arrays:
            raise KdtrError(f"two arrays are called {name!r}")
        arrays[name] = array
        spans.append((*span, name))
    _check_gaps(buffer, start, sorted(spans))
    return arrays


def _entry(buffer: memoryview, index: int, start: int) -> tuple[str, np.ndarray[Any, Any], tuple[int, int]]:
    raw, code, ndim, *rest = _ENTRY.unpack_from(buffer, ALIGNMENT + _ENTRY.size * index)
    shape, (offset, nbytes, crc, zero) = rest[:MAX_NDIM], rest[MAX_NDIM:]
    encoded, _, padding = raw.partition(b"\0")
    try:
        name = encoded.decode()
    except UnicodeDecodeError as error:
        raise KdtrError(f"the name of array {index} is not UTF-8") from error
    if not name or len(encoded) > MAX_NAME_BYTES or any(padding):
        raise KdtrError(f"the name of array {index} is empty, too long or not padded with NUL")
    if code not in _DTYPES:
        raise KdtrError(f"array {name!r} has unknown dtype code {code}")
    if ndim > MAX_NDIM or any(shape[ndim:]) or zero:
        raise KdtrError(f"array {name!r} has a malformed table entry: {ndim} dimensions, shape {shape}")
    shape = shape[:ndim]
    if math.prod(shape) * _DTYPES[code].itemsize != nbytes:
        raise KdtrError(f"array {name!r} has {nbytes} bytes, which is not what shape {shape} needs")
    # A 0 among the sizes lets the others be anything in the file, but not in NumPy.
    if math.prod(size for size in shape if size) * _DTYPES[code].itemsize > _MAX_SPAN:
        raise KdtrError(f"array {name!r} has shape {shape}, which no array in memory can have")
    if offset % ALIGNMENT or offset < start or offset + nbytes > len(buffer):
        raise KdtrError(f"array {name!r} at byte {offset} is misaligned or outside the data")
    data = buffer[offset : offset + nbytes]
    if zlib.crc32(data) != crc:
        raise KdtrError(f"the checksum of array {name!r} does not match")
    return name, np.ndarray(shape, _DTYPES[code], data), (offset, offset + nbytes)


def _check_gaps(buffer: memoryview, start: int, spans: list[tuple[int, int, str]]) -> None:
    cursor = start
    for begin, end, name in spans:
        if begin < cursor and end > begin:
            raise KdtrError(f"array {name!r} overlaps the one before it")
        if any(buffer[cursor:begin]):
            raise KdtrError(f"the padding before array {name!r} is not zero")
        cursor = max(cursor, end)
    if len(buffer) != _aligned(cursor) or any(buffer[cursor:]):
        raise KdtrError("the file goes on after its last array")


def write(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write ``arrays`` to ``path``; a reader sees the old file or the whole new one. Errors as ``dumps``."""
    target = Path(path)
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    partial.write_bytes(dumps(arrays))
    partial.replace(target)


def read(path: str | os.PathLike[str]) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of the container at ``path``, read-only, in file order; bf16 comes as uint16 bit patterns.

    They are views into a map of the file, which lasts as long as one of them: the file may be deleted or replaced (as
    ``write`` does) meanwhile, but must not be cut short or changed in place.

    Raises:
        KdtrError: the file is no sound container; the message starts with its path.
        OSError: it cannot be opened or mapped.
    """
    try:
        with Path(path).open("rb") as file:
            # An empty file cannot be mapped.
            size = os.fstat(file.fileno()).st_size
            return loads(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b"")
    except KdtrError as error:
        raise KdtrError(f"{path}: {error}") from error
