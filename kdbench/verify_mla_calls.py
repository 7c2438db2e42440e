# SPDX-License-Identifier: Apache-2.0
"""verify_mla: the verify pass's attention with its projections, and which of its two modes is the cheaper one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kdbench import native
from kdbench.arrays import BF16, MASK_WORD, Array
from kdbench.call_builder import Call, CallBuilder, in_range
from kdbench.calls import KV_WIDTH, _pair, _single
from kdbench.errors import InvalidArgument

MODES = tuple(mode.name.lower() for mode in native.MlaMode)


@dataclass(frozen=True)
class MlaModeCost:
    """What one mode costs: floating-point operations, bytes between its steps and memory, and modelled seconds."""

    flops: float
    bytes_moved: float
    seconds: float


@dataclass(frozen=True)
class MlaPlan:
    """The mode that runs ("absorb" or "mha"), and what each mode would cost by the library's model."""

    mode: str
    absorb: MlaModeCost
    mha: MlaModeCost


def verify_mla(
    q_nope: Array,
    q_pe: Array,
    w_uk: Array,
    w_uv: Array,
    kv_cache: Array,
    block_table: Array,
    seq_lens: Array,
    tree_mask: Array,
    num_nodes: Array | None,
    softmax_scale: float,
    *,
    mode: str = "auto",
    backend: str | None = None,
    stream: Any = None,
    out: tuple[Array, Array] | None = None,
    status: Array | None = None,
) -> tuple[Array, Array]:
    """Multi-head latent attention of every tree node, from queries that are not absorbed to the heads' own values.

    Rows, pads, unseen slots and refusals are those of ``kdbench.verify_attn``. The two ways to compute it are those of
    DeepSeek-V2 (arXiv 2405.04434, section 2.1): "absorb" multiplies queries by W_UK and attends to the latents, "mha"
    makes keys and values of every head from the latents first. Many nodes pay for "mha": see ``verify_mla_plan``.

    Args:
        q_nope: bf16[B, N, H, 128], not absorbed. bf16 as in ``verify_attn``.
        q_pe: bf16[B, N, H, 64], RoPE applied.
        w_uk: bf16[H, 128, 512], latents to keys: key = w_uk[h] @ latent.
        w_uv: bf16[H, 512, 128], latents to values: value = latent @ w_uv[h].
        kv_cache: bf16[num_pages, page_size, 576]: per token 512 latent values, then 64 of k_pe.
        block_table: i32[B, max_pages_per_seq]. Its width bounds work and workspace: no wider than it has to be.
        seq_lens: i32[B] committed tokens, the tree excluded.
        tree_mask: u64[B, N, ceil(N/64)] as in DraftTree.
        num_nodes: i32[B] or None, when an empty mask row alone marks a pad.
        softmax_scale: factor on the scores before the softmax, above 0.
        mode: "auto" (the cheaper by the library's model, from the shapes alone), "absorb" or "mha".
        backend, stream: see ``tree_build``.
        out: (out, lse) to write into.
        status: i32[B] to receive BAD_COUNT, BAD_LENGTH or BAD_PAGE; a refused request is all pads.

    Returns:
        out, of q_nope's kind and dtype, [B, N, H, 128], after W_UV; lse f32[B, N, H], natural log. Modes differ in
        what they round to bf16 on the way; each is within about 4e-3 of float64 (relative, Frobenius norm).
    """
    call = prepare_verify_mla(
        q_nope,
        q_pe,
        w_uk,
        w_uv,
        kv_cache,
        block_table,
        seq_lens,
        tree_mask,
        num_nodes,
        softmax_scale,
        mode=mode,
        backend=backend,
        stream=stream,
        out=out,
        status=status,
    )
    call.launch()
    return call.outputs["out"], call.outputs["lse"]


def prepare_verify_mla(
    q_nope: Array,
    q_pe: Array,
    w_uk: Array,
    w_uv: Array,
    kv_cache: Array,
    block_table: Array,
    seq_lens: Array,
    tree_mask: Array,
    num_nodes: Array | None,
    softmax_scale: float,
    *,
    mode: str = "auto",
    backend: str | None = None,
    stream: Any = None,
    out: tuple[Array, Array] | None = None,
    status: Array | None = None,
    library: native.Library | None = None,
) -> Call:
    """A prepared ``kdbench.verify_mla``; ``library`` overrides the installed one."""
    call = CallBuilder()
    element = call.read("q_nope", q_nope, ("B", "N", "H", native.QK_NOPE_HEAD_DIM), BF16).dtype
    call.read("q_pe", q_pe, ("B", "N", "H", native.QK_ROPE_HEAD_DIM), BF16)
    call.read("w_uk", w_uk, ("H", native.QK_NOPE_HEAD_DIM, native.KV_LORA_RANK), BF16)
    call.read("w_uv", w_uv, ("H", native.KV_LORA_RANK, native.V_HEAD_DIM), BF16)
    call.read("kv_cache", kv_cache, ("num_pages", "page_size", KV_WIDTH), BF16)
    call.read("block_table", block_table, ("B", "max_pages_per_seq"), "int32")
    call.read("seq_lens", seq_lens, ("B",), "int32")
    batch, heads = call.shapes["B"], in_range("num_qo_heads H", call.shapes["H"], 1, native.MAX_NUM_QO_HEADS)
    nodes = in_range("the number of nodes N", call.shapes["N"], 1, native.MAX_TREE_BUDGET + 1)
    call.read("tree_mask", tree_mask, ("B", "N", -(-nodes // 64)), MASK_WORD)
    if num_nodes is not None:
        call.read("num_nodes", num_nodes, ("B",), "int32")
    paging = {name: call.shapes[name] for name in ("num_pages", "page_size", "max_pages_per_seq")}
    scale = _single(softmax_scale)
    given = (None, None) if out is None else _pair(out)
    call.write("out", given[0], (batch, nodes, heads, native.V_HEAD_DIM), element)
    call.write("lse", given[1], (batch, nodes, heads), "float32")
    if status is not None:
        call.write("status", status, (batch,), "int32")
    sizes = _sizes(batch, nodes, heads, mode, **paging)
    return call.finish("kdt_verify_mla", backend, library, stream, **sizes, softmax_scale=scale)


def verify_mla_plan(
    *,
    batch: int,
    max_nodes: int,
    num_qo_heads: int,
    page_size: int,
    max_pages_per_seq: int,
    mode: str = "auto",
    backend: str = "cpu",
    library: native.Library | None = None,
) -> MlaPlan:
    """Which mode ``verify_mla`` takes for these sizes, and what both would cost by the library's model.

    Every request counts with as many slots as its block table has. By FLOPs alone "mha" wins from N S = 171 (S - N) on
    (N nodes, S slots): 171 nodes over a long prefix. The model also knows the rates that the backend's steps reach.

    Args:
        backend: "cpu" or "cuda"; no GPU is needed to ask.
        library: overrides the installed one.

    Raises:
        InvalidArgument: a size or mode that verify_mla would refuse.
        BackendUnavailable: the library is missing, or from before verify_mla.
    """
    sizes = _sizes(
        in_range("batch", batch, 0, 2**31 - 1),
        in_range("max_nodes", max_nodes, 1, native.MAX_TREE_BUDGET + 1),
        in_range("num_qo_heads", num_qo_heads, 1, native.MAX_NUM_QO_HEADS),
        mode,
        num_pages=1,
        page_size=page_size,
        max_pages_per_seq=max_pages_per_seq,
    )
    chosen = library or native.load(backend)
    costs = chosen.verify_mla_costs(native.VerifyMlaParams(**sizes, softmax_scale=1.0))
    return MlaPlan(
        mode=native.MlaMode(costs.mode).name.lower(),
        absorb=MlaModeCost(costs.absorb_flops, costs.absorb_bytes, costs.absorb_seconds),
        mha=MlaModeCost(costs.mha_flops, costs.mha_bytes, costs.mha_seconds),
    )


def _sizes(batch: int, nodes: int, heads: int, mode: str, **paging: int) -> dict[str, int]:
    if mode not in MODES:
        raise InvalidArgument(f"mode is {mode!r}, and {', '.join(map(repr, MODES[:-1]))} or {MODES[-1]!r} is expected")
    return {
        "batch": batch,
        "max_nodes": nodes,
        "num_qo_heads": heads,
        "qk_nope_head_dim": native.QK_NOPE_HEAD_DIM,
        "qk_rope_head_dim": native.QK_ROPE_HEAD_DIM,
        "kv_lora_rank": native.KV_LORA_RANK,
        "v_head_dim": native.V_HEAD_DIM,
        **{name: in_range(name, size, 1, 2**31 - 1) for name, size in paging.items()},
        "mode": native.MlaMode[mode.upper()],
    }
