# SPDX-License-Identifier: Apache-2.0
"""Is what an implementation wrote right? Asked before its first sample, and again of what the timed launches wrote.

Trees and paths must equal ours in every entry. Of equal logits a library may take whichever it likes, so top-k answers
are held to the logits instead. Attention in bf16 is held to our own output by its norm; ours is checked first, against
the golden outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kdbench import reference
from kdbench.abi import RequestStatus
from kdbench.arrays import bf16_to_f32
from kdbench.errors import KdbenchError
from kdbench.golden import ATTENTION_RELATIVE_ERROR, LOG_PROB_ERROR, LSE_ERROR
from kdbench.peers.adapter import (
    LOG_PROBS_TO_TREE,
    LOGITS_TO_TOPK,
    LOGITS_TO_TREE,
    NO_MASK,
    TARGETS_TO_PATH,
    TREE_MASK,
    HostOutputs,
)
from kdbench.peers.inputs import Inputs

_Array = np.ndarray[Any, Any]
# Two results that may each be off by the bound may be off from each other by twice that.
_APART = 2.0


class WrongOutput(KdbenchError):  # noqa: N818 - what was found
    """An implementation wrote something else than it should have: it gets no time."""


def check(scope: str, found: HostOutputs, ours: HostOutputs, inputs: Inputs) -> float:
    """How far ``found`` is from ours: 0 for what must be exact, else a relative or absolute error.

    Args:
        scope: one of the constants of ``kdbench.peers.adapter``.
        found: an implementation's outputs as ``Prepared.to_host`` gives them; it may leave some of ours out.
        ours: what our kernel wrote for the same scope.
        inputs: what both read.

    Raises:
        WrongOutput: naming the array and how far it is off.
    """
    return _CHECKS[scope](found, ours, inputs)


def _same_arrays(found: HostOutputs, ours: HostOutputs, inputs: Inputs) -> float:
    for name, array in found.items():
        wanted, have = _informed(name, ours[name]), _informed(name, array)
        if have.shape != wanted.shape:
            raise WrongOutput(f"{name} has shape {have.shape}, and {wanted.shape} is right")
        off = np.argwhere(~_equal(have, wanted))
        if len(off):
            at = tuple(int(i) for i in off[0])
            raise WrongOutput(f"{name}{list(at)} is {have[at]}, and {wanted[at]} is right ({len(off)} entries differ)")
    return 0.0


def _equal(have: _Array, wanted: _Array) -> _Array:
    same: _Array = (have == wanted) | ((have != have) & (wanted != wanted))
    return same


def _informed(name: str, array: _Array) -> _Array:
    # How an answer was found is no part of it.
    return array & ~np.int32(RequestStatus.SLOW_PATH) if name == "status" else array


def _topk(found: HostOutputs, ours: HostOutputs, inputs: Inputs) -> float:
    log_probs, ids = found["topk_log_probs"], found["topk_token_ids"].astype(np.int64)
    vocabulary = inputs.shape("logits")[-1]
    if ids.shape != ours["topk_token_ids"].shape:
        raise WrongOutput(f"topk_token_ids has shape {ids.shape}, and {ours['topk_token_ids'].shape} is right")
    if ids.min() < 0 or ids.max() >= vocabulary:
        raise WrongOutput(f"token ids run from {ids.min()} to {ids.max()}, and the vocabulary has {vocabulary}")
    if (np.diff(np.sort(ids, axis=-1), axis=-1) == 0).any():
        raise WrongOutput("a row holds the same token twice")
    apart = np.abs(log_probs.astype(np.float64) - ours["topk_log_probs"])
    if not apart.max() <= _APART * LOG_PROB_ERROR:
        raise WrongOutput(f"log-probs are off by {apart.max():.2e}, and {_APART * LOG_PROB_ERROR} is allowed")
    chosen = _wide(np.take_along_axis(inputs.host["logits"], ids, axis=-1)).astype(np.float64)
    # Every log-prob of a row is its logit less one number.
    spread = np.ptp(chosen - log_probs, axis=-1).max()
    if not spread <= _APART * LOG_PROB_ERROR:
        raise WrongOutput(f"log-probs are not those of their token ids: off by {spread:.2e}")
    return float(apart.max())


def _tree_from_logits(found: HostOutputs, ours: HostOutputs, inputs: Inputs) -> float:
    log_probs, ids = found["topk_log_probs"], found["topk_token_ids"]
    error = _topk({"topk_log_probs": log_probs, "topk_token_ids": ids}, ours, inputs)
    roots, lengths = inputs.host["root_token_ids"], inputs.host["seq_lens"]
    # The tree must be the one that these very rows make: other libraries round a logsumexp otherwise.
    wanted = reference.tree_build(log_probs, ids, roots, lengths, int(inputs.workload.shape["budget"])).arrays()
    tree = {name: array for name, array in found.items() if name in wanted and name != "status"}
    _same_arrays(tree, wanted, inputs)
    return error


def _attention(found: HostOutputs, ours: HostOutputs, inputs: Inputs) -> float:
    nodes = ours["out"].shape[1]
    real = np.arange(nodes) < inputs.host["num_nodes"][:, None]
    out, wanted = (_wide(outputs["out"])[real].astype(np.float64) for outputs in (found, ours))
    if not np.isfinite(out).all():
        raise WrongOutput(f"out holds {int((~np.isfinite(out)).sum())} values that are not finite")
    error = float(np.linalg.norm(out - wanted) / np.linalg.norm(wanted))
    rows = np.linalg.norm(out - wanted, axis=-1) / np.linalg.norm(wanted, axis=-1)
    if not error <= _APART * ATTENTION_RELATIVE_ERROR or not rows.max() <= 10 * ATTENTION_RELATIVE_ERROR:
        raise WrongOutput(
            f"out is off by {error:.2e} of its norm and a row by {rows.max():.2e}, and "
            f"{_APART * ATTENTION_RELATIVE_ERROR} and {10 * ATTENTION_RELATIVE_ERROR} are allowed"
        )
    if "lse" in found:
        apart = np.abs(found["lse"][real].astype(np.float64) - ours["lse"][real])
        if not apart.max() <= _APART * LSE_ERROR:
            raise WrongOutput(f"lse is off by {apart.max():.2e}, and {_APART * LSE_ERROR} is allowed")
    return error


def _wide(array: _Array) -> _Array:
    return bf16_to_f32(array) if array.dtype == np.uint16 else array.astype(np.float32, copy=False)


_CHECKS: Mapping[str, Callable[[HostOutputs, HostOutputs, Inputs], float]] = {
    LOG_PROBS_TO_TREE: _same_arrays,
    LOGITS_TO_TREE: _tree_from_logits,
    TARGETS_TO_PATH: _same_arrays,
    LOGITS_TO_TOPK: _topk,
    TREE_MASK: _attention,
    NO_MASK: _attention,
}
