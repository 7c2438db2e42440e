# SPDX-License-Identifier: Apache-2.0
"""Inputs are valid, hard enough to mean something, and the same bytes for ever."""

from __future__ import annotations

import numpy as np
import pytest

from kdbench import golden, workloads
from kdbench import workload_inputs as make
from kdbench.tree import DraftTree

# Small enough to be made in a moment; the slow test below does the others.
SMALL = [workload.name for workload in workloads.every() if "cpu" in workload.backends]
LARGE = [workload.name for workload in workloads.every() if workload.name not in SMALL]


@pytest.mark.parametrize("name", SMALL)
def test_inputs_are_pinned(name: str) -> None:
    workload = workloads.get(name)
    assert golden.digest(workload.inputs()) == workload.golden_entry["inputs"]


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_large_inputs_are_pinned(name: str) -> None:
    workload = workloads.get(name)
    assert golden.digest(workload.inputs()) == workload.golden_entry["inputs"]


def test_raw_bits_stay_what_they_are() -> None:
    # Everything rests on these: a NumPy that changed them would change every workload.
    assert make.Bits(42).words(2).tolist() == [14276969152011380360, 8095878257575067585]


@pytest.mark.parametrize("form", ["sharp", "flat", "tied"])
def test_log_probs_are_tops_of_a_log_softmax(form: str) -> None:
    arrays = make.draft_log_probs(7, batch=3, horizon=5, topk=64, form=form)
    log_probs, ids = arrays["topk_log_probs"], arrays["topk_token_ids"]
    assert log_probs.dtype == np.float32
    assert np.all(log_probs[..., 1:] <= log_probs[..., :-1])
    assert np.all(log_probs <= 0)
    assert np.all(np.exp(log_probs.astype(np.float64)).sum(-1) < 1)
    assert all(len(set(row)) == 64 for row in ids.reshape(-1, 64).tolist())
    assert ids.min() >= 0
    assert ids.max() < make.VOCAB_SIZE
    # On the grid on which sums of scores are exact.
    assert np.array_equal(np.rint(log_probs.astype(np.float64) * 2**40), log_probs.astype(np.float64) * 2**40)


def test_forms_differ_as_they_say() -> None:
    rows = {
        form: make.draft_log_probs(9, batch=1, horizon=7, topk=64, form=form)["topk_log_probs"]
        for form in ("sharp", "flat", "tied")
    }
    mass = {form: float(np.exp(row[0, 0, 0])) for form, row in rows.items()}
    assert mass["sharp"] > 0.3 > 0.01 > mass["flat"]
    repeats = {form: int((row[..., 1:] == row[..., :-1]).sum()) for form, row in rows.items()}
    assert repeats["tied"] > 50 > 5 > repeats["sharp"]


@pytest.mark.parametrize("form", ["bushy", "chain"])
@pytest.mark.parametrize("accepted", ["full", "half", "none"])
def test_trees_to_accept_are_valid(form: str, accepted: str) -> None:
    nodes, horizon = (16, 15) if form == "chain" else (65, 7)
    arrays = make.tree_to_accept(5, batch=4, nodes=nodes, horizon=horizon, form=form, accepted=accepted)
    tree = DraftTree.from_parents(
        arrays["token_ids"], arrays["parents"], arrays["num_nodes"], np.zeros(4, np.int32), horizon
    )
    tree.validate()
    assert int(tree.depths.max()) == horizon  # a deep path is there to be followed
    assert arrays["num_nodes"][0] == nodes
    if form == "bushy":
        assert len(set(arrays["num_nodes"].tolist())) > 1  # equal sizes would hide a mix-up of requests
        assert np.bincount(arrays["parents"][0, 1:]).max() > 3
    from kdbench import reference

    lengths = reference.tree_accept(tree, arrays["target_tokens"]).acceptance_length
    deepest = tree.depths.max(axis=1)
    assert lengths.tolist() == [{"full": d, "half": d // 2, "none": 0}[accepted] + 1 for d in deepest.tolist()]


def test_attention_inputs_are_ragged_scattered_and_tame() -> None:
    arrays = make.attention(12, batch=3, nodes=16, heads=8, prefix=100, page_size=1, horizon=7)
    assert arrays["seq_lens"][0] == 100
    assert len(set(arrays["seq_lens"].tolist())) == 3
    table = arrays["block_table"]
    assert sorted(table.ravel().tolist()) == list(range(table.size))
    assert np.any(np.diff(table[0]) < 0)
    cache = (arrays["kv_cache"].astype(np.uint32) << 16).view(np.float32)
    query = (arrays["q_nope"].astype(np.uint32) << 16).view(np.float32)
    assert np.abs(cache).min() >= 0.5
    assert np.abs(cache).max() < 2
    assert np.abs(query).min() >= 0.125
    assert np.abs(query).max() < 0.5
    assert abs(float(cache.mean())) < 0.01  # signs are random


def test_even_attention_is_whole_in_every_request() -> None:
    shape = {"batch": 3, "nodes": 16, "heads": 8, "prefix": 100, "page_size": 64, "horizon": 7}
    arrays = make.attention(12, **shape, even=True)
    assert arrays["seq_lens"].tolist() == [100] * 3
    assert arrays["num_nodes"].tolist() == [16] * 3
    assert (
        make.attention_sizes(12, batch=3, nodes=16, prefix=100, horizon=7, even=True)["num_nodes"].tolist() == [16] * 3
    )
    hashed = make.attention(12, **shape, even=True, hashed=True)
    assert {name: (a.shape, a.dtype) for name, a in hashed.items()} == {
        name: (a.shape, a.dtype) for name, a in arrays.items()
    }
    assert {name for name in arrays if not np.array_equal(arrays[name], hashed[name])} == {
        "q_nope",
        "q_pe",
        "kv_cache",
    }
    for name, least, most in (("kv_cache", 0.5, 2), ("q_nope", 0.125, 0.5), ("q_pe", 0.125, 0.5)):
        size = np.abs((hashed[name].astype(np.uint32) << 16).view(np.float32))
        assert least <= size.min() < size.max() < most


def test_a_batch_of_single_nodes_has_a_root_each() -> None:
    sizes = make.attention_sizes(5, batch=4, nodes=1, prefix=10, horizon=7, even=True)
    assert sizes["tree_mask"].tolist() == [[[1]]] * 4


def test_tree_mask_is_the_ancestor_closure() -> None:
    bits = make.Bits(3)
    parents, depths, num_nodes = make.random_tree(bits, batch=2, nodes=70, horizon=7, form="bushy")
    mask = make.tree_mask(parents, num_nodes)
    popcount = np.unpackbits(mask.view(np.uint8), axis=2).sum(axis=2)
    real = np.arange(70) < num_nodes[:, None]
    assert np.array_equal(popcount[real], depths[real] + 1)
    assert not popcount[~real].any()


@pytest.mark.parametrize("hashed", [False, True])
def test_accepted_rows_move_and_stay_where_they_are_read(hashed: bool) -> None:
    shape = {"layers": 2, "batch": 4, "horizon": 7, "nodes": 33, "prefix": 20, "page_size": 4}
    arrays = make.accepted_rows(21, **shape, hashed=hashed)
    cache, table, path = arrays["kv_cache"], arrays["block_table"], arrays["accepted_path"]
    assert (cache.shape, cache.dtype, table.dtype) == ((2, 4 * 14, 4, 576), np.uint16, np.int32)
    assert sorted(table.ravel().tolist()) == list(range(table.size))
    assert len(set(arrays["seq_lens"].tolist())) > 1
    for row in path.tolist():
        nodes = [node for node in row if node >= 0]
        assert row == [*nodes, *[-1] * (8 - len(nodes))]
        assert nodes == sorted({*nodes})
        # No node but the root stands where one is moved to.
        assert nodes[0] == 0
        assert 7 < nodes[1] <= nodes[-1] < 33
    from kdbench import reference

    once = cache.copy()
    assert not reference.kv_compact(once, table, arrays["seq_lens"], path).any()
    twice = once.copy()
    reference.kv_compact(twice, table, arrays["seq_lens"], path)
    assert np.array_equal(once, twice)
    assert not np.array_equal(once, cache)
