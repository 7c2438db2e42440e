# SPDX-License-Identifier: Apache-2.0
"""Bad lengths, counts and pages in one request of verify_attn: it is all pads, and its neighbours are right."""

from __future__ import annotations

import dataclasses

import attention_cases
import numpy as np
import pytest
from attention_cases import attention_case
from guarded import Canaries

import kdbench
from kdbench.arrays import to_numpy
from kdbench.native import RequestStatus

INT_MAX, INT_MIN = 2**31 - 1, -(2**31)


class TestVerifyAttn:
    NODES, HEADS = 9, 2

    def case(self, page_size: int = 4) -> attention_cases.AttentionCase:
        return attention_case(
            np.random.default_rng(85),
            seq_lens=[30, 21, 0, 11],
            counts=[9, 6, 4, 1],
            nodes=self.NODES,
            heads=self.HEADS,
            page_size=page_size,
            kind="tree",
        )

    def run(self, place, case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        canaries = Canaries(place)
        shape = (4, self.NODES, self.HEADS)
        out, lse = canaries.array((*shape, 512), "uint16"), canaries.array(shape, "float32")
        status = canaries.array((4,), "int32")
        kdbench.verify_attn(*case.arguments(place), out=(out, lse), status=status)
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
            ("first page", INT_MIN, RequestStatus.BAD_PAGE),
            ("first page", 10_000, RequestStatus.BAD_PAGE),
            ("last page", -1, RequestStatus.BAD_PAGE),
            ("last page", INT_MAX, RequestStatus.BAD_PAGE),
        ],
    )
    @pytest.mark.parametrize("bad", [0, 1, 3])
    def test_an_impossible_request_is_all_pads(self, place, field, value, status, bad):
        case = self.case()
        sound = self.run(place, case)
        assert sound[2].tolist() == [0] * 4
        broken = dataclasses.replace(
            case, **{n: getattr(case, n).copy() for n in ("seq_lens", "num_nodes", "block_table")}
        )
        if field.endswith("page"):
            last = (int(case.seq_lens[bad] + case.num_nodes[bad]) - 1) // 4
            broken.block_table[bad, 0 if field == "first page" else last] = value
        else:
            getattr(broken, field)[bad] = value
        out, lse, statuses = self.run(place, broken)
        assert statuses[bad] == status
        assert not out[bad].any()
        assert np.isneginf(lse[bad]).all()
        others = np.arange(4) != bad
        assert not statuses[others].any()
        assert np.array_equal(out[others], sound[0][others])
        assert np.array_equal(lse[others], sound[1][others])
        # Without a status word the answer is the same.
        plain = kdbench.verify_attn(*broken.arguments(place))
        assert np.array_equal(to_numpy(plain[0]), out)
        assert np.array_equal(to_numpy(plain[1]), lse)

    def test_a_tail_needs_its_own_pages_and_sound_lengths(self, place):
        case = self.case()
        sound = kdbench.verify_attn(*case.arguments(place), tail_only=True)
        table, lengths = case.block_table.copy(), case.seq_lens.copy()
        table[0, :7] = INT_MIN  # slots 0 to 27 of a prefix of 30
        table[1, 5] = -1  # slots 20 to 23: the last one of the prefix and the first nodes
        lengths[3] = 100
        status = place(np.zeros(4, np.int32))
        broken = dataclasses.replace(case, block_table=table, seq_lens=lengths)
        out, lse = kdbench.verify_attn(*broken.arguments(place), status=status, tail_only=True)
        assert to_numpy(status).tolist() == [0, RequestStatus.BAD_PAGE, 0, RequestStatus.BAD_LENGTH]
        for b in (0, 2):
            assert np.array_equal(to_numpy(out)[b], to_numpy(sound[0])[b])
            assert np.array_equal(to_numpy(lse)[b], to_numpy(sound[1])[b])
        for b in (1, 3):
            assert not to_numpy(out)[b].any()
            assert np.isneginf(to_numpy(lse)[b]).all()

    @pytest.mark.parametrize("page_size", [1, 4, 16])
    def test_a_table_that_is_just_long_enough(self, place, page_size):
        case = self.case(page_size)
        needed = -(-int((case.seq_lens + case.num_nodes).max()) // page_size)
        tight = dataclasses.replace(case, block_table=np.ascontiguousarray(case.block_table[:, :needed]))
        assert self.run(place, tight)[2].tolist() == [0] * 4
        cut = dataclasses.replace(case, block_table=np.ascontiguousarray(case.block_table[:, : needed - 1]))
        assert self.run(place, cut)[2].tolist() == [RequestStatus.BAD_LENGTH, 0, 0, 0]

    @pytest.mark.parametrize("where", ["q_nope", "q_pe", "kv_cache"])
    def test_nan_in_one_request_stays_there(self, place, where):
        case = self.case()
        sound = self.run(place, case)
        broken = dataclasses.replace(case, **{where: getattr(case, where).copy()})
        if where == "kv_cache":
            broken.kv_cache[case.block_table[1, 0], 2, 100] = attention_cases.NAN_BF16
        else:
            getattr(broken, where)[1, 0] = attention_cases.NAN_BF16
        out, lse, status = self.run(place, broken)
        assert np.isnan(lse[1, 0]).all()
        assert status.tolist() == [0] * 4
        for b in (0, 2, 3):
            assert np.array_equal(out[b], sound[0][b])
            assert np.array_equal(lse[b], sound[1][b])
