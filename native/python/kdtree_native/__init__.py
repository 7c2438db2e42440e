# SPDX-License-Identifier: Apache-2.0
"""The native kernels of DDTree speculative decoding: shared libraries with one C ABI, and no Python logic."""

from pathlib import Path


def library_dir() -> Path:
    """The folder that holds ``libkdtree_cpu.so`` and, where it was built, ``libkdtree_cuda.so``."""
    return Path(__file__).resolve().parent
