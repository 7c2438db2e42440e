# SPDX-License-Identifier: Apache-2.0
"""Other people's paged MLA kernels, absorbed, 512 + 64 wide: none takes a tree mask, all return a natural-log lse.

An engine is asked for attention of all N query rows of each request over its first ``kv_lens[b]`` slots. Plans and
scheduler metadata are made by ``plan`` and lie outside the clock.
"""

from __future__ import annotations

import contextlib
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kdbench.abi import KV_LORA_RANK, QK_ROPE_HEAD_DIM
from kdbench.peers.adapter import Unsuitable
from kdbench.peers.inputs import Inputs
from kdbench.peers.libraries import Libraries
from kdbench.workloads import SOFTMAX_SCALE

_WORKSPACE = 256 << 20
_PLAN_WORKSPACE = 8 << 20


@dataclass(frozen=True)
class Paging:
    """Which slots the rows of which request see.

    Attributes:
        rows: query rows of each request.
        lens: i32[R] slots that each request's rows see.
        table: i32[R, pages] pages of each request, in host memory.
        page_size: slots a page.
    """

    rows: int
    lens: np.ndarray[Any, Any]
    table: np.ndarray[Any, Any]
    page_size: int


class Engine(ABC):
    """One MLA kernel.

    Attributes:
        name: as tables show it.
        library: its name in ``kdbench.peers.libraries``.
        any_page: it takes pages of one slot as well, so that a node's ancestors can be a request of their own.
    """

    name: str
    library: str
    any_page: bool

    def missing(self, libraries: Libraries) -> str | None:
        """Why it cannot run here, or None."""
        return libraries.missing(self.library)

    @abstractmethod
    def plan(self, inputs: Inputs, paging: Paging, key: str) -> Callable[[], tuple[Any, Any]]:
        """A launch that returns out bf16[T, H, 512] and lse f32, [T, H] or what ``rows_first`` makes that of.

        Args:
            inputs: q_nope and q_pe are read as T = B * N rows.
            paging: R requests with T = R * rows.
            key: names the plan among those that copies of the inputs share.
        """

    def rows_first(self, lse: Any, rows: int) -> Any:
        """The engine's lse as f32[T, H], contiguous."""
        return lse


class FlashMla(Engine):
    """deepseek-ai/FlashMLA's dense decode kernel, as sglang-kernel ships it: pages of 64 slots."""

    name = "FlashMLA"
    library = "flashmla"
    any_page = False

    def plan(self, inputs: Inputs, paging: Paging, key: str) -> Callable[[], tuple[Any, Any]]:
        """See ``Engine``; the first call makes the tile scheduler's metadata for the others."""
        torch = importlib.import_module("torch")
        if paging.page_size != 64:
            raise Unsuitable(f"FlashMLA reads pages of 64 slots, and this workload's have {paging.page_size}")
        op = torch.ops.sgl_kernel.dense_decode_fwd
        query = torch.cat([inputs.torch("q_nope"), inputs.torch("q_pe")], dim=-1)
        cache = inputs.torch("kv_cache").unsqueeze(2)
        lens, table = inputs.device(paging.lens), inputs.device(paging.table)

        def call(metadata: Any, splits: Any) -> Any:
            return op(query, cache, KV_LORA_RANK, lens, table, SOFTMAX_SCALE, False, metadata, splits)

        if key not in inputs.shared:
            inputs.shared[key] = call(None, None)[2:]
        metadata, splits = inputs.shared[key]

        def launch() -> tuple[Any, Any]:
            out, lse, *_ = call(metadata, splits)
            return out.flatten(0, 1), lse

        return launch

    def rows_first(self, lse: Any, rows: int) -> Any:
        """From [B, H, N]."""
        return lse.transpose(1, 2).flatten(0, 1).contiguous()


class FlashInferMla(Engine):
    """FlashInfer's batch MLA with the fa3 backend."""

    name = "FlashInfer fa3"
    library = "flashinfer_mla"
    any_page = True

    def plan(self, inputs: Inputs, paging: Paging, key: str) -> Callable[[], tuple[Any, Any]]:
        """See ``Engine``."""
        torch = importlib.import_module("torch")
        requests, heads = len(paging.lens), int(inputs.workload.shape["heads"])
        pages = -(-paging.lens // paging.page_size)
        indptr = np.concatenate([[0], np.cumsum(pages)]).astype(np.int32)
        used = np.concatenate([row[:count] for row, count in zip(paging.table, pages, strict=True)]).astype(np.int32)
        rows = torch.arange(0, (requests + 1) * paging.rows, paging.rows, dtype=torch.int32)
        host = (rows, torch.from_numpy(indptr), torch.from_numpy(paging.lens.astype(np.int32)))
        query = [inputs.torch(name).flatten(0, 1) for name in ("q_nope", "q_pe")]
        cache = inputs.torch("kv_cache").view(-1, paging.page_size, KV_LORA_RANK + QK_ROPE_HEAD_DIM)
        latent, rope = cache[..., :KV_LORA_RANK], cache[..., KV_LORA_RANK:]
        indices = inputs.device(used)
        if not inputs.libraries.from_file(self.library):
            run = self._installed(inputs, key, host, indices, heads, paging.page_size)
            return lambda: run(*query, latent, rope)
        module = inputs.libraries.module(self.library)
        stream = _stream_of(torch) if inputs.backend == "cuda" else contextlib.nullcontext
        if key not in inputs.shared:
            sizes = (_WORKSPACE, _PLAN_WORKSPACE)
            space = [torch.empty(size, dtype=torch.uint8, device=inputs.backend) for size in sizes]
            pinned = torch.empty(_PLAN_WORKSPACE, dtype=torch.uint8, pin_memory=inputs.backend == "cuda")
            with stream():
                planned = module.plan(*space, pinned, *host, heads, KV_LORA_RANK, False)
            inputs.shared[key] = (space, pinned, planned)
        space, _, planned = inputs.shared[key]
        out = torch.empty_like(query[0])
        lse = torch.empty(query[0].shape[:2], dtype=torch.float32, device=inputs.backend)

        def launch() -> tuple[Any, Any]:
            with stream():
                module.run(
                    *space, planned, *query, latent, rope, indices, out, lse,
                    0, heads, paging.page_size, SOFTMAX_SCALE, True, 1.0, 1.0,
                )  # fmt: skip
            return out, lse

        return launch

    def _installed(self, inputs: Inputs, key: str, host: Any, indices: Any, heads: int, page_size: int) -> Any:
        """The same through the package's own wrapper."""
        torch = importlib.import_module("torch")
        if key not in inputs.shared:
            wrapper = inputs.libraries.module(self.library).BatchMLAPagedAttentionWrapper(
                torch.empty(_WORKSPACE, dtype=torch.uint8, device=inputs.backend), backend="fa3"
            )
            rows, indptr, lens = host
            widths = (heads, KV_LORA_RANK, QK_ROPE_HEAD_DIM, page_size)
            kinds = (torch.bfloat16, torch.bfloat16)
            wrapper.plan(rows, indptr, indices, lens, *widths, False, SOFTMAX_SCALE, *kinds)
            inputs.shared[key] = wrapper
        wrapper = inputs.shared[key]
        return lambda *arrays: wrapper.run(*arrays, return_lse=True, return_lse_base_on_e=True)


class VllmFa3(Engine):
    """vLLM's FlashAttention 3 with q_v: the latent part of queries and keys apart from the rotary one."""

    name = "FA3"
    library = "vllm_fa3"
    any_page = True

    def plan(self, inputs: Inputs, paging: Paging, key: str) -> Callable[[], tuple[Any, Any]]:
        """See ``Engine``; the number of splits is its own heuristic's."""
        torch = importlib.import_module("torch")
        op = torch.ops._vllm_fa3_C.fwd
        requests, heads = len(paging.lens), int(inputs.workload.shape["heads"])
        nope, rope = (inputs.torch(name).flatten(0, 1) for name in ("q_nope", "q_pe"))
        cache = inputs.torch("kv_cache").view(-1, paging.page_size, 1, KV_LORA_RANK + QK_ROPE_HEAD_DIM)
        keys, values = cache[..., KV_LORA_RANK:], cache[..., :KV_LORA_RANK]
        starts = torch.arange(0, (requests + 1) * paging.rows, paging.rows, dtype=torch.int32, device=inputs.backend)
        lens, table = inputs.device(paging.lens), inputs.device(paging.table)
        longest = int(paging.lens.max(initial=1))
        nothing = (None,) * 3
        if key not in inputs.shared:
            inputs.shared[key] = torch.ops._vllm_fa3_C.get_scheduler_metadata(
                requests, paging.rows, longest, heads, 1, QK_ROPE_HEAD_DIM, KV_LORA_RANK, torch.bfloat16, lens, starts,
                None, None, None, None, paging.page_size, 0, False, -1, -1, False, 0, None, 0,
            )  # fmt: skip
        metadata = inputs.shared[key]

        def launch() -> tuple[Any, Any]:
            out, lse, *_ = op(
                rope, keys, values, None, None, nope, None, starts, None, None, None, lens, paging.rows, longest,
                table, None, None, *nothing, *nothing, SOFTMAX_SCALE, False, -1, -1, 0.0, True, metadata, 0, None, 0,
                None, 1, 0, None,
            )  # fmt: skip
            return out, lse

        return launch

    def rows_first(self, lse: Any, rows: int) -> Any:
        """From [H, T]."""
        return lse.transpose(0, 1).contiguous()


def _stream_of(torch: Any) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """tvm-ffi keeps a current stream of its own, which must be Torch's while a graph is captured."""
    tvm_ffi = importlib.import_module("tvm_ffi")
    return lambda: tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), torch.cuda.current_stream().cuda_stream)
