# SPDX-License-Identifier: Apache-2.0
"""Keyed Gumbel-max sampling: a draw that depends on (seed, position, token id) and on nothing else, bit for bit.

``argmax(logits / temperature + gumbel)`` over i.i.d. standard Gumbel noise is one draw from
``softmax(logits / temperature)`` (Gumbel 1954; Maddison, Tarlow and Minka, "A* Sampling", NeurIPS 2014). Here the
noise is a function of the request's seed, the absolute position of the token that is drawn and the candidate's id. So
the text does not depend on the draft tree, the batch, the mode or the backend: what a tree emits is what plain decoding
emits.

The definition, which C++ and CUDA follow to the last bit. All integers are u64 and wrap::

    G = 0x9E3779B97F4A7C15                       # SplitMix64, as kdbench.counter_bits
    mix(z):   z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;   z = (z ^ z >> 27) * 0x94D049BB133111EB;   return z ^ z >> 31
    word(s, i) = mix(mix(s * G) + (i + 1) * G)
    r = word(word(seed, position), token)        # the inner word once a position
    u = ((r >> 12) + 0.5) * 2^-52                # f64, exact, 2^-53 <= u <= 1 - 2^-53
    gumbel = f32(-ln(-ln(u)))                    # in [-3.61, 36.74], round to nearest

``ln`` is not libm's, whose last bit differs between machines, but this, in f64, each operation rounded by itself
(no fused multiply-add: ``-ffp-contract=off``, or ``__dmul_rn``/``__dadd_rn``/``__ddiv_rn``)::

    ln(x), x > 0 and normal:
        e = (bits(x) >> 52) - 1023;   m = x with exponent field 1023, so that 1 <= m < 2
        if m > 1.5:  m = m * 0.5,  e = e + 1     # 0.75 < m <= 1.5
        s = (m - 1) / (m + 1);   t = s * s
        p = 1/15;   p = p * t + 1/13;   p = p * t + 1/11;   ...;   p = p * t + 1/3;   p = p * t + 1
        return f64(e) * 0.6931471805599453 + (2 * s) * p         # product, product, sum

``1/15`` and so on are those quotients in f64. Then, per candidate v in ascending order, in f32::

    z[v] = logits[v] / temperature + gumbel[v]   # IEEE division, then one addition
    token = the lowest v whose z[v] is largest; a NaN never wins; if all are NaN or -inf, 0

A temperature below 1e-5 is greedy: z[v] = logits[v]. The token drawn at a tree's node of depth d stands at position
``seq_len + d + 1``; the first token after a prompt of n tokens stands at position n.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kdbench import counter_bits
from kdbench.errors import InvalidArgument

_Array = np.ndarray[Any, Any]

# As the DDTree paper's code: below it, a temperature means greedy.
GREEDY_BELOW = 1e-5
_LN_2 = 0.6931471805599453
_ATANH_TERMS = range(13, 0, -2)


def gumbel(seed: int, position: int, vocab_size: int) -> _Array:
    """f32[vocab_size]: the noise of each token id for the token that stands at ``position`` of the request ``seed``."""
    if not 0 <= seed < 1 << 64:
        raise InvalidArgument(f"seed is {seed}; wanted an integer of 0 to 2^64 - 1")
    if position < 0:
        raise InvalidArgument(f"position is {position}; wanted 0 or more")
    row = int(counter_bits.words(seed, position, 1)[0])
    words = counter_bits.words(row, 0, vocab_size)
    uniform = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return (-portable_log(-portable_log(uniform))).astype(np.float32)


def portable_log(x: _Array) -> _Array:
    """Natural logarithm of positive normal f64, the same bits everywhere (see above); relative error below 6e-13."""
    bits = x.view(np.uint64)
    exponent = (bits >> np.uint64(52)).astype(np.int64) - 1023
    mantissa = (bits & np.uint64((1 << 52) - 1) | np.uint64(1023 << 52)).view(np.float64)
    above = mantissa > 1.5
    mantissa = np.where(above, mantissa * 0.5, mantissa)
    exponent = exponent + above
    s = (mantissa - 1.0) / (mantissa + 1.0)
    t = s * s
    p = np.full_like(t, 1.0 / 15.0)
    for odd in _ATANH_TERMS:
        p = p * t + 1.0 / odd
    return exponent.astype(np.float64) * _LN_2 + (2.0 * s) * p


def draw(logits: _Array, temperature: float, seed: int, position: int) -> int:
    """The token id that f32[V] ``logits`` give at ``position``; greedy below ``GREEDY_BELOW``."""
    if not temperature >= 0:
        raise InvalidArgument(f"temperature is {temperature}; wanted 0 (greedy) or more")
    scores = np.asarray(logits, np.float32)
    if temperature >= GREEDY_BELOW:
        with np.errstate(over="ignore"):
            scores = scores / np.float32(temperature) + gumbel(seed, position, len(scores))
    return int(np.argmax(np.where(np.isnan(scores), np.float32(-np.inf), scores)))
