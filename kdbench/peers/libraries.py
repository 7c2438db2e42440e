# SPDX-License-Identifier: Apache-2.0
"""Other people's libraries: imported when installed, or loaded from a file that the user names.

A wheel of gigabytes is no reason to go without a comparison: most kernels live in one shared library of it, and
``torch.ops.load_library`` registers the ops of such a file without the package around it.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from kdbench.errors import KdbenchError

_DIGITS = 12


@dataclass(frozen=True)
class _Source:
    """How a library is found.

    Attributes:
        distribution: its name on PyPI, for the version and for advice.
        imports: modules one of which registers or holds what is needed.
        file: what a file given by path is called in that distribution.
    """

    distribution: str
    imports: tuple[str, ...]
    file: str


KNOWN: Mapping[str, _Source] = {
    "sgl_kernel": _Source("sglang-kernel", ("sgl_kernel",), "sgl_kernel/sm90/common_ops.abi3.so"),
    "flashmla": _Source("sglang-kernel", ("sgl_kernel.flash_mla",), "sgl_kernel/flashmla_ops.abi3.so"),
    "vllm_fa3": _Source("vllm", ("vllm.vllm_flash_attn",), "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so"),
    "flashinfer": _Source("flashinfer-python", ("flashinfer",), ""),
    "flashinfer_mla": _Source(
        "flashinfer-python", ("flashinfer.mla",), "the compiled module batch_mla_attention_*_sm90.so"
    ),
    "sglang": _Source(
        "sglang",
        ("sglang.kernels.ops.attention.extend_attention", "sglang.srt.layers.attention.triton_ops.extend_attention"),
        "",
    ),
}
# Files that are no Torch extension, but a module of apache-tvm-ffi.
_TVM_FFI = frozenset({"flashinfer_mla"})


class Libraries:
    """What is loaded, by the names of ``KNOWN``; each is looked for once."""

    def __init__(self, paths: Mapping[str, Path] | None = None) -> None:
        self._paths = dict(paths or {})
        self._found: dict[str, Any] = {}
        self._reasons: dict[str, str] = {}

    def missing(self, name: str) -> str | None:
        """Why ``name`` cannot be used, or None when it is loaded."""
        if name not in self._found and name not in self._reasons:
            try:
                self._found[name] = self._load(name)
            except (ImportError, OSError, RuntimeError, AttributeError) as error:
                self._reasons[name] = f"{self._called(name)} {_first_line(error)}"
        return self._reasons.get(name)

    def module(self, name: str) -> Any:
        """The imported module, the tvm-ffi module, or ``torch.ops`` for a file of Torch ops."""
        if reason := self.missing(name):
            raise KdbenchError(reason)
        return self._found[name]

    def from_file(self, name: str) -> bool:
        """True when the user named a file for it."""
        return name in self._paths

    def version(self, name: str) -> str:
        """The distribution and its version, or the file and its digest."""
        if name in self._paths:
            path = self._paths[name]
            return f"{path.name} sha256:{hashlib.sha256(path.read_bytes()).hexdigest()[:_DIGITS]}"
        try:
            return f"{KNOWN[name].distribution} {metadata.version(KNOWN[name].distribution)}"
        except metadata.PackageNotFoundError:
            return f"{KNOWN[name].distribution} of unknown version"

    def _load(self, name: str) -> Any:
        torch = importlib.import_module("torch")  # its wheel brings the CUDA libraries that the others link to
        if name not in self._paths:
            return _first_import(KNOWN[name].imports)
        path = self._paths[name]
        if name in _TVM_FFI:
            return importlib.import_module("tvm_ffi").load_module(str(path))
        torch.ops.load_library(str(path))
        return torch.ops

    def _called(self, name: str) -> str:
        source = KNOWN[name]
        if name in self._paths:
            return f"{self._paths[name]} cannot be loaded:"
        by_path = f", nor named with --library {name}={source.file}" if source.file else ""
        return f"{source.distribution} is not installed{by_path}:"


def parse(options: Iterable[str]) -> dict[str, Path]:
    """``name=path`` options as a mapping; KdbenchError for an unknown name or a file that is not there."""
    paths: dict[str, Path] = {}
    for option in options:
        name, separator, path = option.partition("=")
        named = [known for known, source in KNOWN.items() if source.file]
        if not separator or name not in named:
            raise KdbenchError(f"--library {option}: NAME=PATH is expected, with a NAME of {', '.join(named)}")
        if not Path(path).is_file():
            raise KdbenchError(f"--library {option}: there is no file {path}")
        paths[name] = Path(path).resolve()
    return paths


def torch_missing(backend: str) -> str | None:
    """Why Torch cannot be used on ``backend``, or None."""
    try:
        torch = importlib.import_module("torch")
    except (ImportError, OSError) as error:
        return f"torch is not installed: {_first_line(error)}"
    if backend == "cuda" and not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no GPU"
    return None


def torch_version() -> str:
    """Torch and its version."""
    return f"torch {importlib.import_module('torch').__version__}"


def _first_import(names: tuple[str, ...]) -> Any:
    errors = []
    for name in names:
        try:
            return importlib.import_module(name)
        except (ImportError, OSError, RuntimeError) as error:
            errors.append(error)
    raise errors[0]


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
