# SPDX-License-Identifier: Apache-2.0
"""What kdbench raises: one base class, one class a layer, each message one sentence."""

from __future__ import annotations


class KdbenchError(Exception):
    """Base of every error that kdbench raises on purpose."""


class KernelError(KdbenchError):
    """A native call did not return KDT_OK.

    Attributes:
        status: the value it returned, one of ``kdbench.native.Status``.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> tuple[type[KernelError], tuple[str, int]]:
        # Exception pickles its args only, and would lose status on the way back from a worker process.
        return type(self), (str(self), self.status)


class BackendUnavailable(KdbenchError):  # noqa: N818 - says what is the case, as NotImplementedError's callers read it
    """A native library or its device is missing, or the library is too old for what was asked."""


class InvalidArgument(KdbenchError, ValueError):  # noqa: N818
    """An argument of a public call has a wrong shape, dtype, device, order or range."""


class InvalidTree(KdbenchError, ValueError):  # noqa: N818
    """A DraftTree breaks an invariant that every draft tree has."""


class KdtrError(KdbenchError, ValueError):
    """Bytes that are no sound KDTR container."""


class ModelError(KdbenchError, ValueError):
    """A model's config.json, weights or tokenizer are missing, malformed or not of an architecture that is decoded."""
