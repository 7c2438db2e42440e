# SPDX-License-Identifier: Apache-2.0
"""Bad lengths, counts and pages in one request of verify_mla: it is all pads, and its neighbours are right."""

from __future__ import annotations

import numpy as np
import pytest
from guarded import Canaries
from mla_cases import MlaCase, mla_case

import kdbench
from kdbench.arrays import to_numpy
from kdbench.native import RequestStatus

INT_MAX, INT_MIN = 2**31 - 1, -(2**31)
NODES, HEADS = 9, 2


def sound_case(page_size: int = 4) -> MlaCase:
    return mla_case(
        np.random.default_rng(85),
        seq_lens=[30, 21, 0, 11],
        counts=[9, 6, 4, 1],
        nodes=NODES,
        heads=HEADS,
        page_size=page_size,
        kind="tree",
    )


def run(place, case: MlaCase, mode: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    canaries = Canaries(place)
    shape = (4, NODES, HEADS)
    out, lse = canaries.array((*shape, 128), "uint16"), canaries.array(shape, "float32")
    status = canaries.array((4,), "int32")
    kdbench.verify_mla(*case.arguments(place), mode=mode, out=(out, lse), status=status)
    canaries.check()
    return to_numpy(out), to_numpy(lse), to_numpy(status)


@pytest.mark.parametrize(
    ("field", "value", "status"),
    [
        ("seq_lens", -1, RequestStatus.BAD_LENGTH),
        ("seq_lens", INT_MIN, RequestStatus.BAD_LENGTH),
        ("seq_lens", 100, RequestStatus.BAD_LENGTH),
        ("seq_lens", INT_MAX, RequestStatus.BAD_LENGTH),
        ("num_nodes", 0, RequestStatus.BAD_COUNT),
        ("num_nodes", -2, RequestStatus.BAD_COUNT),
        ("num_nodes", 10, RequestStatus.BAD_COUNT),
        ("num_nodes", INT_MAX, RequestStatus.BAD_COUNT),
        ("first page", -1, RequestStatus.BAD_PAGE),
        ("first page", 10_000, RequestStatus.BAD_PAGE),
        ("last page", INT_MIN, RequestStatus.BAD_PAGE),
        ("last page", INT_MAX, RequestStatus.BAD_PAGE),
    ],
)
@pytest.mark.parametrize("bad", [0, 1, 3])
@pytest.mark.parametrize("mode", ["absorb", "mha"])
def test_an_impossible_request_is_all_pads(place, mode, field, value, status, bad):
    case = sound_case()
    sound = run(place, case, mode)
    assert sound[2].tolist() == [0] * 4
    arrays = {name: getattr(case.attention, name).copy() for name in ("seq_lens", "num_nodes", "block_table")}
    if field.endswith("page"):
        last = (int(arrays["seq_lens"][bad] + arrays["num_nodes"][bad]) - 1) // 4
        arrays["block_table"][bad, 0 if field == "first page" else last] = value
    else:
        arrays[field][bad] = value
    broken = case.replace(**arrays)
    out, lse, statuses = run(place, broken, mode)
    assert statuses[bad] == status
    assert not out[bad].any()
    assert np.isneginf(lse[bad]).all()
    others = np.arange(4) != bad
    assert not statuses[others].any()
    assert np.array_equal(out[others], sound[0][others])
    assert np.array_equal(lse[others], sound[1][others])
    # Without a status word the answer is the same.
    plain = kdbench.verify_mla(*broken.arguments(place), mode=mode)
    assert np.array_equal(to_numpy(plain[0]), out)
    assert np.array_equal(to_numpy(plain[1]), lse)


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("mode", ["absorb", "mha"])
def test_a_table_that_is_just_long_enough(place, mode, page_size):
    case = sound_case(page_size)
    request = case.attention
    needed = -(-int((request.seq_lens + request.num_nodes).max()) // page_size)
    tight = case.replace(block_table=np.ascontiguousarray(request.block_table[:, :needed]))
    assert run(place, tight, mode)[2].tolist() == [0] * 4


@pytest.mark.parametrize("mode", ["absorb", "mha"])
def test_pages_that_are_shared_and_batches_that_are_permuted(place, mode):
    case = sound_case()
    request = case.attention
    # The second request's first page is the first one's.
    request.block_table[1, 0] = request.block_table[0, 0]
    out, lse, _ = run(place, case, mode)
    order = np.array([2, 0, 3, 1])
    fields = ("q_nope", "q_pe", "block_table", "seq_lens", "tree_mask", "num_nodes")
    permuted = case.replace(**{name: np.ascontiguousarray(getattr(request, name)[order]) for name in fields})
    again = run(place, permuted, mode)
    assert np.array_equal(again[0], out[order])
    assert np.array_equal(again[1], lse[order])
