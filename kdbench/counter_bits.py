# SPDX-License-Identifier: Apache-2.0
"""Random words that are a function of their place: the same bytes from NumPy on a host and from CuPy on a device.

A stream cipher of the CPU cannot fill gigabytes in the time that a GPU kernel takes to read them. Here word ``i`` is
SplitMix64's output number ``i`` (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014),
which is pure 64-bit integer arithmetic of a counter: any part can be made anywhere, and nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_MASK = (1 << 64) - 1
# Words at once: on a host what stays in a core's cache, on a device few and large kernels.
_HOST_CHUNK = 1 << 16
_DEVICE_CHUNK = 1 << 24


def words(seed: int, first: int, count: int, xp: Any = np) -> Any:
    """u64[count] of stream ``seed``, from place ``first`` on; ``xp`` is numpy or cupy and owns the result."""
    state = xp.arange(first + 1, first + count + 1, dtype=np.uint64)
    state *= np.uint64(_GAMMA)
    # Neighbouring seeds must not give one stream with another beginning, so the seed is mixed before it is added.
    state += np.uint64(_mixed(seed * _GAMMA & _MASK))
    state ^= state >> np.uint64(30)
    state *= np.uint64(_MIX_1)
    state ^= state >> np.uint64(27)
    state *= np.uint64(_MIX_2)
    state ^= state >> np.uint64(31)
    return state


def bf16_words(seed: int, exponent: int, shape: tuple[int, ...], xp: Any = np) -> Any:
    """u16 words of bf16 values with random sign, mantissa and lowest exponent bit; ``exponent`` has the others."""
    count = int(np.prod(shape, dtype=np.int64))
    out = xp.empty(-(-count // 4), np.uint64)
    keep, fixed = np.uint64(0x80FF80FF80FF80FF), np.uint64(exponent * 0x0001000100010001)
    for start, stop in _chunks(len(out), xp):
        part = words(seed, start, stop - start, xp)
        part &= keep
        part |= fixed
        out[start:stop] = part
    return out.view(np.uint16)[:count].reshape(shape)


def bell_bf16(seed: int, shape: tuple[int, ...], xp: Any = np) -> Any:
    """u16 words of bf16 values from a bell-shaped law of standard deviation 4.6, cut at 16: a drafter's logits.

    Each is four random octets and 13 lower bits of one word, an integer below 2^24 times a power of two, so that
    float32 holds it exactly and cutting it to bf16 gives the same word everywhere.
    """
    count = int(np.prod(shape, dtype=np.int64))
    out = xp.empty(count, np.uint16)
    for start, stop in _chunks(count, xp):
        part = words(seed, start, stop - start, xp)
        total = sum((part >> np.uint64(8 * octet)) & np.uint64(0xFF) for octet in range(4)).astype(np.int32)
        low = ((part >> np.uint64(32)) & np.uint64(0x1FFF)).astype(np.int32)
        values = ((total - np.int32(510)) * np.int32(8192) + low).astype(np.float32) * np.float32(2.0**-18)
        out[start:stop] = (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return out.reshape(shape)


def _mixed(state: int) -> int:
    state = (state ^ (state >> 30)) * _MIX_1 & _MASK
    state = (state ^ (state >> 27)) * _MIX_2 & _MASK
    return state ^ (state >> 31)


def _chunks(count: int, xp: Any) -> Iterator[tuple[int, int]]:
    size = _HOST_CHUNK if xp is np else _DEVICE_CHUNK
    for start in range(0, count, size):
        yield start, min(start + size, count)
