# SPDX-License-Identifier: Apache-2.0
"""Arrays of NumPy, CuPy, Torch or any __array_interface__, __cuda_array_interface__ or DLPack owner, without copies.

No framework but NumPy is imported here: an object from CuPy or Torch proves that its module is loaded already.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kdbench.errors import InvalidArgument

Array = Any  # numpy.ndarray, cupy.ndarray or torch.Tensor

# bf16 has no NumPy dtype: uint16 holds its bit patterns, ml_dtypes and Torch name it.
BF16 = ("bfloat16", "uint16")
# Torch computes little on uint64, so mask words may also come as int64 with the same bits.
MASK_WORD = ("uint64", "int64")


@dataclass(frozen=True)
class View:
    """What a kernel must know of an array.

    Attributes:
        owner: the array itself, kept alive by the view.
        framework: "numpy", "cupy" or "torch": who allocates arrays of the same kind and whose stream is current.
        pointer: address of the first element, host or device memory.
        device: "cpu" or "cuda:<ordinal>".
        dtype: NumPy's name of the element type, or "bfloat16".
    """

    owner: Array
    framework: str
    pointer: int
    shape: tuple[int, ...]
    dtype: str
    device: str
    contiguous: bool
    writable: bool

    @property
    def on_host(self) -> bool:
        """True for host memory."""
        return self.device == "cpu"


def view(name: str, array: Array) -> View:
    """Look at ``array``, which error messages call ``name``.

    Raises:
        InvalidArgument: it exposes no array protocol, or has no plain memory that holds its values as they are.
    """
    if _is_torch(array):
        return _torch_view(name, array)
    if isinstance(array, np.ndarray):
        return _numpy_view(array, array)
    if hasattr(array, "__cuda_array_interface__"):
        return _cuda_view(array)
    if hasattr(array, "__array_interface__"):
        return _numpy_view(array, np.asarray(array))
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        kind = int(array.__dlpack_device__()[0])
        try:
            # DLPack device types: 1 is host memory, 2 is CUDA; CuPy reads the latter.
            if kind == 1:
                return _numpy_view(array, np.from_dlpack(array))
            if kind == 2:
                return _cuda_view(importlib.import_module("cupy").from_dlpack(array))
        except (BufferError, ImportError, RuntimeError, TypeError) as error:
            raise InvalidArgument(f"{name} cannot be read through DLPack: {error}") from error
    raise InvalidArgument(f"{name} is a {type(array).__name__}, not a NumPy, CuPy or Torch array")


def _numpy_view(owner: Array, array: np.ndarray[Any, Any]) -> View:
    dtype = _dtype_name(array.dtype)
    contiguous = array.flags.c_contiguous and array.flags.aligned
    # The NumPy array may own what the caller's object only lends, so both are kept.
    keep = owner if owner is array else (owner, array)
    return View(
        keep, "numpy", array.ctypes.data, array.shape, dtype, "cpu", bool(contiguous), bool(array.flags.writeable)
    )


@functools.cache  # NumPy composes the name anew at every look
def _dtype_name(dtype: np.dtype[Any]) -> str:
    return dtype.name if dtype.isnative else f"byte-swapped {dtype.name}"


def _cuda_view(array: Array) -> View:
    interface = array.__cuda_array_interface__
    shape = tuple(int(size) for size in interface["shape"])
    # CuPy's own dtype knows ml_dtypes.bfloat16, which a typestr cannot tell from any two bytes.
    dtype = np.dtype(getattr(array, "dtype", interface["typestr"]))
    strides = interface.get("strides")
    contiguous = strides is None or 0 in shape or tuple(strides) == _row_major(shape, dtype.itemsize)
    pointer, read_only = interface["data"]
    device = getattr(getattr(array, "device", None), "id", None)
    ordinal = int(device) if device is not None else _device_of(int(pointer or 0))
    return View(
        array, "cupy", int(pointer or 0), shape, _dtype_name(dtype), f"cuda:{ordinal}", bool(contiguous), not read_only
    )


def _device_of(pointer: int) -> int:
    runtime = importlib.import_module("cupy").cuda.runtime
    return int(runtime.pointerGetAttributes(pointer).device) if pointer else int(runtime.getDevice())


def _row_major(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    return tuple(itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _is_torch(array: Array) -> bool:
    # A subclass of Tensor may live in any module, and DLPack would lose its negative bit.
    return any(kind.__module__.partition(".")[0] == "torch" for kind in type(array).__mro__)


def _torch_view(name: str, tensor: Array) -> View:
    if not (hasattr(tensor, "data_ptr") and hasattr(tensor, "layout")):
        raise InvalidArgument(f"{name} is a {type(tensor).__name__}, not a Torch tensor")
    layout = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
    if layout != "strided":
        raise InvalidArgument(f"{name} is a {layout} Torch tensor, and a dense one is expected")
    if tensor.is_neg() or tensor.is_conj():
        # Torch applies a lazy sign only when it computes: the memory still holds the values before it.
        method = "resolve_neg" if tensor.is_neg() else "resolve_conj"
        raise InvalidArgument(f"{name} is a lazily negated or conjugated Torch view: pass {name}.{method}()")
    kind, index = tensor.device.type, tensor.device.index
    if kind not in ("cpu", "cuda"):
        raise InvalidArgument(f"{name} is on the Torch device {tensor.device}; only cpu and cuda memory can be used")
    dtype = str(tensor.dtype).removeprefix("torch.")
    device = "cpu" if kind == "cpu" else f"cuda:{index or 0}"
    shape = tuple(int(size) for size in tensor.shape)
    return View(tensor, "torch", int(tensor.data_ptr()), shape, dtype, device, bool(tensor.is_contiguous()), True)


def stream_pointer(stream: Any, like: View) -> int:
    """The cudaStream_t of ``stream`` as an integer; for None the current stream of the framework of ``like``.

    Args:
        stream: None, an integer handle, a CuPy stream (.ptr), a Torch stream (.cuda_stream) or an owner of
            __cuda_stream__. Ignored, and so 0, for host arrays.
    """
    handle = stream
    if hasattr(stream, "__cuda_stream__"):
        answer = stream.__cuda_stream__
        handle = (answer() if callable(answer) else answer)[1]
    elif stream is not None and not isinstance(stream, int):
        handle = getattr(stream, "ptr", getattr(stream, "cuda_stream", stream))
    if handle is not None and not isinstance(handle, int):
        raise InvalidArgument("stream must be None, an integer handle, or a CuPy or Torch stream")
    if like.on_host:
        return 0
    if handle is not None:
        return int(handle)
    if like.framework == "torch":
        return int(importlib.import_module("torch").cuda.current_stream(like.owner.device).cuda_stream)
    return int(importlib.import_module("cupy").cuda.get_current_stream().ptr)


def check_current_device(like: View) -> None:
    """A kernel is launched on the current device, so arrays on another one are refused with InvalidArgument."""
    if like.on_host:
        return
    if like.framework == "torch":
        current = int(importlib.import_module("torch").cuda.current_device())
    else:
        current = int(importlib.import_module("cupy").cuda.runtime.getDevice())
    if like.device != f"cuda:{current}":
        raise InvalidArgument(f"the arrays are on {like.device}, but the current device is cuda:{current}")


@contextlib.contextmanager
def _allocating_on(like: View, stream: int) -> Iterator[None]:
    """Pools reuse a freed block on the stream that it was allocated on, so allocate on the stream of the call."""
    if like.on_host:
        yield
    elif like.framework == "torch":
        cuda = importlib.import_module("torch").cuda
        with cuda.stream(
            cuda.ExternalStream(stream, device=like.owner.device) if stream else cuda.default_stream(like.owner.device)
        ):
            yield
    else:
        with _cupy_stream(importlib.import_module("cupy").cuda, stream):
            yield


class _StreamHandle:
    """A CUDA stream somebody else owns, as the ``__cuda_stream__`` protocol hands it over (version 0)."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


def _cupy_stream(cuda: Any, handle: int) -> Any:
    """cupy 14 replaced ExternalStream by the protocol; earlier ones know the class alone."""
    if hasattr(cuda.Stream, "from_external"):
        return cuda.Stream.from_external(_StreamHandle(handle))
    return cuda.ExternalStream(handle)


def empty(like: View, shape: Sequence[int], dtype: str, stream: int = 0) -> Array:
    """An uninitialised array of the framework and device of ``like``.

    Args:
        dtype: NumPy's name, or "bfloat16", which CuPy and plain NumPy get as uint16 unless ``like`` is bfloat16 itself.
        stream: the stream that the call will run on.
    """
    with _allocating_on(like, stream):
        if like.framework == "torch":
            torch = importlib.import_module("torch")
            return torch.empty(tuple(shape), dtype=getattr(torch, dtype), device=like.owner.device)
        if like.framework == "cupy":
            return importlib.import_module("cupy").empty(tuple(shape), dtype=_numpy_dtype(dtype))
        return np.empty(tuple(shape), dtype=_numpy_dtype(dtype))


def _numpy_dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        name = importlib.import_module("ml_dtypes").bfloat16
    return np.dtype(name)


def itemsize(dtype: str) -> int:
    """Bytes of one element of a ``View.dtype`` that NumPy or Torch alone may know."""
    sizes = {"bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}
    return sizes.get(dtype) or np.dtype(dtype).itemsize


def scratch(like: View, nbytes: int, stream: int = 0) -> tuple[Array, int]:
    """``nbytes`` of workspace beside ``like``, and its address, aligned to 256 bytes as cudaMalloc does."""
    block = empty(like, (nbytes + 255,), "uint8", stream)
    return block, -(-view("workspace", block).pointer // 256) * 256


def to_numpy(array: Array) -> np.ndarray[Any, Any]:
    """A host copy (or the host array itself) as NumPy; Torch's bfloat16 comes as uint16 bit patterns."""
    if _is_torch(array):
        host = array.detach().cpu()
        if str(host.dtype) == "torch.bfloat16":
            return np.asarray(host.view(importlib.import_module("torch").int16).numpy()).view(np.uint16)
        return np.asarray(host.numpy())
    if hasattr(array, "get"):
        return np.asarray(array.get())
    if not hasattr(array, "__array__") and hasattr(array, "__dlpack__"):
        return np.from_dlpack(array)
    return np.asarray(array)


def f32_to_bf16(values: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """bf16 bit patterns of ``values``, rounded to nearest even; NaN stays NaN."""
    bits = np.asarray(values, dtype=np.float32, order="C").view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16
    quiet = (bits >> 16) | np.uint32(0x0040)
    return np.where(np.isnan(bits.view(np.float32)), quiet, rounded).astype(np.uint16)


def bf16_to_f32(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The float32 values of bf16 bit patterns (uint16 or ml_dtypes.bfloat16), exactly."""
    return (np.asarray(bits, order="C").view(np.uint16).astype(np.uint32) << 16).view(np.float32)
