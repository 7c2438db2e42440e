# SPDX-License-Identifier: Apache-2.0
"""The record of a measuring process, as analysis sees it: nested mappings in which anything may be missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Label:
    """One thing that changed.

    Attributes:
        what: "driver", "power limit", "calibration copy", ...
        kind: "covariate"; "calibration": the time of a calibration kernel; "note": worth knowing, and no cause by
            itself.
        backend: of the series that it bears on, "" for all.
        ratio: of a calibration kernel, time after / time before; else NaN.
        detail: from what to what, for people.
    """

    what: str
    kind: str
    backend: str
    ratio: float
    detail: str


def of_backend(records: Iterable[Record], backend: str) -> list[Record]:
    """Those that measured ``backend``."""
    return [record for record in records if dig(record, "library", "backend") == backend]


def dig(record: Any, *keys: str) -> Any:
    """A value inside nested mappings; None where a key is missing."""
    for key in keys:
        record = record.get(key) if isinstance(record, Mapping) else None
    return record


def series_of(record: Record) -> str:
    """Which series the process measured, as a key."""
    params = record.get("params")
    return f"{record.get('benchmark')} {sorted(params.items()) if isinstance(params, Mapping) else params}"
