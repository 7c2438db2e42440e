# SPDX-License-Identifier: Apache-2.0
"""The report for machines: the document ``kdbench/report/1``, strict JSON (what is not known is null)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from kdbench.analysis import events
from kdbench.analysis.roofline import KEYS
from kdbench.report.noise import Sight

SCHEMA = "kdbench/report/1"


def document(
    newest: pd.DataFrame,
    changes: pd.DataFrame,
    warnings: Sequence[str] = (),
    rooflines: pd.DataFrame | None = None,
    peers: Sequence[dict[str, Any]] = (),
    decode: Sequence[dict[str, Any]] = (),
    noise: pd.DataFrame | None = None,
) -> dict[str, Any]:
    """Everything the page says, as one JSON object.

    Args:
        newest: as from ``kdbench.analysis.newest``.
        changes: as from ``kdbench.analysis.changes``.
        warnings: what could not be read, a sentence each.
        rooflines: as from ``kdbench.analysis.roofline``.
        peers: as from ``kdbench.report.peers.entries``.
        decode: as from ``kdbench.report.decode.entries``.
        noise: as ``kdbench.analysis.noise.mde_for`` takes it.

    Returns:
        ``series``: one entry a series at its newest commit, with its ``roofline`` and ``can_see_percent`` (null where
        they are not known); ``changes``: every commit of the history that made a series slower or faster, or that lost
        it ("missing": failed after a number); ``summary``: series a verdict; ``peers``: the newest comparison of each
        workload with other people's kernels; ``decode``: tok/s of the decode loop at each commit, split into
        acceptance_length and round time.
    """
    floors = {} if rooflines is None else {_place(row): _roofline(row) for row in _records(rooflines)}
    sight = Sight(noise)
    return {
        "schema": SCHEMA,
        "summary": {str(key): int(value) for key, value in newest["verdict"].value_counts().items()},
        "series": [
            {**_series(row), "can_see_percent": _percent(sight.of(row)), "roofline": floors.get(_place(row))}
            for row in _records(newest)
        ],
        "changes": [_change(row) for row in _records(events(changes))],
        "peers": list(peers),
        "decode": list(decode),
        "warnings": list(warnings),
    }


def to_json(content: dict[str, Any]) -> str:
    """Strict JSON: a NaN or an infinity that got this far is an error here, not at the reader's."""
    return json.dumps(content, allow_nan=False, indent=1) + "\n"


def _series(row: dict[str, Any]) -> dict[str, Any]:
    return {
        **_identity(row),
        "value": _number(row["value"]),
        "ci_low": _number(row["low"]),
        "ci_high": _number(row["high"]),
        "status": row["status"],
        "processes": int(row["processes"]),
        **_comparison(row),
    }


def _change(row: dict[str, Any]) -> dict[str, Any]:
    return {
        **_identity(row),
        "value": _number(row["value"]),
        **_comparison(row),
        "state": row["state"] or None,
        "undone_by": _text(row["undone_by"]),
    }


def _place(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(row[key] for key in KEYS)


def _roofline(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "bound": row["bound"] or None,
        "floor_seconds": _number(row["floor"]),
        "percent_of_floor": _number(100.0 * row["of_floor"]),
        "flops_per_s": _number(row["flop_rate"]),
        "bytes_per_s": _number(row["byte_rate"]),
        "seconds_above_empty": _number(row["above_empty"]),
        "absorbed_over_plain": _number(row["plain_ratio"]),
        "mark": row["mark"] or None,
        "why": row["why"] or None,
    }


def _identity(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": row["name"],
        "params": json.loads(row["params"]),
        "machine": row["machine"],
        "env": row["env"],
        "unit": row["unit"],
        "direction": row["direction"],
        "version": row["version"],
        "commit": row["commit"],
        "date": None if pd.isna(row["date"]) else row["date"].isoformat(),
        "subject": row["subject"],
    }


def _comparison(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "parent": _text(row["before"]),
        "parent_is_direct": None if pd.isna(row["direct"]) else bool(row["direct"]),
        "parent_value": _number(row["before_value"]),
        "change_percent": _number(100.0 * row["change"]),
        "change_percent_low": _number(100.0 * row["change_low"]),
        "change_percent_high": _number(100.0 * row["change_high"]),
        "p": _number(row["p"]),
        "threshold_percent": _number(100.0 * row["threshold"]),
        "evidence": row["evidence"],
        "verdict": row["verdict"],
        "reason": row["reason"],
    }


def _number(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _percent(fraction: float | None) -> float | None:
    return None if fraction is None else 100.0 * fraction


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(key): value for key, value in row.items()} for row in frame.to_dict("records")]
