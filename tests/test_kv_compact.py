# SPDX-License-Identifier: Apache-2.0
"""kv_compact on every backend against the oracle, byte by byte; bad requests, and what may not be touched."""

from __future__ import annotations

import numpy as np
import pytest
import tree_cases
from guarded import Canaries
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_cases import on_backend

import kdbench
from kdbench import kernels, reference
from kdbench.arrays import to_numpy
from kdbench.errors import InvalidArgument, KernelError
from kdbench.native import RequestStatus
from kdbench.tree import DraftTree

INT_MAX, INT_MIN = 2**31 - 1, -(2**31)
property_test = settings(max_examples=150, deadline=None, derandomize=True, database=None)


def random_path(rng: np.random.Generator, horizon: int, nodes: int) -> list[int]:
    """0, then rising node indices, then -1; now and then nothing, and now and then the identity."""
    kind = rng.integers(0, 8)
    if kind == 0:
        return [-1] * (horizon + 1)
    length = int(rng.integers(0, min(horizon, nodes - 1) + 1))
    rest = np.arange(1, length + 1) if kind == 1 else 1 + np.sort(rng.choice(nodes - 1, length, replace=False))
    return [0, *rest.tolist()] + [-1] * (horizon - length)


def random_case(
    rng: np.random.Generator, *, layers: int, batch: int, horizon: int, nodes: int, page_size: int, width: int
) -> dict[str, np.ndarray]:
    """A cache of random bytes (NaN of every payload among its bf16 words), scattered pages, spare ones in between."""
    seq_lens = rng.integers(0, 3 * page_size + 2, batch).astype(np.int32)
    table_width = -(-(int(seq_lens.max(initial=0)) + nodes) // page_size)
    num_pages = batch * table_width + 2
    table = rng.permutation(num_pages)[: batch * table_width].reshape(batch, table_width)
    return {
        "kv_cache": rng.integers(0, 2**16, (layers, num_pages, page_size, width)).astype(np.uint16),
        "block_table": table.astype(np.int32),
        "seq_lens": seq_lens,
        "accepted_path": np.array([random_path(rng, horizon, nodes) for _ in range(batch)], np.int32).reshape(
            batch, horizon + 1
        ),
    }


def check(place, case: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """One call between canaries equals the oracle in every byte; returns the cache and the status."""
    expected = case["kv_cache"].copy()
    expected_status = reference.kv_compact(expected, case["block_table"], case["seq_lens"], case["accepted_path"])
    canaries = Canaries(place)
    cache = canaries.array(case["kv_cache"].shape, case["kv_cache"].dtype.name)
    cache[:] = place(case["kv_cache"])
    status = canaries.array(expected_status.shape, "int32")
    others = [place(case[name]) for name in ("block_table", "seq_lens", "accepted_path")]
    assert kdbench.kv_compact(cache, *others, status=status) is status
    canaries.check()
    np.testing.assert_array_equal(to_numpy(status), expected_status)
    np.testing.assert_array_equal(to_numpy(cache), expected)
    return to_numpy(cache), to_numpy(status)


def test_a_path_by_hand(place):
    # Slots 0 to 9 of one request in pages 2, 0, 1 of three slots each and a bit; the prefix has two tokens.
    cache = np.arange(9, dtype=np.uint16).reshape(3, 3, 1).repeat(8, axis=2)
    table, lengths = np.array([[2, 0, 1]], np.int32), np.array([2], np.int32)
    path = np.array([[0, 2, 3, 6, -1]], np.int32)
    placed = place(cache.copy())
    status = kdbench.kv_compact(placed, *map(place, (table, lengths, path)))
    logical = to_numpy(placed)[table[0], :, 0].ravel()
    before = cache[table[0], :, 0].ravel()
    # Slots 4, 5 and 8 (nodes 2, 3 and 6) went to slots 3, 4 and 5: slot 4 was a source and a target.
    assert logical.tolist() == [*before[:3], before[4], before[5], before[8], *before[6:]]
    assert to_numpy(status).tolist() == [0]


@pytest.mark.parametrize("page_size", [1, 3, 16, 64])
def test_random_rounds_equal_the_oracle_in_every_byte(place, page_size):
    moved = 0

    @property_test
    @given(
        seed=st.integers(0, 2**32 - 1),
        layers=st.integers(1, 3),
        batch=st.integers(1, 5),
        horizon=st.sampled_from([0, 1, 6, 7, 8, 15, 16, 31]),
        nodes=st.integers(1, 70),
        width=st.sampled_from([8, 24, 576]),
    )
    def rounds(seed, layers, batch, horizon, nodes, width):
        nonlocal moved
        case = random_case(
            np.random.default_rng(seed),
            layers=layers,
            batch=batch,
            horizon=horizon,
            nodes=nodes,
            page_size=page_size,
            width=width,
        )
        cache, status = check(place, case)
        assert not status.any()
        moved += int((cache != case["kv_cache"]).any())

    rounds()
    assert moved >= 50


def test_the_committed_rows_are_those_of_the_accepted_nodes(place):
    # From tree to cache: what attention will read at P + k is what verify wrote for path[k].
    rng = np.random.default_rng(7)
    parents, counts = tree_cases.random_parents(rng, 6, 40, 15)
    tokens = rng.integers(0, 4, parents.shape).astype(np.int32)
    lengths = rng.integers(0, 50, 6).astype(np.int32)
    tree = DraftTree.from_parents(tokens, parents, counts, lengths, 15)
    target = place(tree_cases.targets(rng, tree, 4))
    accepted = kdbench.tree_accept(on_backend(place, tree), target, place(lengths))
    case = random_case(rng, layers=2, batch=6, horizon=15, nodes=90, page_size=16, width=32)
    cache = place(case["kv_cache"].copy())
    kdbench.kv_compact(cache, place(case["block_table"]), place(lengths), accepted.accepted_path)
    answer, after = accepted.to_numpy(), to_numpy(cache)
    assert answer.acceptance_length.max() > 4
    for b, count in enumerate(answer.acceptance_length):
        sources = answer.source_slots[b, :count]
        targets = lengths[b] + np.arange(count)
        pages = case["block_table"][b]
        read = after[:, pages[targets // 16], targets % 16]
        assert np.array_equal(read, case["kv_cache"][:, pages[sources // 16], sources % 16])


def test_one_layer_needs_no_layer_axis(place):
    case = random_case(np.random.default_rng(8), layers=1, batch=3, horizon=7, nodes=30, page_size=16, width=8)
    expected, _ = check(place, case)
    cache = place(case["kv_cache"][0].copy())
    kdbench.kv_compact(cache, *(place(case[name]) for name in ("block_table", "seq_lens", "accepted_path")))
    assert np.array_equal(to_numpy(cache), expected[0])


@pytest.mark.parametrize("dtype", ["uint8", "int8", "float16", "float32"])
def test_rows_of_other_dtypes_are_bytes_as_well(place, dtype):
    case = random_case(np.random.default_rng(9), layers=2, batch=3, horizon=7, nodes=30, page_size=4, width=656)
    expected, _ = check(place, case)
    cache = place(case["kv_cache"].copy().view(dtype))
    kdbench.kv_compact(cache, *(place(case[name]) for name in ("block_table", "seq_lens", "accepted_path")))
    assert to_numpy(cache).tobytes() == expected.tobytes()


class TestMalformed:
    @staticmethod
    def case() -> dict[str, np.ndarray]:
        case = random_case(np.random.default_rng(10), layers=2, batch=4, horizon=6, nodes=30, page_size=4, width=8)
        case["seq_lens"][:] = [5, 3, 0, 7]
        case["accepted_path"][:] = [0, 2, 5, 9, 20, -1, -1]
        return case

    def refused(self, place, case: dict[str, np.ndarray], status: RequestStatus) -> None:
        """Request 1 is refused, and nothing but the other requests' rows moves."""
        cache, found = check(place, case)
        assert found.tolist() == [0, status, 0, 0]
        own = case["block_table"][1]
        own = own[(own >= 0) & (own < cache.shape[1])]
        assert np.array_equal(cache[:, own], case["kv_cache"][:, own])
        for b in (0, 2, 3):
            assert not np.array_equal(cache[:, case["block_table"][b]], case["kv_cache"][:, case["block_table"][b]]), (
                "a bad neighbour stopped a move"
            )

    @pytest.mark.parametrize(
        "path",
        [
            [1, 2, 3, 4, 5, 6, 7],
            [0, 3, 3, -1, -1, -1, -1],
            [0, 5, 4, -1, -1, -1, -1],
            [0, 5, -1, 6, -1, -1, -1],
            [-1, 0, -1, -1, -1, -1, -1],
            [0, 5, -2, -1, -1, -1, -1],
            [INT_MIN, -1, -1, -1, -1, -1, -1],
            [0, 5, 0, 0, 0, 0, 0],
            [0, 2, 3, 4, 5, 6, INT_MIN],
        ],
    )
    def test_a_path_that_is_none(self, place, path):
        case = self.case()
        case["accepted_path"][1] = path
        self.refused(place, case, RequestStatus.BAD_TREE)

    @pytest.mark.parametrize("length", [-1, INT_MIN, INT_MAX, 12])
    def test_a_length_outside_the_table(self, place, length):
        case = self.case()
        case["block_table"] = case["block_table"][:, :8].copy()  # 32 slots: 12 + 20 is one too many
        case["seq_lens"][1] = length
        self.refused(place, case, RequestStatus.BAD_LENGTH)

    def test_a_node_far_away(self, place):
        case = self.case()
        case["accepted_path"][1, 4] = INT_MAX
        self.refused(place, case, RequestStatus.BAD_LENGTH)

    @pytest.mark.parametrize("page", [-1, INT_MIN, INT_MAX, 10_000])
    @pytest.mark.parametrize("slot", [4, 7, 12, 23])
    def test_a_page_that_is_not_there(self, place, page, slot):
        # Slot 4 is a target only, 5 to 7 are read or written, 12 and 23 are sources only.
        case = self.case()
        case["block_table"][1, slot // 4] = page
        self.refused(place, case, RequestStatus.BAD_PAGE)

    def test_pages_that_no_move_needs_are_not_looked_at(self, place):
        case = self.case()
        case["block_table"][1, [0, 4, 6]] = [-1, INT_MAX, -7]
        _, status = check(place, case)
        assert not status.any()

    def test_a_path_that_moves_nothing_is_sound_whatever_the_length(self, place):
        case = self.case()
        case["accepted_path"][1] = -1
        case["accepted_path"][2] = range(7)
        case["seq_lens"][1:3] = [-5, INT_MAX]
        case["block_table"][1:3] = -1
        cache, status = check(place, case)
        assert not status.any()
        others = np.setdiff1d(np.arange(cache.shape[1]), case["block_table"][[0, 3]])
        assert np.array_equal(cache[:, others], case["kv_cache"][:, others])

    def test_a_page_twice_in_a_table_is_still_read_before_it_is_written(self, place):
        case = self.case()
        case["block_table"][1, :8] = case["block_table"][1, 0]
        check(place, case)

    def test_any_paths_lengths_and_pages(self, place):
        statuses: set[int] = set()

        @property_test
        @given(seed=st.integers(0, 2**32 - 1), damage=st.sampled_from([0.02, 0.3]))
        def fuzz(seed, damage):
            rng = np.random.default_rng(seed)
            case = random_case(rng, layers=2, batch=6, horizon=5, nodes=20, page_size=3, width=8)
            for name, values in (
                ("accepted_path", [INT_MIN, -2, -1, 0, 1, 5, 200, INT_MAX]),
                ("seq_lens", [INT_MIN, -1, 0, 60, INT_MAX]),
                ("block_table", [INT_MIN, -1, case["kv_cache"].shape[1], INT_MAX]),
            ):
                hit = rng.random(case[name].shape) < damage
                case[name][hit] = rng.choice(values, int(hit.sum()))
            _, status = check(place, case)
            statuses.update(status.tolist())

        fuzz()
        kinds = RequestStatus.BAD_TREE, RequestStatus.BAD_LENGTH, RequestStatus.BAD_PAGE
        assert statuses == {0, *(int(kind) for kind in kinds)}


def test_calls_in_a_row_see_what_the_ones_before_wrote(place):
    # Every call moves what the last one left: a launch that read too early would show.
    case = random_case(np.random.default_rng(13), layers=4, batch=8, horizon=7, nodes=80, page_size=16, width=576)
    case["accepted_path"][:] = [0, 1, 3, 4, 6, 9, 11, 60]
    expected = case["kv_cache"].copy()
    call = kernels.prepare_kv_compact(**{name: place(array.copy()) for name, array in case.items()})
    for _ in range(30):
        call.launch()
        reference.kv_compact(expected, case["block_table"], case["seq_lens"], case["accepted_path"])
    assert not np.array_equal(expected, case["kv_cache"])
    np.testing.assert_array_equal(to_numpy(call.in_place["kv_cache"]), expected)


def test_empty_batches_and_no_layers(place):
    case = random_case(np.random.default_rng(11), layers=2, batch=2, horizon=3, nodes=9, page_size=4, width=8)
    nobody = case | {name: case[name][:0] for name in ("block_table", "seq_lens", "accepted_path")}
    assert check(place, nobody)[1].shape == (0,)
    case["accepted_path"][1] = [3, 2, 1, 0]
    status = kdbench.kv_compact(
        place(case["kv_cache"][:0]), *(place(case[name]) for name in ("block_table", "seq_lens", "accepted_path"))
    )
    assert to_numpy(status).tolist() == [0, RequestStatus.BAD_TREE]


ARGUMENT_ERRORS = {
    "dtype": ({"kv_cache": np.zeros((2, 4, 8))}, r"^kv_cache has dtype float64, and bfloat16 or uint16 or "),
    "axes": ({"kv_cache": np.zeros((4, 8), np.uint16)}, r"^kv_cache has shape \[4, 8\], and \[num_layers, "),
    "row": (
        {"kv_cache": np.zeros((2, 4, 12), np.uint16)},
        r"^a row of kv_cache has 24 bytes, and a multiple of 16 is expected$",
    ),
    "no row": ({"kv_cache": np.zeros((2, 4, 0), np.uint16)}, r"^a row of kv_cache has 0 bytes"),
    "no pages": ({"kv_cache": np.zeros((0, 4, 8), np.uint16)}, r"^num_pages is 0, outside 1 to"),
    "order": (
        {"kv_cache": np.zeros((4, 2, 8), np.uint16).transpose(1, 0, 2)},
        r"^kv_cache is not contiguous in row-major order",
    ),
    "table": ({"block_table": np.zeros((1, 2), np.int64)}, r"^block_table has dtype int64, and int32 is expected$"),
    "no table": ({"block_table": np.zeros((1, 0), np.int32)}, r"^max_pages_per_seq is 0, outside 1 to"),
    "batch": ({"seq_lens": np.zeros(2, np.int32)}, r"^seq_lens has shape \[2\], and \[B\] is expected with B = 1"),
    "horizon": ({"accepted_path": np.zeros((1, 33), np.int32)}, r"^draft_horizon D is 32, outside 0 to 31$"),
    "no path": ({"accepted_path": np.zeros((1, 0), np.int32)}, r"^draft_horizon D is -1, outside 0 to 31$"),
    "status": ({"status": np.zeros(3, np.int32)}, r"^status has shape \[3\], and \[1\] is expected$"),
}


@pytest.mark.parametrize("name", ARGUMENT_ERRORS)
def test_argument_errors(cpu_library, name):
    change, sentence = ARGUMENT_ERRORS[name]
    arguments = {
        "kv_cache": np.zeros((2, 4, 8), np.uint16),
        "block_table": np.zeros((1, 2), np.int32),
        "seq_lens": np.zeros(1, np.int32),
        "accepted_path": np.zeros((1, 4), np.int32),
    } | change
    with pytest.raises(InvalidArgument, match=sentence) as caught:
        kdbench.kv_compact(**arguments)
    assert "\n" not in str(caught.value)


def test_a_cache_that_cannot_be_written_or_is_not_aligned(cpu_library):
    memory = np.zeros(2 * 4 * 8 + 16, np.uint16)
    start = -memory.ctypes.data % 16 // 2
    aligned = memory[start : start + 64].reshape(2, 4, 8)
    rest = np.zeros((1, 2), np.int32), np.zeros(1, np.int32), np.array([[0, 2]], np.int32)
    assert kdbench.kv_compact(aligned, *rest).tolist() == [0]
    with pytest.raises(KernelError, match=r"kv_cache is at address .*, wanted one that is a multiple of 16 bytes"):
        kdbench.kv_compact(memory[start + 4 : start + 68].reshape(2, 4, 8), *rest)
    aligned.flags.writeable = False
    with pytest.raises(InvalidArgument, match=r"^kv_cache is read-only, and the call writes to it$"):
        kdbench.kv_compact(aligned, *rest)


def test_a_prepared_call_names_what_it_changes(place):
    case = random_case(np.random.default_rng(12), layers=1, batch=2, horizon=3, nodes=9, page_size=4, width=8)
    placed = {name: place(array) for name, array in case.items()}
    call = kernels.prepare_kv_compact(**placed)
    assert list(call.in_place) == ["kv_cache"]
    assert call.in_place["kv_cache"] is placed["kv_cache"]
    assert list(call.outputs) == ["status"]
