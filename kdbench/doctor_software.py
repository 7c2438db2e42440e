# SPDX-License-Identifier: Apache-2.0
"""kdbench doctor's probes of tools, packages and native libraries."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from kdbench.doctor import Finding

_TIMEOUT_S = 20
# The versions whose result format and private classes kdbench relies on.
_ASV = {"asv": "0.6.6", "asv_runner": "0.3.2"}
_REPORT_PACKAGES = ("pandas", "jinja2", "matplotlib", "typer", "rich")


def python() -> Finding:
    """This interpreter."""
    return Finding("ok", f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}")


def git() -> Finding:
    """git, and whether this folder belongs to a repository that it will read."""
    path = shutil.which("git")
    if path is None:
        return Finding("broken", "no git", "install git: asv checks commits out with it")
    version = first_line(path, "--version")
    here = subprocess.run([path, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if here.returncode == 0:
        return Finding("ok", f"{version}; HEAD is {here.stdout.strip()[:10]}")
    why = (here.stderr.strip().splitlines() or ["git gives no reason"])[0]
    advice = "set safe.directory for this folder" if "dubious" in here.stderr else "run inside a clone that has commits"
    return Finding("warn", f"{version}; no readable commit here: {why}", advice)


def compiler() -> Finding:
    """The C++ compiler that builds each commit's libkdtree_cpu.so."""
    if path := _compiler_path():
        return Finding("ok", f"{first_line(path, '--version')} at {path}")
    return Finding("broken", "no C++ compiler", "install g++ or clang++, or set CXX")


def build_tool(name: str) -> Finding:
    """cmake or ninja: on the PATH, beside this interpreter, or as a package."""
    beside = Path(sys.executable).with_name(name)
    path = shutil.which(name) or (str(beside) if beside.is_file() else None)
    if path:
        return Finding("ok", f"{first_line(path, '--version')} at {path}")
    return Finding("missing", f"no {name}", f"pip install {name}; native/build_nvcc.sh builds without it")


def nvcc() -> Finding:
    """The CUDA compiler."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    candidates = [str(Path(home, "bin", "nvcc"))] if home else []
    for name in (*candidates, "nvcc", "/usr/local/cuda/bin/nvcc"):
        if path := shutil.which(name):
            return Finding("ok", f"{last_line(path, '--version')} at {path}")
    advice = "install the CUDA toolkit, or set CUDA_HOME, to measure CUDA kernels; the CPU needs none"
    return Finding("missing", "no nvcc", advice)


def asv() -> Finding:
    """asv and asv_runner in the versions that kdbench is made for."""
    versions = {name: _version(name) for name in _ASV}
    lacking = [name for name, version in versions.items() if version is None]
    if lacking:
        return Finding("broken", f"no {' and no '.join(lacking)}", "pip install 'kdbench[harness]'")
    found = ", ".join(f"{name} {version}" for name, version in versions.items())
    wrong = [f"{name}=={wanted}" for name, wanted in _ASV.items() if versions[name] != wanted]
    return Finding("warn", found, f"pip install {' '.join(wrong)}") if wrong else Finding("ok", found)


def report_packages() -> Finding:
    """What reports and notebooks are made with."""
    versions = {name: _version(name) for name in _REPORT_PACKAGES}
    lacking = [name for name, version in versions.items() if version is None]
    if lacking:
        return Finding("missing", f"no {', '.join(lacking)}", "pip install 'kdbench[harness]'")
    return Finding("ok", ", ".join(f"{name} {version}" for name, version in versions.items()))


def cpu_library() -> Finding:
    """libkdtree_cpu.so: found, loaded, and right on one small tree.

    Where this interpreter has none a compiler is enough: ``kdbench run`` builds each commit's own.
    """
    import numpy as np

    from kdbench import kernels, native, reference

    reason = native.available("cpu")
    if reason and _compiler_path():
        return Finding("missing", reason, "make test installs one")
    if reason:
        return Finding("broken", reason, "install a C++ compiler; make test then installs one")
    log_probs = np.log(np.array([[[0.5, 0.3, 0.2], [0.6, 0.3, 0.1]]], dtype=np.float32))
    token_ids = np.array([[[11, 12, 13], [21, 22, 23]]], dtype=np.int32)
    root, length = np.array([7], dtype=np.int32), np.array([5], dtype=np.int32)
    built = kernels.tree_build(log_probs, token_ids, root, length, 6, backend="cpu")
    wanted = reference.tree_build(log_probs, token_ids, root, length, 6)
    if not all(np.array_equal(getattr(built, name), array) for name, array in wanted.arrays().items()):
        return Finding("broken", "tree_build differs from its reference on six nodes", "rebuild; run kdbench verify")
    return Finding("ok", _built("cpu"))


def cuda_library() -> Finding:
    """libkdtree_cuda.so: found and loadable."""
    from kdbench.errors import BackendUnavailable

    try:
        return Finding("ok", _built("cuda"))
    except BackendUnavailable as error:
        return Finding("missing", str(error), "build with nvcc to measure CUDA kernels; the CPU needs none")


def cupy() -> Finding:
    """cupy, through which kdbench holds device memory."""
    if importlib.util.find_spec("cupy") is None:
        return Finding("missing", "no cupy", "pip install 'kdbench[cuda]' on a machine with an NVIDIA GPU")
    import cupy as module

    count = int(module.cuda.runtime.getDeviceCount())
    version = module.cuda.runtime.runtimeGetVersion()
    return Finding("ok", f"cupy {module.__version__}, CUDA runtime {version}, {count} device(s)")


def _compiler_path() -> str | None:
    names = filter(None, (os.environ.get("CXX"), "c++", "g++", "clang++"))
    return next(filter(None, map(shutil.which, names)), None)


def _built(backend: str) -> str:
    from kdbench import native

    library = native.load(backend)
    info = ", ".join(f"{key} {value}" for key, value in library.build_info.items() if value not in ("", None, []))
    return f"{library.path} (ABI {library.abi_version}; {info})"


def first_line(*command: str) -> str:
    """First line of what a command prints."""
    return (_lines(*command) or ["no answer"])[0]


def last_line(*command: str) -> str:
    """Last line of what a command prints."""
    return (_lines(*command) or ["no answer"])[-1]


def _lines(*command: str) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    return (done.stdout or done.stderr).strip().splitlines()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
