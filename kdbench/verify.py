# SPDX-License-Identifier: Apache-2.0
"""Are the kernels right? Every workload against its golden output, on every backend that is there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kdbench import golden, native, workloads
from kdbench.errors import BackendUnavailable, KernelError
from kdbench.timing import Subject


@dataclass(frozen=True)
class Outcome:
    """What checking one workload on one backend found.

    Attributes:
        status: "ok", "wrong" (the output is not the golden one, or the kernel failed) or "n/a".
        detail: why, when it is not "ok".
    """

    kernel: str
    workload: str
    backend: str
    status: str
    detail: str = ""


def verify(
    kernels: Sequence[str] = workloads.KERNELS,
    backends: Sequence[str] = native.BACKENDS,
    tag: str | None = None,
    pattern: str = "",
) -> Iterator[Outcome]:
    """Check the workloads of ``kernels`` one by one, each in fresh, poisoned outputs.

    Args:
        kernels, backends: which ones.
        tag: only workloads with this tag.
        pattern: only workloads in whose name this regular expression is found.
    """
    wanted = re.compile(pattern)
    missing = {backend: native.available(backend) for backend in backends}
    for workload in workloads.every():
        if workload.kernel not in kernels or (tag is not None and tag not in workload.tags):
            continue
        if not wanted.search(workload.name):
            continue
        for backend in backends:
            if backend not in workload.backends:
                continue
            reason = missing[backend]
            status, detail = ("n/a", reason) if reason else _check(workload, backend)
            yield Outcome(workload.kernel, workload.name, backend, status, detail)


def _check(workload: workloads.Workload, backend: str) -> tuple[str, str]:
    try:
        Subject(workload, backend).verify()
    except BackendUnavailable as error:
        return "n/a", str(error)
    except (golden.DigestMismatch, KernelError) as error:
        return "wrong", str(error)
    return "ok", ""
