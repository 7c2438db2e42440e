# SPDX-License-Identifier: Apache-2.0
"""The sequential rule: its error rates on made-up processes, its intervals, and when it refuses to answer."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kdbench.analysis import paired
from kdbench.analysis.paired import Series, judge
from kdbench.analysis.paired_blocks import process_value
from kdbench.paired.plan import order


def normal(sd, change=0.0):
    return lambda random, shape: random.normal(math.log1p(change), sd, shape)


def modes(size, sd=0.003):
    def draw(random, shape):
        each = size * (random.integers(0, 2, shape) - random.integers(0, 2, shape))
        return each + random.normal(0, sd, shape)

    return draw


def student(scale, change=0.0):
    return lambda random, shape: math.log1p(change) + scale * random.standard_t(3, shape)


@pytest.mark.parametrize(("draw", "allowed"), [(normal(0.005), 0.001), (normal(0.01), 0.002), (student(0.01), 0.002)])
def test_the_same_library_is_hardly_ever_called_different(draw, allowed) -> None:
    found = paired.simulate(draw, 3000)
    assert found["SLOWER"] + found["FASTER"] <= allowed
    assert found["SAME"] >= 0.97
    assert found["covered"] >= 0.98


@pytest.mark.parametrize("draw", [normal(0.005, 0.03), normal(0.01, 0.03), normal(0.015, 0.03)])
def test_three_per_cent_are_found(draw) -> None:
    assert paired.simulate(draw, 1500)["SLOWER"] >= 0.995


def test_one_per_cent_is_found_where_it_counts() -> None:
    assert paired.simulate(normal(0.0025, 0.01), 1500, min_effect=0.005)["SLOWER"] >= 0.95


@pytest.mark.parametrize("size", [0.04, 0.12])
def test_two_modes_a_build_are_no_verdict(size) -> None:
    found = paired.simulate(modes(size), 1500)
    assert found["SLOWER"] + found["FASTER"] <= 0.001
    assert found["AMBIGUOUS"] >= 0.99  # the rest are eight processes in one mode


def test_intervals_are_order_statistics() -> None:
    values = [0.001 * k for k in range(8)]
    found = judge(Series(values), 0.02)
    assert (found.low, found.high) == (1.0, pytest.approx(math.exp(0.007)))
    assert found.confidence == pytest.approx(1 - 2 / 2**8)
    assert found.verdict == "SAME"


def test_no_verdict_between_looks_nor_of_few_processes() -> None:
    for count in (0, 1, 7, 9):
        found = judge(Series([0.1] * count), 0.02)
        assert (found.verdict, found.settled) == ("AMBIGUOUS", False)


def test_a_change_is_reported_with_its_interval_whatever_the_verdict() -> None:
    found = judge(Series(np.linspace(0.005, 0.012, 8).tolist()), 0.02)
    assert found.verdict == "SAME"
    assert found.low > 1.0
    assert found.ratio == pytest.approx(math.exp(0.0085))


def test_a_clock_that_moved_with_head_is_ambiguous_and_names_the_verdict_in_cycles() -> None:
    slower = [0.03 + 0.0001 * k for k in range(8)]
    steady = [0.0001 * k for k in range(8)]
    found = judge(Series(slower, cycles=steady), 0.02)
    assert found.verdict == "AMBIGUOUS"
    assert "SAME in cycles" in found.reasons[0]
    assert judge(Series(slower, cycles=steady, by_clock=False), 0.02).verdict == "SLOWER"
    assert judge(Series(slower, cycles=slower), 0.02).verdict == "SLOWER"
    assert "clock moved" in judge(Series(slower, clock=[-x for x in slower]), 0.02).reasons[0]


def test_disturbed_processes_are_ambiguous_when_they_are_many() -> None:
    slower = [0.03 + 0.0001 * k for k in range(8)]
    assert judge(Series(slower, marks=["hot"] * 2 + [""] * 6), 0.02).verdict == "AMBIGUOUS"
    assert judge(Series(slower, marks=["hot"] + [""] * 7), 0.02).verdict == "SLOWER"


def test_drift_that_is_not_linear_is_ambiguous() -> None:
    slower = [0.03 + 0.0001 * k for k in range(8)]
    assert judge(Series(slower, curvature=[0.05] * 8), 0.02).verdict == "AMBIGUOUS"


def test_linear_drift_cancels_in_a_block() -> None:
    blocks, first, at = [], [], 0
    for block in range(8):
        sides = order(block, 0)
        first.append(sides[0])
        letters = []
        for side in sides:
            letters.append((math.exp(0.01 * at + (0.02 if side else 0.0)), math.exp(-0.02 if side else 0.0)))
            at += 1
        blocks.append(letters)
    found = process_value(blocks, first)
    assert found.time == pytest.approx(0.02)
    assert found.cycles == pytest.approx(0.0)
    assert found.curvature == pytest.approx(0.0)


def test_orders_take_turns_and_processes_begin_differently() -> None:
    assert order(0, 0) == order(1, 1) == (0, 1, 1, 0)
    assert order(1, 0) == order(0, 1) == (1, 0, 0, 1)
