# SPDX-License-Identifier: Apache-2.0
"""How near each result comes to what the machine could do, and which results cannot be true.

The *floor* of a workload is the time that its bytes and FLOPs (useful work only) take at the measured rates of the
machine. "Of floor" is floor / time: 1 is the best that good code reaches, and a little more happens in a cold burst. A
time under the datasheet's floor is a measuring error: ``refuse`` takes such a number away.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from kdbench import units
from kdbench.ceilings import Ceilings, datasheet_floor, floor_seconds

KEYS = ["machine", "env", "name", "params", "commit"]
COLUMNS = [*KEYS, "bound", "floor", "of_floor", "flop_rate", "byte_rate", "above_empty", "plain_ratio", "mark", "why"]
# Down to this part of the measured floor a time is the luck of a cold burst; below it the ceilings or a count are off.
TOLERANCE = 0.95
_REPLICATES = ("samples", "process_medians")
# FLOPs of one (slot, head): absorbed attention spends 2 * (576 + 512) a node; plain heads 2 * (192 + 128) a node, and
# 2 * 512 * 256 once to make K and V of the latent.
_ABSORBED, _PLAIN, _DECOMPRESS = 2176, 640, 262144


def roofline(frame: pd.DataFrame, ceilings: Mapping[str, Ceilings]) -> pd.DataFrame:
    """Floors of every number of a kernel benchmark on a GPU.

    Args:
        frame: as from ``kdbench.results.load``.
        ceilings: measured rates by machine name, as from ``kdbench.ceilings.read``.

    Returns:
        One row per number with the columns ``KEYS`` and

        - ``bound``: "memory", "compute" or "latency"; "" where nothing says
        - ``floor``: seconds, ``of_floor``: floor / time; NaN with the reason in ``why``. A hot call's floor counts its
          bytes as well, though the cache may hold them; ``why`` says so
        - ``flop_rate``, ``byte_rate``: useful FLOPs and bytes a second (0 FLOPs for the tree kernels)
        - ``above_empty``: seconds beyond empty kernels launched in the same shapes, NaN where they were not measured
        - ``plain_ratio``: FLOPs of absorbed attention over those of plain heads where it is above 1, else NaN
        - ``mark``: "" | "burst" (up to 5 % under the floor) | "suspect" (further under it)
    """
    return pd.DataFrame(list(_rows(frame, ceilings)), columns=COLUMNS)


def refuse(frame: pd.DataFrame, gpus: Mapping[str, str]) -> pd.DataFrame:
    """``frame`` without the numbers that beat a datasheet: each becomes "failed" with a sentence that says so.

    Args:
        frame: as from ``kdbench.results.load``.
        gpus: name of each machine's GPU, as machine.json has it. A GPU whose datasheet is not known refuses nothing.
    """
    reasons = [_impossible(row, gpus.get(row["machine"], "")) for row in _records(frame)]
    refused = pd.Series([bool(reason) for reason in reasons], index=frame.index, dtype=bool)
    if not refused.any():
        return frame
    return frame.assign(
        status=frame["status"].mask(refused, "failed"),
        reason=frame["reason"].mask(refused, pd.Series(reasons, index=frame.index)),
        **{key: frame[key].mask(refused) for key in ("value", "ci_low", "ci_high")},
        **{key: [[] if bad else kept for bad, kept in zip(refused, frame[key], strict=True)] for key in _REPLICATES},
    )


def absorbed_over_plain(nodes: float) -> float:
    """FLOPs of attention on latents over those of plain heads that make K and V first, for ``nodes`` a request.

    Above 1 beyond 170 nodes: being at the roofline is then not the best that can be done.
    """
    return _ABSORBED * nodes / (_PLAIN * nodes + _DECOMPRESS)


def _impossible(row: Mapping[str, Any], gpu: str) -> str:
    if row["status"] != "ok" or not _is_timed_on_gpu(row):
        return ""
    floor = datasheet_floor(gpu, row["bytes_moved"], row["flops"], row["timing_mode"])
    if floor is None or row["value"] >= floor:
        return ""
    return (
        f"refused: {_time(row['value'])} is faster than the {_time(floor)} that {gpu} needs by its datasheet, so the "
        "measurement or the count of bytes and FLOPs is wrong"
    )


def _rows(frame: pd.DataFrame, ceilings: Mapping[str, Ceilings]) -> Iterator[dict[str, Any]]:
    for row in _records(frame):
        if row["status"] != "ok" or not _is_timed_on_gpu(row):
            continue
        ratio = absorbed_over_plain(row["absorbed_nodes"])
        yield {
            **{key: row[key] for key in KEYS},
            "flop_rate": row["flops"] / row["value"],
            "byte_rate": row["bytes_moved"] / row["value"],
            "above_empty": row["value"] - row["empty_launch"],
            "plain_ratio": ratio if ratio > 1 else math.nan,
            **_floor(row, ceilings.get(row["machine"])),
        }


def _floor(row: Mapping[str, Any], rates: Ceilings | None) -> dict[str, Any]:
    latency = row["roofline"] == "latency"
    if rates is None:
        why = f"no ceilings of {row['machine']} are known: kdbench calibrate measures them"
        return _no_floor("latency" if latency else "", why)
    # Also for hot calls: what the cache saves them is said in words, and never refused.
    floor = floor_seconds(rates, row["bytes_moved"], row["flops"], "cold")
    bound = "memory" if floor == row["bytes_moved"] / rates.bytes_per_s else "compute"
    if floor < row["empty_call"]:
        return _no_floor("latency", f"bytes and FLOPs take {_time(floor)}, less than an empty launch")
    if latency and math.isnan(row["empty_call"]):
        return _no_floor("latency", "a chain of dependent steps, which bytes and FLOPs do not bound")
    if not floor > 0:
        return _no_floor(bound, f"the rate that bounds it is not known on {row['machine']}")
    reached, cached = floor / row["value"], row["timing_mode"] != "cold" and bound == "memory"
    return {
        "bound": "latency" if latency else bound,
        "floor": floor,
        "of_floor": reached,
        "mark": "" if reached <= 1 or cached else "burst" if reached * TOLERANCE <= 1 else "suspect",
        "why": "hot: in part from the cache" if cached else "",
    }


def _no_floor(bound: str, why: str) -> dict[str, Any]:
    return {"bound": bound, "floor": math.nan, "of_floor": math.nan, "mark": "", "why": why}


def _is_timed_on_gpu(row: Mapping[str, Any]) -> bool:
    """A number of seconds from a GPU, of a workload whose bytes are known."""
    known = row["unit"] == "seconds" and math.isfinite(row["bytes_moved"])
    return known and json.loads(row["params"]).get("backend") == "cuda"


def _time(seconds: float) -> str:
    return units.quantity(seconds, "seconds")


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(key): value for key, value in row.items()} for row in frame.to_dict("records")]
