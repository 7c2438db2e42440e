# SPDX-License-Identifier: Apache-2.0
"""A tree verified in two parts: any kernel's attention over the prefix, our attention over the tree, and their merge.

Kernels without a tree mask (FlashMLA, FlashInfer, FlashAttention) can serve the prefix, which every node sees whole;
run without a causal mask they leave the tree to ``verify_attn(..., tail_only=True)``. This is cascade attention with
two levels (FlashInfer, arXiv 2501.01005).

A pad has no tree slots, so here it keeps what the prefix's kernel gave it, where ``verify_attn`` gives 0 and -inf:
only num_nodes says which rows to read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdbench import native
from kdbench.arrays import Array, view
from kdbench.call_builder import Call
from kdbench.calls import prepare_merge_attn_states, prepare_verify_attn
from kdbench.errors import InvalidArgument


class TailAndMerge:
    """Two prepared calls that follow a prefix's kernel: the tree's attention, and the merge of both.

    Attributes:
        tail, merge: the calls, in their order.
        outputs: out and lse of the merge, which takes the place of the tail's; status if asked for.
    """

    def __init__(self, tail: Call, merge: Call) -> None:
        self.tail = tail
        self.merge = merge
        self.outputs = {**tail.outputs, **merge.outputs}

    def launch(self) -> None:
        """Both calls; the prefix's result must be there, or be written earlier on the same stream."""
        self.tail.launch()
        self.merge.launch()

    def set_stream(self, pointer: int) -> None:
        """Let later launches go to the cudaStream_t ``pointer`` (0: the default stream)."""
        self.tail.set_stream(pointer)
        self.merge.set_stream(pointer)


def prepare_tail_and_merge(
    prefix_out: Array,
    prefix_lse: Array,
    q_nope: Array,
    q_pe: Array,
    kv_cache: Array,
    block_table: Array,
    seq_lens: Array,
    tree_mask: Array,
    num_nodes: Array | None,
    softmax_scale: float,
    *,
    backend: str | None = None,
    stream: Any = None,
    out: tuple[Array, Array] | None = None,
    status: Array | None = None,
    library: native.Library | None = None,
) -> TailAndMerge:
    """A prepared ``verify_tail_and_merge``, launched as often as one likes; ``library`` overrides the installed one."""
    options: dict[str, Any] = {"backend": backend, "stream": stream, "library": library}
    tail = prepare_verify_attn(
        q_nope,
        q_pe,
        kv_cache,
        block_table,
        seq_lens,
        tree_mask,
        num_nodes,
        softmax_scale,
        out=out,
        status=status,
        tail_only=True,
        **options,
    )
    state = tail.outputs["out"], tail.outputs["lse"]
    for name, given, own in (("out", prefix_out, state[0]), ("lse", prefix_lse, state[1])):
        if view(f"prefix_{name}", given).pointer == view(name, own).pointer:
            raise InvalidArgument(
                f"{name} is prefix_{name}, and an array of its own is expected: the tail's comes first"
            )
    return TailAndMerge(tail, prepare_merge_attn_states(prefix_out, prefix_lse, *state, out=state, **options))


def verify_tail_and_merge(
    prefix_out: Array,
    prefix_lse: Array,
    q_nope: Array,
    q_pe: Array,
    kv_cache: Array,
    block_table: Array,
    seq_lens: Array,
    tree_mask: Array,
    num_nodes: Array | None,
    softmax_scale: float,
    *,
    backend: str | None = None,
    stream: Any = None,
    out: tuple[Array, Array] | None = None,
    status: Array | None = None,
) -> tuple[Array, Array]:
    """``verify_attn``, its prefix already attended by another kernel.

    Args:
        prefix_out: bf16[B, N, H, 512] that kernel's output over slots [0, seq_lens[b]), for every node.
        prefix_lse: f32[B, N, H] its log-sum-exp of the scaled scores, natural log (multiply one of base 2 by ln 2);
            -inf where there is no prefix, and prefix_out may then hold anything.
        q_nope, q_pe, kv_cache, block_table, seq_lens, tree_mask, num_nodes, softmax_scale, backend, stream, status:
            see ``verify_attn``.
        out: (out, lse) to write into; not prefix_out or prefix_lse, which are read after it is written.

    Returns:
        out and lse as ``verify_attn`` gives them for real nodes; pads keep the prefix's.
    """
    calls = prepare_tail_and_merge(
        prefix_out,
        prefix_lse,
        q_nope,
        q_pe,
        kv_cache,
        block_table,
        seq_lens,
        tree_mask,
        num_nodes,
        softmax_scale,
        backend=backend,
        stream=stream,
        out=out,
        status=status,
    )
    calls.launch()
    return calls.outputs["out"], calls.outputs["lse"]


def prefix_as_tree(seq_lens: NDArray[np.int32], nodes: int) -> tuple[NDArray[np.int32], NDArray[np.uint64]]:
    """The prefix alone as a ``verify_attn`` request, so that our own kernel can play the prefix's.

    The last ``nodes`` slots of the prefix stand in for a tree that every row sees whole.

    Args:
        seq_lens: i32[B] of the request, in host memory; the block table must reach ``nodes`` slots.
        nodes: N.

    Returns:
        seq_lens i32[B] and tree_mask u64[B, N, ceil(N/64)] to pass instead, with num_nodes None.
    """
    lengths = np.maximum(0, seq_lens - nodes).astype(np.int32)
    columns = np.arange(-(-nodes // 64) * 64) < (seq_lens - lengths)[:, None]
    words = np.packbits(columns, axis=-1, bitorder="little").view(np.uint64)
    return lengths, np.repeat(words[:, None], nodes, axis=1)
