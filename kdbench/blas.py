# SPDX-License-Identifier: Apache-2.0
"""Where the decode engine finds its GEMM library: a file of a CBLAS for the CPU, of cuBLAS for CUDA."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

# What the wheels and toolkits call it, newest first.
_CUBLAS = ("libcublas.so.13", "libcublas.so.12", "libcublas.so")


def find(backend: str) -> Path | None:
    """The library for ``backend``, or None: then the engine asks the system's loader for the usual name.

    On the CPU it is OpenBLAS of the package scipy-openblas32, which ``pip install 'kdbench[decode]'`` brings: one
    release with 32-bit integers on every machine. With CUDA it is the toolkit's, or that of NVIDIA's wheels.
    """
    found = _openblas() if backend == "cpu" else _cublas()
    return next(found, None)


def _openblas() -> Iterator[Path]:
    # Looked up and not imported: importing it loads the library for everybody in this process.
    for folder in _folders("scipy_openblas32"):
        yield from sorted((folder / "lib").glob("libscipy_openblas*.so*"))


def _cublas() -> Iterator[Path]:
    homes = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    folders = [Path(home) / "lib64" for home in homes if home]
    for package in _folders("nvidia"):
        folders += [package / "cu13" / "lib", package / "cublas" / "lib"]
    for folder in folders:
        yield from (folder / name for name in _CUBLAS if (folder / name).is_file())


def _folders(package: str) -> Iterator[Path]:
    spec = importlib.util.find_spec(package)
    yield from map(Path, spec.submodule_search_locations or () if spec else ())
