# SPDX-License-Identifier: Apache-2.0
"""Backends for the tests: ``gpu`` tests are skipped with the reason where there is no usable GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kdbench import native


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    reason = native.available("cuda") if gpu_items else None
    for item in gpu_items if reason else []:
        item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def backend(request: pytest.FixtureRequest) -> str:
    """Each backend in turn."""
    name: str = request.param
    reason = native.available(name)
    if reason:
        pytest.skip(reason)
    return name


@pytest.fixture
def cpu_library() -> native.Library:
    """The CPU library."""
    reason = native.available("cpu")
    if reason:
        pytest.skip(reason)
    return native.load("cpu")


@pytest.fixture
def place(backend: str) -> Callable[[np.ndarray], Any]:
    """Copies a NumPy array to where ``backend`` works: as it is for cpu, a CuPy array for cuda."""
    if backend == "cpu":
        return lambda array: array
    import cupy

    return lambda array: cupy.asarray(array)
