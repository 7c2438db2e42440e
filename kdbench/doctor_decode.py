# SPDX-License-Identifier: Apache-2.0
"""kdbench doctor's probes of what decoding text needs: matrix products, readers of model files, the shipped model."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util

from kdbench.doctor import Finding

_READERS = ("safetensors", "tokenizers")
# A function of each library that the engine calls.
_SYMBOLS = {"cpu": ("cblas_sgemv", "scipy_cblas_sgemv"), "cuda": ("cublasGemmEx",)}


def gemm_library(backend: str) -> Finding:
    """The library that ``kdbench.blas`` finds for a backend: it loads and has what the engine calls."""
    from kdbench import blas

    path = blas.find(backend)
    if path is None and backend == "cpu":
        return Finding("missing", "no OpenBLAS package", "pip install 'kdbench[decode]'; or the system's libopenblas")
    if path is None:
        return Finding("missing", "no cuBLAS", "install the CUDA toolkit; only large models are slow without it")
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return Finding("broken", f"{path} cannot be loaded: {error}", "install it again")
    if not any(hasattr(library, symbol) for symbol in _SYMBOLS[backend]):
        return Finding("broken", f"{path} has no {' and no '.join(_SYMBOLS[backend])}", "install it again")
    return Finding("ok", str(path))


def readers() -> Finding:
    """The packages that read weights and tokenizers."""
    lacking = [name for name in _READERS if importlib.util.find_spec(name) is None]
    if lacking:
        return Finding("missing", f"no {' and no '.join(lacking)}", "pip install 'kdbench[decode]'")
    return Finding("ok", ", ".join(f"{name} {importlib.metadata.version(name)}" for name in _READERS))


def model() -> Finding:
    """The target and drafter that come with kdbench, and whether golden tokens are of them."""
    from kdbench import decode_golden
    from kdbench.decode import shipped_model
    from kdbench.errors import ModelError

    try:
        target, drafter = shipped_model()
    except ModelError as error:
        return Finding("missing", str(error), "install kdbench again")
    digest = decode_golden.model_digest((target, drafter))
    golden = decode_golden.load("tiny")
    told = f"{target.parent}, {digest[:16]}"
    if golden is None or golden.model_sha256 != digest:
        return Finding("broken", f"{told}, which the golden tokens are not of", "install kdbench again")
    return Finding("ok", told)
