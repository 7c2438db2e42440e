# SPDX-License-Identifier: Apache-2.0
"""Keyed draws: pinned bits, the right law, and no dependence on anything but the key."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kdbench.errors import InvalidArgument
from kdbench.models.sampling import draw, gumbel, portable_log

# (seed, position, token): f32 bits. Every implementation has these.
PINNED = {
    (0, 0, 0): 0x3F869F34,
    (0, 0, 163839): 0xBED7C555,
    (1, 17, 1): 0x3F999788,
    (1, 17, 163839): 0x403ECC1E,
    (12345678901234567890, 4095, 1): 0x404240E6,
    (2**64 - 1, 2**31 - 1, 0): 0x40023DED,
    (2**64 - 1, 2**31 - 1, 1023): 0xBE4BED9E,
}


@pytest.mark.parametrize(("key", "bits"), PINNED.items())
def test_bits_are_pinned(key, bits):
    seed, position, token = key
    assert int(gumbel(seed, position, token + 1)[token : token + 1].view(np.uint32)[0]) == bits


def test_the_logarithm_in_plain_python_has_the_same_bits():
    def ln(x: float) -> float:
        mantissa, exponent = math.frexp(x)
        mantissa, exponent = mantissa * 2, exponent - 1
        if mantissa > 1.5:
            mantissa, exponent = mantissa * 0.5, exponent + 1
        s = (mantissa - 1) / (mantissa + 1)
        t, p = s * s, 1 / 15
        for odd in (13, 11, 9, 7, 5, 3, 1):
            p = p * t + 1 / odd
        return exponent * 0.6931471805599453 + (2 * s) * p

    x = np.concatenate([np.random.default_rng(0).random(2000), 2.0 ** np.arange(-53, 6), [1.5, 0.75, 1 - 2.0**-53]])
    assert portable_log(x).tolist() == [ln(value) for value in x.tolist()]
    np.testing.assert_allclose(portable_log(x), np.log(x), rtol=6e-13, atol=1e-300)


def test_noise_is_finite_and_has_gumbels_moments():
    noise = np.concatenate([gumbel(3, position, 4096) for position in range(64)]).astype(np.float64)
    assert np.isfinite(noise).all()
    assert noise.mean() == pytest.approx(0.5772157, abs=4 * math.pi / math.sqrt(6 * len(noise)))
    assert noise.var() == pytest.approx(math.pi**2 / 6, rel=0.02)
    # Extremes of the uniform: the largest and smallest noise that any key can give.
    edge = -portable_log(-portable_log(np.array([2.0**-53, 1 - 2.0**-53])))
    np.testing.assert_allclose(edge, [-3.6038, 36.7368], atol=1e-4)


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.6])
def test_draws_follow_the_softmax(temperature):
    stats = pytest.importorskip("scipy.stats")
    logits = np.array([2.0, 0.0, 1.0, -1.0, 1.5, -3.0], np.float32)
    law = np.exp(logits.astype(np.float64) / temperature)
    law /= law.sum()
    counts = np.zeros(len(logits))
    for position in range(20000):
        counts[draw(logits, temperature, 11, position)] += 1
    assert stats.chisquare(counts, law * counts.sum()).pvalue > 1e-4


def test_neighbouring_positions_and_seeds_are_independent():
    one = gumbel(5, 100, 4096)
    for other in (gumbel(5, 101, 4096), gumbel(6, 100, 4096), np.roll(one, 1)):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.08


def test_a_cut_vocabulary_has_the_same_noise():
    assert np.array_equal(gumbel(9, 4, 1000)[:10], gumbel(9, 4, 10))


@pytest.mark.parametrize("temperature", [0.0, 9e-6])
def test_cold_is_greedy_with_ties_to_the_lowest_id(temperature):
    assert draw(np.array([1, 3, 3, 2], np.float32), temperature, 0, 0) == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_never_wins(temperature):
    assert draw(np.array([np.nan, -1, np.nan], np.float32), temperature, 0, 0) == 1
    assert draw(np.full(3, np.nan, np.float32), temperature, 0, 0) == 0
    assert draw(np.array([-np.inf, -np.inf, 5], np.float32), temperature, 0, 0) == 2


def test_odd_arguments_are_refused():
    row = np.zeros(3, np.float32)
    with pytest.raises(InvalidArgument, match="temperature is -1"):
        draw(row, -1, 0, 0)
    with pytest.raises(InvalidArgument, match="temperature is nan"):
        draw(row, math.nan, 0, 0)
    with pytest.raises(InvalidArgument, match="seed is -1"):
        draw(row, 1, -1, 0)
    with pytest.raises(InvalidArgument, match="position is -2"):
        draw(row, 1, 0, -2)
