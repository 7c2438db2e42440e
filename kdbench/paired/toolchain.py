# SPDX-License-Identifier: Apache-2.0
"""What would build a library here: compilers, flags and architectures, as far as they shape the machine code."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from kdbench.paired.types import BuildError

_TIMEOUT_S = 60
# What CMake reads from the environment.
_FLAGS = ("CXXFLAGS", "CUDAFLAGS", "LDFLAGS", "CUDAHOSTCXX", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")


def describe(backend: str) -> dict[str, str]:
    """Everything that, beside the sources, decides what a library of ``backend`` is.

    Raises:
        BuildError: a compiler is missing.
    """
    cxx = os.environ.get("CXX") or _first("c++", "g++", "clang++")
    if not cxx or not _first(cxx):
        raise BuildError(f"there is no C++ compiler{f' {cxx}' if cxx else ''} here: install g++ 9 or newer, or set CXX")
    found = {"cxx": _version(cxx), "machine": platform.machine(), "plan": "cmake-release/1"}
    found |= {name: os.environ[name] for name in _FLAGS if os.environ.get(name)}
    if backend == "cuda":
        nvcc = _nvcc()
        if nvcc is None:
            raise BuildError("there is no nvcc in CUDA_HOME, PATH or /usr/local/cuda to build the CUDA library with")
        found |= {"nvcc": _version(nvcc), "archs": os.environ.get("CUDAARCHS") or _capabilities()}
    return found


def tool(name: str) -> str:
    """cmake or ninja: of this interpreter's environment, else of PATH; BuildError when it is in neither."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise BuildError(f"there is no {name} here, which builds the engine: pip install {name}")
    return found


def _nvcc() -> str | None:
    home = os.environ.get("CUDA_HOME")
    if home:
        path = Path(home) / "bin" / "nvcc"
        return str(path) if path.is_file() else None
    return os.environ.get("CUDACXX") or _first("nvcc", "/usr/local/cuda/bin/nvcc")


def _first(*names: str) -> str | None:
    return next((found for name in names if (found := shutil.which(name))), None)


def _version(program: str) -> str:
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{program} does not say its version: {error}") from error
    if done.returncode:
        raise BuildError(f"{program} does not say its version: {done.stderr.strip() or 'no reason given'}")
    lines = [
        line.strip()
        for line in done.stdout.splitlines()
        if any(word in line.lower() for word in ("release", "version", "++"))
    ]
    return (lines or done.stdout.strip().splitlines() or [program])[0]


def _capabilities() -> str:
    """What CMakeLists.txt would choose: it asks the same tool."""
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "all"
    return ";".join(dict.fromkeys(done.stdout.split())) if done.returncode == 0 and done.stdout.strip() else "all"
