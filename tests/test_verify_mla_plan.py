# SPDX-License-Identifier: Apache-2.0
"""The model that chooses verify_mla's mode: what it counts, where it turns, and that it needs no GPU."""

from __future__ import annotations

import ctypes

import pytest

import kdbench
from kdbench import native
from kdbench.errors import BackendUnavailable, InvalidArgument, KernelError


def plan(nodes: int, slots: int, heads: int = 16, batch: int = 1, **options):
    """A plan for pages of one slot."""
    return kdbench.verify_mla_plan(
        batch=batch, max_nodes=nodes, num_qo_heads=heads, page_size=1, max_pages_per_seq=slots, **options
    )


def test_flops_are_those_of_the_two_ways(cpu_library):
    got = plan(100, 3000, heads=8, batch=2)
    assert got.absorb.flops == 2 * 8 * 100 * (3000 * 2 * (576 + 512) + 2 * 2 * 128 * 512)
    assert got.mha.flops == 2 * 8 * 3000 * (100 * 2 * (192 + 128) + 2 * 512 * 256)


def test_flops_break_even_at_171_nodes_over_a_long_prefix(cpu_library):
    for nodes in (1, 64, 170):
        got = plan(nodes, 10**6)
        assert got.absorb.flops < got.mha.flops
    for nodes in (171, 256, 1025):
        got = plan(nodes, 10**6)
        assert got.mha.flops < got.absorb.flops
    # Over nothing but its own slots a tree pays for both projections either way, and attention is cheaper with heads.
    alone = plan(64, 64)
    assert alone.mha.flops < alone.absorb.flops


def test_bytes_grow_with_every_size(cpu_library):
    one = plan(100, 3000, heads=8)
    for more in (plan(200, 3000, heads=8), plan(100, 6000, heads=8), plan(100, 3000, heads=16)):
        assert more.absorb.bytes_moved > one.absorb.bytes_moved
        assert more.mha.bytes_moved > one.mha.bytes_moved
    # Keys and values of every head are written and read once: 512 bytes each way.
    assert one.mha.bytes_moved > 3000 * 8 * 2 * 512


@pytest.mark.parametrize("library_of", native.BACKENDS)
def test_the_choice_turns_once_as_trees_grow(library_of):
    try:
        native.load(library_of)
    except BackendUnavailable as error:
        pytest.skip(str(error))
    for slots in (1200, 5000, 50000):
        modes = [plan(nodes, slots, backend=library_of).mode for nodes in range(1, 1026)]
        assert (modes[0], modes[-1]) == ("absorb", "mha")
        turn = modes.index("mha")
        assert modes == ["absorb"] * turn + ["mha"] * (1025 - turn)
        seconds = [getattr(plan(turn + 1, slots, backend=library_of), mode).seconds for mode in ("mha", "absorb")]
        assert 0 < seconds[0] < seconds[1]


def test_a_given_mode_is_the_plan_s(cpu_library):
    for mode in ("absorb", "mha"):
        assert plan(64, 1000, mode=mode).mode == mode
    assert plan(64, 1000, mode="mha").absorb == plan(64, 1000).absorb


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"max_nodes": 0}, "^max_nodes is 0, outside 1 to 1025$"),
        ({"num_qo_heads": 129}, "^num_qo_heads is 129, outside 1 to 128$"),
        ({"page_size": 0}, "^page_size is 0, outside 1 to"),
        ({"max_pages_per_seq": 2**31}, "^max_pages_per_seq is 2147483648, outside 1 to"),
        ({"batch": -1}, "^batch is -1, outside 0 to"),
        ({"mode": "mqa"}, "^mode is 'mqa', and 'auto', 'absorb' or 'mha' is expected$"),
        ({"mode": 1}, "^mode is 1, and 'auto'"),
    ],
)
def test_wrong_sizes_are_one_sentence(cpu_library, change, sentence):
    sizes = {"batch": 1, "max_nodes": 8, "num_qo_heads": 4, "page_size": 16, "max_pages_per_seq": 4}
    with pytest.raises(InvalidArgument, match=sentence):
        kdbench.verify_mla_plan(**(sizes | change))


def test_an_answer_of_another_version(cpu_library):
    sizes = {"batch": 1, "max_nodes": 8, "num_qo_heads": 4, "num_pages": 1, "page_size": 1, "max_pages_per_seq": 9}
    sizes |= {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "kv_lora_rank": 512, "v_head_dim": 128}
    params = native.VerifyMlaParams(**sizes, softmax_scale=1.0)
    assert cpu_library.verify_mla_costs(params).mode == native.MlaMode.ABSORB
    function = cpu_library._dll["kdt_verify_mla_cost"]

    class Newer(ctypes.Structure):
        _fields_ = [("known", native.VerifyMlaCosts), ("later", ctypes.c_double), ("behind", ctypes.c_double)]

    answer = Newer(later=7.0, behind=7.0)
    answer.known.struct_size = ctypes.sizeof(Newer) - 8
    assert function(ctypes.byref(params), ctypes.byref(answer)) == 0
    assert (answer.later, answer.behind) == (0.0, 7.0)
    assert answer.known.mha_flops > 0
    for size in (0, 8, 5000):
        answer.known.struct_size = size
        with pytest.raises(KernelError, match=f"struct_size is {size}, wanted sizeof"):
            cpu_library.check("kdt_verify_mla_cost", function(ctypes.byref(params), ctypes.byref(answer)))
    with pytest.raises(KernelError, match="costs is NULL"):
        cpu_library.check("kdt_verify_mla_cost", function(ctypes.byref(params), None))


def test_a_structure_is_laid_out_as_the_header_says():
    fields = [name for name, *_ in native.VerifyMlaCosts._fields_]
    assert fields[:2] == ["struct_size", "mode"]
    assert ctypes.sizeof(native.VerifyMlaCosts) == 8 + 6 * 8
