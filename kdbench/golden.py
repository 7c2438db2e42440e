# SPDX-License-Identifier: Apache-2.0
"""Golden outputs: what a kernel must have written before, and after, it is timed.

``golden.json`` holds one entry a workload. tree_build, tree_accept and kv_compact are bit-exact on every backend, so
theirs is a SHA-256 of the output bytes. Attention and log-probs are not, so theirs is a sketch of the oracle's answer
for a few rows: enough to see a wrong kernel, small enough to commit. ``python -m kdbench.golden_writer`` writes the
file.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdbench.abi import RequestStatus
from kdbench.errors import KdbenchError

Array = NDArray[Any]
Entry = Mapping[str, Any]

PATH = Path(__file__).with_name("golden.json")
SCHEMA = "kdbench/golden/1"
# ||out - ref|| / ||ref|| of attention in bf16, the project's own bound; one random +-1 projection of the error has that
# standard deviation, so that single projections get five of it.
ATTENTION_RELATIVE_ERROR = 3e-3
PROJECTION_SPREAD = 5
LSE_ERROR = 1e-3
# verify_mla rounds keys, values or absorbed queries to bf16 on the way, which shifts its scores as well.
MLA_RELATIVE_ERROR = 6e-3
MLA_LSE_ERROR = 1e-2
LOG_PROB_ERROR = 1e-4
NUM_PROJECTIONS = 4


class DigestMismatch(KdbenchError):  # noqa: N818 - what was found, like BackendUnavailable
    """A kernel's output is not the golden one: it is wrong, and it gets no time."""


@functools.cache
def load(path: Path = PATH) -> dict[str, Entry]:
    """All golden entries by workload name; KdbenchError when the file is missing or of another schema."""
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise KdbenchError(f"golden outputs cannot be read from {path}: {error}") from error
    if document.get("schema") != SCHEMA:
        raise KdbenchError(f"{path} has schema {document.get('schema')!r}, and {SCHEMA!r} is expected")
    entries: dict[str, Entry] = document["workloads"]
    return entries


def digest(arrays: Mapping[str, Array]) -> str:
    """SHA-256 over names, dtypes, shapes and little-endian bytes, in order of names."""
    state = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        state.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        state.update(array.data if array.size else b"")
    return state.hexdigest()


def exact(outputs: Mapping[str, Array]) -> dict[str, str]:
    """Golden entry of a bit-exact kernel; SLOW_PATH only informs, and differs between backends."""
    masked = {**outputs, "status": outputs["status"] & np.int32(~RequestStatus.SLOW_PATH)}
    return {"sha256": digest(masked)}


def check_exact(entry: Entry, outputs: Mapping[str, Array]) -> None:
    """Raise DigestMismatch unless ``outputs`` are the golden bytes."""
    found = exact(outputs)["sha256"]
    if found != entry["sha256"]:
        raise DigestMismatch(f"the output digest is {found[:16]}, and {entry['sha256'][:16]} is golden")


def signs() -> Array:
    """f64[512, NUM_PROJECTIONS] of +-1, always the same: a Hadamard-like pattern of bit parities."""
    place = np.arange(512)[:, None]
    masks = np.array([0x15B, 0x0E7, 0x1C9, 0x12D])[:NUM_PROJECTIONS]
    parity = np.zeros((512, NUM_PROJECTIONS), np.int64)
    for bit in range(9):
        parity ^= ((place & masks) >> bit) & 1
    return 1.0 - 2.0 * parity


def attention_sketch(num_nodes: Array, rows: Array, out: Array, lse: Array) -> dict[str, Any]:
    """Golden entry of verify_attn and merge_attn_states.

    Args:
        num_nodes: i32[B] real nodes of each request.
        rows: i64[R, 3] of (request, node, head).
        out: f64[R, 512] (of verify_mla f64[R, 128]) the oracle's answers for these rows.
        lse: f64[R] natural log.
    """
    return {
        "num_nodes": num_nodes.tolist(),
        "rows": rows.tolist(),
        "norms": _rounded(np.linalg.norm(out, axis=1)),
        "lse": _rounded(lse),
        "projections": [_rounded(row) for row in out @ signs()[: out.shape[1]]],
    }


def check_mla(entry: Entry, outputs: Mapping[str, Array]) -> None:
    """``check_attention`` of verify_mla's outputs (out u16[B, N, H, 128]), within its own bounds."""
    check_attention(entry, outputs, relative_error=MLA_RELATIVE_ERROR, lse_error=MLA_LSE_ERROR)


def check_attention(
    entry: Entry,
    outputs: Mapping[str, Array],
    *,
    relative_error: float = ATTENTION_RELATIVE_ERROR,
    lse_error: float = LSE_ERROR,
) -> None:
    """Compare attention's outputs (out as bf16 words u16[B, N, H, 512], lse f32[B, N, H]) with the sketch.

    Raises:
        DigestMismatch: naming the row that is off, a value that was never written, or a pad that is not 0 and -inf.
    """
    words, lse = outputs["out"], outputs["lse"]
    if np.any(outputs.get("status", np.zeros(1, np.int32))):
        raise DigestMismatch(f"request status is {outputs['status'].tolist()}, and all 0 is golden")
    pads = np.arange(words.shape[1]) >= np.array(entry["num_nodes"])[:, None]
    if np.any(words[pads]) or not np.all(np.isneginf(lse[pads])):
        raise DigestMismatch("pads are not all 0 with lse -inf")
    if np.any((words & np.uint16(0x7F80)) == 0x7F80) or not np.all(np.isfinite(lse[~pads])):
        raise DigestMismatch("the output holds NaN or infinity: a part of it was never written, or went wrong")
    b, i, h = np.array(entry["rows"]).T
    out = (words[b, i, h].astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    norms, projections = np.array(entry["norms"]), np.array(entry["projections"])
    off = np.abs(lse[b, i, h] - np.array(entry["lse"]))
    if off.max() > lse_error:
        raise DigestMismatch(f"lse is off by {off.max():.2e} at {_where(entry, off)}, and {lse_error} is allowed")
    error = np.abs(out @ signs()[: out.shape[1]] - projections) / norms[:, None]
    worst = error.max(axis=1)
    projection_error = PROJECTION_SPREAD * relative_error
    if worst.max() > projection_error or not np.sqrt(np.mean(error**2)) <= relative_error:
        raise DigestMismatch(
            f"out is off by {np.sqrt(np.mean(error**2)):.2e} of its norm overall and {worst.max():.2e} at "
            f"{_where(entry, worst)}, and {relative_error} and {projection_error:.3g} are allowed"
        )
    length = np.abs(np.linalg.norm(out, axis=1) / norms - 1)
    if length.max() > relative_error:
        raise DigestMismatch(f"the norm of out is off by {length.max():.2e} at {_where(entry, length)}")


def topk_sketch(log_probs: Array, token_ids: Array, status: Array) -> dict[str, Any]:
    """Golden entry of draft_topk: ids exactly, and the first and last log-prob of each row."""
    return {
        "sha256": digest({"token_ids": token_ids, "status": status}),
        "first": _rounded(log_probs[:, 0]),
        "last": _rounded(log_probs[:, -1]),
    }


def check_topk(entry: Entry, outputs: Mapping[str, Array]) -> None:
    """Compare draft_topk's outputs with the sketch; DigestMismatch says what differs."""
    log_probs, ids = outputs["topk_log_probs"], outputs["topk_token_ids"]
    if digest({"token_ids": ids, "status": outputs["status"]}) != entry["sha256"]:
        raise DigestMismatch("token ids or row status are not the golden ones")
    if not np.all(log_probs[:, 1:] <= log_probs[:, :-1]):
        raise DigestMismatch("log-probs are not descending, or some were never written")
    for column, name in ((0, "first"), (-1, "last")):
        off = np.abs(log_probs[:, column].astype(np.float64) - np.array(entry[name]))
        if not off.max() <= LOG_PROB_ERROR:
            raise DigestMismatch(f"the {name} log-prob of row {int(off.argmax())} is off by {off.max():.2e}")


def _rounded(values: Array) -> list[float]:
    return [float(f"{value:.9g}") for value in np.asarray(values, np.float64)]


def _where(entry: Entry, error: Array) -> str:
    b, i, h = entry["rows"][int(np.argmax(error))]
    return f"request {b}, node {i}, head {h}"
