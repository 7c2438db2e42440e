# SPDX-License-Identifier: Apache-2.0
"""Safetensors files as NumPy arrays, bf16 as uint16 bit patterns, mapped and not copied.

The `safetensors` library opens a file first, which checks its header; its NumPy side has no bf16, so the bytes are then
mapped where the documented format puts them: u64 header length, JSON header, data. Writing needs the format only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kdbench.errors import BackendUnavailable, ModelError

_Array = np.ndarray[Any, Any]

# The format's names; what is not here comes out as its name only, and its reader refuses it.
_DTYPES = {"BF16": np.uint16, "F32": np.float32, "F16": np.float16, "F64": np.float64, "I32": np.int32, "I64": np.int64}


def read_file(path: Path) -> dict[str, tuple[str, _Array]]:
    """Name to (the format's dtype name, array) of each tensor; arrays are read-only views of the mapped file.

    Raises:
        ModelError: the file is missing, malformed, or has a tensor of a dtype that no model here has.
        BackendUnavailable: `safetensors` is not installed.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise BackendUnavailable("reading weights needs safetensors: pip install kdbench[decode]") from error
    try:
        with safe_open(str(path), framework="np"):
            pass
        data = np.memmap(path, np.uint8, mode="r")
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(f"{path} is no readable safetensors file: {error}") from error
    start = 8 + int(data[:8].view(np.uint64)[0])
    header = json.loads(bytes(data[8:start]))
    header.pop("__metadata__", None)
    tensors: dict[str, tuple[str, _Array]] = {}
    for name, entry in header.items():
        if entry["dtype"] not in _DTYPES:
            raise ModelError(f"{path}: {name} has dtype {entry['dtype']}; wanted one of {', '.join(_DTYPES)}")
        first, last = entry["data_offsets"]
        values = data[start + first : start + last]
        tensors[name] = (entry["dtype"], _typed(values, _DTYPES[entry["dtype"]]).reshape(entry["shape"]))
    return tensors


def write_file(path: Path, tensors: Mapping[str, _Array]) -> None:
    """Write arrays, uint16 as bf16, in the order of their names; equal arrays give equal bytes."""
    named = {np.dtype(kind): name for name, kind in _DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in sorted(tensors):
        array = tensors[name]
        header[name] = {
            "dtype": named[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in sorted(tensors):
            file.write(np.ascontiguousarray(tensors[name]).data)


def _typed(values: _Array, dtype: Any) -> _Array:
    # A foreign writer may place a tensor at an odd address, which a view would keep.
    view = values.view(dtype) if len(values) else np.empty(0, dtype)
    return view if view.flags.aligned else view.copy()
