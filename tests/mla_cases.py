# SPDX-License-Identifier: Apache-2.0
"""verify_mla requests: those of verify_attn, with the heads' weights in place of absorbed queries."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from attention_cases import NAN_BF16, SCALE, AttentionCase, attention_case

from kdbench import reference
from kdbench.arrays import bf16_to_f32, f32_to_bf16, to_numpy

NOPE, VALUE, RANK = 128, 128, 512
# Keys, values or absorbed queries are rounded to bf16 on the way, which shifts scores by a few 1e-3.
OUT_ERROR = 6e-3
LSE_ERROR = 1e-2


@dataclass(frozen=True, eq=False)
class MlaCase:
    """The arguments of verify_mla as NumPy arrays, and what float64 makes of them."""

    attention: AttentionCase  # its q_nope is [B, N, H, 128]
    w_uk: np.ndarray
    w_uv: np.ndarray

    def arguments(self, place) -> tuple:
        """Positional arguments, arrays through ``place``."""
        q_nope, q_pe, *others = self.attention.arguments(place)
        return (q_nope, q_pe, place(self.w_uk), place(self.w_uv), *others)

    def expected(self) -> tuple[np.ndarray, np.ndarray]:
        """The float64 oracle."""
        return reference.verify_mla(*self.arguments(lambda array: array))

    def replace(self, **fields: np.ndarray | None) -> MlaCase:
        """The same case with other arrays of ``attention``."""
        return dataclasses.replace(self, attention=dataclasses.replace(self.attention, **fields))


def mla_case(rng: np.random.Generator, *, heads: int, **options) -> MlaCase:
    """Random queries, weights and latents; NaN in every slot that nobody may see and in the queries of pads."""
    case = attention_case(rng, heads=heads, **options)
    # A key's values then have the latents' own size, as after training.
    w_uk = f32_to_bf16(rng.standard_normal((heads, NOPE, RANK)) / np.sqrt(RANK))
    w_uv = f32_to_bf16(rng.standard_normal((heads, RANK, VALUE)) / np.sqrt(RANK))
    q_nope = f32_to_bf16(rng.standard_normal((*case.q_nope.shape[:3], NOPE)))
    pads = np.arange(q_nope.shape[1]) >= case.num_nodes[:, None]
    q_nope[pads] = NAN_BF16
    case.q_pe[pads] = NAN_BF16
    return MlaCase(dataclasses.replace(case, q_nope=q_nope), w_uk, w_uv)


def assert_mla_close(out, lse, expected: tuple[np.ndarray, np.ndarray], bound: float = OUT_ERROR) -> None:
    """Each request within ``bound`` of float64 in the Frobenius norm, lse within 1e-2; pads exactly 0 and -inf."""
    want_out, want_lse = expected
    have_out, have_lse = to_numpy(out), to_numpy(lse)
    values = bf16_to_f32(have_out).astype(np.float64)
    pads = np.isneginf(want_lse)
    assert np.array_equal(np.isneginf(have_lse), pads)
    assert not have_out.view(np.uint16)[pads].any(), "a pad's output is not zero"
    assert np.isfinite(values).all()
    np.testing.assert_allclose(have_lse[~pads], want_lse[~pads], atol=LSE_ERROR, rtol=0)
    for b in range(len(values)):
        norm = np.linalg.norm(want_out[b])
        if norm:
            assert np.linalg.norm(values[b] - want_out[b]) / norm <= bound


__all__ = ["LSE_ERROR", "OUT_ERROR", "SCALE", "MlaCase", "assert_mla_close", "mla_case"]
