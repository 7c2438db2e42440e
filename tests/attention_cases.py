# SPDX-License-Identifier: Apache-2.0
"""verify_attn requests over a paged cache in which every slot that nobody may see holds NaN."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kdbench import reference
from kdbench.arrays import bf16_to_f32, f32_to_bf16, to_numpy

RANK, ROPE = 512, 64
NAN_BF16 = np.uint16(0x7FC1)
SCALE = 0.1352337788


@dataclass(frozen=True, eq=False)
class AttentionCase:
    """The arguments of verify_attn as NumPy arrays, and what float64 makes of them."""

    q_nope: np.ndarray
    q_pe: np.ndarray
    kv_cache: np.ndarray
    block_table: np.ndarray
    seq_lens: np.ndarray
    tree_mask: np.ndarray
    num_nodes: np.ndarray | None

    def arguments(self, place) -> tuple:
        """Positional arguments, arrays through ``place``."""
        arrays = (self.q_nope, self.q_pe, self.kv_cache, self.block_table, self.seq_lens, self.tree_mask)
        return (*map(place, arrays), None if self.num_nodes is None else place(self.num_nodes), SCALE)

    def expected(self, *, tail_only: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """The float64 oracle."""
        return reference.verify_attn(*self.arguments(lambda array: array), tail_only=tail_only)


def tree_masks(rng: np.random.Generator, counts: list[int], nodes: int, kind: str) -> np.ndarray:
    """Mask words u64[B, N, W]: "chain", "tree" (ancestor closure of random parents) or "arbitrary" bits."""
    bits = np.zeros((len(counts), nodes, -(-nodes // 64) * 64), bool)
    for b, count in enumerate(counts):
        for i in range(count):
            if kind == "chain":
                bits[b, i, : i + 1] = True
            elif kind == "tree":
                if i:
                    bits[b, i] = bits[b, rng.integers(max(0, i - 6), i)]
                bits[b, i, i] = True
            else:
                # Any columns of real nodes, and now and then none at all; the last column is never seen.
                bits[b, i, : max(1, count - 1)] = rng.random(max(1, count - 1)) < rng.choice([0, 0.1, 0.9])
    return np.packbits(bits, axis=-1, bitorder="little").view(np.uint64)


def attention_case(
    rng: np.random.Generator,
    *,
    seq_lens: list[int],
    counts: list[int],
    nodes: int,
    heads: int,
    page_size: int,
    kind: str,
    spare_pages: int = 2,
    scattered: bool = True,
) -> AttentionCase:
    """Random queries and latents; pages in random order or one behind the other, block tables longer than needed and
    padded with page -1."""
    batch = len(seq_lens)
    needed = [-(-(prefix + count) // page_size) for prefix, count in zip(seq_lens, counts, strict=True)]
    num_pages = sum(needed) + spare_pages
    order = rng.permutation(num_pages) if scattered else np.arange(num_pages)
    table = np.full((batch, max(max(needed), 1) + 1), -1, np.int32)
    mask = tree_masks(rng, counts, nodes, kind)
    cache = np.full((num_pages, page_size, RANK + ROPE), NAN_BF16)
    taken = 0
    for b, (prefix, count) in enumerate(zip(seq_lens, counts, strict=True)):
        table[b, : needed[b]] = order[taken : taken + needed[b]]
        taken += needed[b]
        seen = np.unpackbits(np.bitwise_or.reduce(mask[b], axis=0).view(np.uint8), bitorder="little")[:count]
        visible = np.array([*range(prefix), *(prefix + np.flatnonzero(seen))], int)
        cache[table[b, visible // page_size], visible % page_size] = f32_to_bf16(
            rng.standard_normal((len(visible), RANK + ROPE))
        )
    return AttentionCase(
        q_nope=f32_to_bf16(rng.standard_normal((batch, nodes, heads, RANK))),
        q_pe=f32_to_bf16(rng.standard_normal((batch, nodes, heads, ROPE))),
        kv_cache=cache,
        block_table=table,
        seq_lens=np.array(seq_lens, np.int32),
        tree_mask=mask,
        num_nodes=np.array(counts, np.int32),
    )


def assert_close(out, lse, expected: tuple[np.ndarray, np.ndarray]) -> None:
    """Each request within 3e-3 of float64 in the Frobenius norm, lse within 1e-3; pads exactly 0 and -inf."""
    want_out, want_lse = expected
    have_out, have_lse = to_numpy(out), to_numpy(lse)
    values = bf16_to_f32(have_out).astype(np.float64)
    pads = np.isneginf(want_lse)
    assert np.array_equal(np.isneginf(have_lse), pads)
    assert not have_out.view(np.uint16)[pads].any(), "a pad's output is not zero"
    assert np.isfinite(values).all()
    np.testing.assert_allclose(have_lse[~pads], want_lse[~pads], atol=1e-3, rtol=0)
    for b in range(len(values)):
        norm = np.linalg.norm(want_out[b])
        if norm:
            assert np.linalg.norm(values[b] - want_out[b]) / norm <= 3e-3
