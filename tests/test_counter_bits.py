# SPDX-License-Identifier: Apache-2.0
"""Words that depend on their place alone: the same from any start, in any chunk, on host and device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kdbench import counter_bits, golden, workloads

MASK = (1 << 64) - 1


def splitmix64(state: int) -> int:
    """The published recurrence, in Python integers."""
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB & MASK
    return state ^ (state >> 31)


def test_words_are_splitmix64() -> None:
    # The first output of the generator for state 0, as its authors' C code gives it.
    assert int(counter_bits.words(0, 0, 1)[0]) == 0xE220A8397B1DCDAF
    gamma = 0x9E3779B97F4A7C15
    start = splitmix64(77 * gamma & MASK)
    wanted = [splitmix64((start + gamma * at) & MASK) for at in range(1, 6)]
    assert counter_bits.words(77, 0, 5).tolist() == wanted


def test_a_part_is_the_same_as_in_the_whole() -> None:
    whole = counter_bits.words(9, 0, 1000)
    np.testing.assert_array_equal(counter_bits.words(9, 300, 500), whole[300:800])


@pytest.mark.parametrize(
    "make", [counter_bits.bell_bf16, lambda seed, shape: counter_bits.bf16_words(seed, 0x3F00, shape)]
)
def test_chunks_do_not_show(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = make(4, (37, 91))
    monkeypatch.setattr(counter_bits, "_HOST_CHUNK", 100)
    np.testing.assert_array_equal(make(4, (37, 91)), whole)


def test_seeds_give_other_words() -> None:
    rows = np.stack([counter_bits.words(seed, 0, 4096) for seed in range(8)])
    assert len(np.unique(rows)) == rows.size
    ones = np.unpackbits(rows.view(np.uint8)).mean()
    assert abs(ones - 0.5) < 5 * 0.5 / np.sqrt(rows.size * 64)


def test_bell_is_what_it_says() -> None:
    words = counter_bits.bell_bf16(3, (200, 1000))
    values = (words.astype(np.uint32) << 16).view(np.float32)
    assert np.abs(values).max() < 16
    assert values.std() == pytest.approx(4.6, rel=0.02)
    assert abs(float(values.mean())) < 0.1


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["h8-n8-p1k-b1-ps64", "h16-n64-p1k-b8-ps64-even"])
def test_a_device_makes_the_same_bytes(name: str) -> None:
    cupy = pytest.importorskip("cupy")
    workload = workloads.get(name)
    arrays = {key: array.get() for key, array in workload.inputs(cupy).items()}
    assert golden.digest(arrays) == workload.golden_entry["inputs"]
    logits = counter_bits.bell_bf16(3, (7, 1000), cupy).get()
    np.testing.assert_array_equal(logits, counter_bits.bell_bf16(3, (7, 1000)))
