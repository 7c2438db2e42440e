# SPDX-License-Identifier: Apache-2.0
"""The native libraries through ctypes: find them, load them, call them.

A library is found in the folder named by the environment variable KDTREE_NATIVE_DIR, else in the installed package
``kdtree_native``. Two builds may be loaded side by side (``load_file``): that is how two commits are compared in one
process.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib
import importlib.util
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kdbench.abi import (
    ABI_VERSION,
    BACKENDS,
    DTYPE_BF16,
    DTYPE_F32,
    FIXED_POINT_BITS,
    KV_LORA_RANK,
    LOG_PROB_FLOOR,
    MAX_DRAFT_HORIZON,
    MAX_NUM_QO_HEADS,
    MAX_TOPK,
    MAX_TREE_BUDGET,
    PARAMS,
    QK_NOPE_HEAD_DIM,
    QK_ROPE_HEAD_DIM,
    V_HEAD_DIM,
    DraftTopkParams,
    MergeAttnStatesParams,
    MlaMode,
    Params,
    RequestStatus,
    Status,
    TreeAcceptParams,
    TreeBuildParams,
    VerifyAttnParams,
    VerifyMlaCosts,
    VerifyMlaParams,
)
from kdbench.errors import BackendUnavailable, KernelError

__all__ = [
    "ABI_VERSION",
    "BACKENDS",
    "DTYPE_BF16",
    "DTYPE_F32",
    "FIXED_POINT_BITS",
    "KV_LORA_RANK",
    "LOG_PROB_FLOOR",
    "MAX_DRAFT_HORIZON",
    "MAX_NUM_QO_HEADS",
    "MAX_TOPK",
    "MAX_TREE_BUDGET",
    "PARAMS",
    "QK_NOPE_HEAD_DIM",
    "QK_ROPE_HEAD_DIM",
    "V_HEAD_DIM",
    "DraftTopkParams",
    "Library",
    "MergeAttnStatesParams",
    "MlaMode",
    "Params",
    "RequestStatus",
    "Status",
    "TreeAcceptParams",
    "TreeBuildParams",
    "VerifyAttnParams",
    "VerifyMlaCosts",
    "VerifyMlaParams",
    "available",
    "library_path",
    "load",
    "load_file",
]


# What kdtree.h's libraries say of a params struct with a field beyond their own that is not zero.
_TOO_OLD = "a field newer than the library is in use"


class Library:
    """One loaded native library.

    Attributes:
        path: the file it came from.
        backend: "cpu" or "cuda".
        abi_version: what kdt_abi_version() answered.
        build_info: the object of kdt_build_info(): backend, compiler, archs, git_commit, flags, cuda_version.
    """

    def __init__(self, path: Path, backend: str) -> None:
        if backend not in BACKENDS:
            raise BackendUnavailable(f"there is no backend {backend!r}: choose one of {', '.join(BACKENDS)}")
        self.path = path
        self.backend = backend
        try:
            # RTLD_LOCAL: the libraries of two commits export the same names.
            self._dll = ctypes.CDLL(str(path), mode=os.RTLD_LOCAL | os.RTLD_NOW)
        except OSError as error:
            raise BackendUnavailable(f"{path} cannot be loaded: {error}") from error
        self._functions: dict[str, Callable[..., int]] = {}
        self.abi_version = int(self._plain("kdt_abi_version", ctypes.c_uint32)())
        if not 1 <= self.abi_version <= ABI_VERSION:
            raise BackendUnavailable(f"{path} has ABI {self.abi_version}, and this kdbench reads 1 to {ABI_VERSION}")
        self._last_error = self._plain("kdt_last_error", ctypes.c_char_p)
        try:
            self.build_info: dict[str, Any] = json.loads(self._plain("kdt_build_info", ctypes.c_char_p)())
        except ValueError as error:
            raise BackendUnavailable(f"{path} gives a build info that is not JSON: {error}") from error
        if self.build_info.get("backend") != backend:
            raise BackendUnavailable(f"{path} is a {self.build_info.get('backend')} library, not a {backend} one")

    def __repr__(self) -> str:
        return f"Library({self.backend!r}, {str(self.path)!r})"

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the file, in hexadecimal: equal digests are the same build."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()

    def _plain(self, symbol: str, restype: Any) -> Callable[..., Any]:
        try:
            function = self._dll[symbol]
        except AttributeError:
            raise BackendUnavailable(f"{self.path} has no {symbol}: an older build, or not kdtree-native") from None
        function.restype = restype
        return function

    def entry(self, symbol: str, argtypes: Sequence[Any], restype: Any = ctypes.c_int) -> Callable[..., Any]:
        """Any C function ``symbol`` with its types; BackendUnavailable when this library is from before it."""
        function: Any = self._plain(symbol, restype)
        function.argtypes = list(argtypes)
        return function  # type: ignore[no-any-return]

    def last_error(self) -> str:
        """The sentence of this thread's last call that failed."""
        return (self._last_error() or b"").decode("utf-8", "replace")

    def function(self, symbol: str) -> Callable[..., int]:
        """The C function ``symbol``, a kernel (``kdt_tree_build``) or its ``..._workspace_size`` query.

        Raises:
            BackendUnavailable: naming the symbol, when this library is from before it.
        """
        if symbol not in self._functions:
            query = symbol.endswith("_workspace_size")
            function: Any = self._plain(symbol, ctypes.c_int)
            params = ctypes.POINTER(PARAMS[symbol.removesuffix("_workspace_size")])
            function.argtypes = [params, ctypes.POINTER(ctypes.c_size_t)] if query else [params]
            self._functions[symbol] = function
        return self._functions[symbol]

    def check(self, symbol: str, status: int) -> None:
        """Raise KernelError with the library's own sentence unless ``status`` is KDT_OK.

        Raises:
            BackendUnavailable: the call sets a field that this library is from before.
        """
        if status != Status.OK:
            name = Status(status).name if status in set(Status) else str(status)
            text = self.last_error()
            if status == Status.INVALID_ARGUMENT and _TOO_OLD in text:
                raise BackendUnavailable(f"{self.path} is too old for this call of {symbol}: {text}")
            raise KernelError(f"{symbol} ({self.backend}) returned {name}: {text or 'no reason given'}", status)

    def workspace_size(self, symbol: str, params: Params) -> int:
        """Bytes of scratch memory that a call with the sizes of ``params`` needs."""
        size = ctypes.c_size_t(0)
        query = f"{symbol}_workspace_size"
        self.check(query, self.function(query)(ctypes.byref(params), ctypes.byref(size)))
        return int(size.value)

    def verify_mla_costs(self, params: VerifyMlaParams) -> VerifyMlaCosts:
        """What each mode of verify_mla would cost for the sizes of ``params``, and the mode that would run."""
        function: Any = self._plain("kdt_verify_mla_cost", ctypes.c_int)
        function.argtypes = [ctypes.POINTER(VerifyMlaParams), ctypes.POINTER(VerifyMlaCosts)]
        costs = VerifyMlaCosts(struct_size=ctypes.sizeof(VerifyMlaCosts))
        self.check("kdt_verify_mla_cost", function(ctypes.byref(params), ctypes.byref(costs)))
        return costs

    def call(self, symbol: str, params: Params) -> None:
        """Call ``symbol``; raises KernelError when it does not return KDT_OK."""
        self.check(symbol, self.function(symbol)(ctypes.byref(params)))


def library_path(backend: str) -> Path:
    """Where the library of ``backend`` is expected; raises BackendUnavailable when no file stands there."""
    name = f"libkdtree_{backend}.so"
    folder = os.environ.get("KDTREE_NATIVE_DIR")
    if folder:
        path = Path(folder) / name
        if not path.is_file():
            raise BackendUnavailable(f"KDTREE_NATIVE_DIR is {folder}, and there is no {name} in it")
        return path.resolve()
    spec = importlib.util.find_spec("kdtree_native")
    locations = list(spec.submodule_search_locations or ()) if spec else []
    if not locations:
        raise BackendUnavailable(
            f"{name} is missing: run 'pip install ./native' in the repository, or let KDTREE_NATIVE_DIR name the "
            "folder that holds it"
        )
    for location in locations:
        if (path := Path(location) / name).is_file():
            return path.resolve()
    raise BackendUnavailable(f"the installed kdtree-native in {locations[0]} was built without {name}")


@functools.cache
def _cached(path: Path, backend: str) -> Library:
    return Library(path, backend)


def load(backend: str) -> Library:
    """The library of ``backend`` ("cpu" or "cuda"), loaded once; BackendUnavailable says why not."""
    if backend not in BACKENDS:
        raise BackendUnavailable(f"there is no backend {backend!r}: choose one of {', '.join(BACKENDS)}")
    return _cached(library_path(backend), backend)


def load_file(path: str | os.PathLike[str], backend: str) -> Library:
    """The library in one given file, for comparing builds side by side; never cached."""
    return Library(Path(path).resolve(), backend)


def available(backend: str) -> str | None:
    """None when ``backend`` can be used in this process, else the reason in one sentence."""
    try:
        load(backend)
    except BackendUnavailable as error:
        return str(error)
    return _no_gpu() if backend == "cuda" else None


def _no_gpu() -> str | None:
    try:
        cupy = importlib.import_module("cupy")
        count = int(cupy.cuda.runtime.getDeviceCount())
    except ImportError as error:
        return f"cupy cannot be imported: {error}"
    except Exception as error:  # cupy's CUDARuntimeError has no name before cupy is imported
        return f"no usable GPU: {error}"
    return None if count > 0 else "no usable GPU: the driver lists none"
