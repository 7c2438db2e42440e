# SPDX-License-Identifier: Apache-2.0
"""Are the kernels right, and the loop of them? Every workload against its golden output, on every backend there is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from kdbench import decode_workloads, golden, native, workloads
from kdbench.decode_subject import DecodeSubject
from kdbench.errors import BackendUnavailable, KernelError
from kdbench.timing import Subject

CHECKED = (*workloads.KERNELS, decode_workloads.KERNEL)


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
    kernels: Sequence[str] = CHECKED,
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
            status, detail = ("n/a", reason) if reason else _check(partial(Subject, workload, backend))
            yield Outcome(workload.kernel, workload.name, backend, status, detail)
    if decode_workloads.KERNEL in kernels:
        yield from _decoding(backends, missing, tag, wanted)


def _decoding(
    backends: Sequence[str], missing: Mapping[str, str | None], tag: str | None, wanted: re.Pattern[str]
) -> Iterator[Outcome]:
    """The decode loop on the shipped model; random weights have nothing to be held against."""
    for workload in decode_workloads.REGISTRY.values():
        if workload.model != "tiny" or (tag is not None and tag not in workload.tags):
            continue
        for backend in backends if wanted.search(workload.name) else ():
            if backend in workload.backends:
                reason = missing[backend]
                status, detail = ("n/a", reason) if reason else _check(partial(DecodeSubject, workload, backend))
                yield Outcome(decode_workloads.KERNEL, workload.name, backend, status, detail)


def _check(make: Callable[[], Subject | DecodeSubject]) -> tuple[str, str]:
    try:
        make().verify()
    except BackendUnavailable as error:
        return "n/a", str(error)
    except (golden.DigestMismatch, KernelError) as error:
        return "wrong", str(error)
    return "ok", ""
