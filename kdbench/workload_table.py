# SPDX-License-Identifier: Apache-2.0
"""The workloads themselves. Append-only: never edit, reorder or remove a line, since each is a series of results.

Budgets and node counts come in two kinds on purpose: 63, 255, 1023 fill 64-wide tiles once the root is added, 64, 256,
1024 spill one node.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

from kdbench.workload_inputs import VOCAB_SIZE
from kdbench.workloads import Workload

_BOTH = ("cpu", "cuda")
_CUDA = ("cuda",)


def _workload(
    name: str, kernel: str, seed: int, roofline: str, quick: bool, backends: tuple[str, ...], **shape: Any
) -> Workload:
    tags = frozenset({"quick"} if quick else ())
    return Workload(name, kernel, seed, MappingProxyType(shape), backends, tags, roofline)


def _device(workload: Workload, suffix: str = "", peak: bool = False, **shape: Any) -> Workload:
    """``workload`` with inputs that are made where they are read, and measured on a GPU only."""
    return replace(
        workload,
        name=workload.name + suffix,
        shape=MappingProxyType({**workload.shape, **shape, "hashed": True}),
        backends=_CUDA,
        tags=frozenset({"peak"} if peak else ()),
    )


def _build(seed: int, budget: int, horizon: int, topk: int, batch: int, form: str, quick: bool = False) -> Workload:
    return _workload(
        f"b{budget}-d{horizon}-k{topk}-n{batch}-{form}",
        "tree_build",
        seed,
        "latency",
        quick,
        _BOTH,
        budget=budget,
        horizon=horizon,
        topk=topk,
        batch=batch,
        form=form,
    )


def _accept(
    seed: int, budget: int, horizon: int, batch: int, accepted: str, form: str = "bushy", quick: bool = False
) -> Workload:
    suffix = "-chain" if form == "chain" else ""
    return _workload(
        f"b{budget}-d{horizon}-n{batch}-{accepted}{suffix}",
        "tree_accept",
        seed,
        "latency",
        quick,
        _BOTH,
        nodes=budget + 1,
        horizon=horizon,
        batch=batch,
        accepted=accepted,
        form=form,
    )


def _attn(
    seed: int,
    heads: int,
    nodes: int,
    prefix: int,
    batch: int,
    page_size: int,
    backends: tuple[str, ...] = _CUDA,
    quick: bool = False,
    tail_only: bool = False,
) -> Workload:
    length = f"{prefix // 1024}k" if prefix and prefix % 1024 == 0 else str(prefix)
    # Below 95 (node, head) rows a request, reading the prefix takes longer than multiplying it. Without a prefix there
    # is little to multiply, and mostly little to read.
    bound = "memory" if heads * nodes < 95 else "compute"
    if tail_only:
        bound = _bound_by_rows(heads * nodes * batch)
    return _workload(
        f"h{heads}-n{nodes}-p{length}-b{batch}-ps{page_size}{'-tail' if tail_only else ''}",
        "verify_attn",
        seed,
        bound,
        quick,
        backends,
        heads=heads,
        nodes=nodes,
        prefix=prefix,
        batch=batch,
        page_size=page_size,
        horizon=7,
        **({"tail_only": True} if tail_only else {}),
    )


def _bound_by_rows(rows: int) -> str:
    """Of kernels that read and write some kilobytes a (node, head) row, and do little else."""
    return "memory" if rows >= 16384 else "latency"


def _merge(
    seed: int, heads: int, nodes: int, batch: int, backends: tuple[str, ...] = _BOTH, quick: bool = False
) -> Workload:
    return _workload(
        f"h{heads}-n{nodes}-b{batch}-merge",
        "merge_attn_states",
        seed,
        _bound_by_rows(heads * nodes * batch),
        quick,
        backends,
        heads=heads,
        nodes=nodes,
        batch=batch,
    )


def _single(seed: int, heads: int, nodes: int, prefix: int, page_size: int = 64, peak: bool = False) -> Workload:
    """Batch 1, for a GPU."""
    return _device(_attn(seed, heads, nodes, prefix, 1, page_size), peak=peak)


def _even(
    seed: int, heads: int, nodes: int, prefix: int, batch: int, page_size: int = 64, peak: bool = False
) -> Workload:
    """Requests of equal length, for a GPU."""
    return _device(_attn(seed, heads, nodes, prefix, batch, page_size), "-even", peak, even=True)


def _topk(
    seed: int, rows: int, topk: int, dtype: str, backends: tuple[str, ...] = _BOTH, quick: bool = False
) -> Workload:
    return _workload(
        f"r{rows}-k{topk}-{dtype}",
        "draft_topk",
        seed,
        "memory" if rows >= 100 else "latency",
        quick,
        backends,
        rows=rows,
        topk=topk,
        dtype=dtype,
        vocab_size=VOCAB_SIZE,
    )


def _compact(seed: int, layers: int, batch: int, page_size: int, quick: bool = False) -> Workload:
    return _workload(
        f"l{layers}-d15-n{batch}-ps{page_size}",
        "kv_compact",
        seed,
        "memory" if layers * batch > 1000 else "latency",
        quick,
        _BOTH,
        layers=layers,
        batch=batch,
        horizon=15,
        nodes=65,
        prefix=60,
        page_size=page_size,
    )


def _mla(
    seed: int,
    heads: int,
    nodes: int,
    prefix: int,
    batch: int,
    mode: str,
    backends: tuple[str, ...] = _CUDA,
    quick: bool = False,
) -> Workload:
    length = f"{prefix // 1024}k" if prefix and prefix % 1024 == 0 else str(prefix)
    return _workload(
        f"h{heads}-n{nodes}-p{length}-b{batch}-{mode}",
        "verify_mla",
        seed,
        "compute",
        quick,
        backends,
        heads=heads,
        nodes=nodes,
        prefix=prefix,
        batch=batch,
        page_size=64,
        horizon=15,
        mode=mode,
    )


_ALL = (
    _build(1001, 15, 7, 8, 1, "sharp", quick=True),
    _build(1002, 15, 7, 8, 32, "flat"),
    _build(1003, 64, 7, 16, 1, "sharp", quick=True),
    _build(1004, 64, 7, 16, 8, "flat"),
    _build(1005, 64, 7, 64, 1, "tied"),
    _build(1006, 64, 15, 16, 32, "tied"),
    _build(1007, 63, 15, 64, 1, "sharp"),
    _build(1008, 256, 7, 64, 1, "sharp"),
    _build(1009, 256, 15, 64, 1, "tied", quick=True),
    _build(1010, 256, 15, 32, 8, "flat"),
    _build(1011, 255, 15, 64, 32, "sharp"),
    _build(1012, 1024, 7, 64, 1, "flat"),
    _build(1013, 1024, 15, 64, 1, "sharp", quick=True),
    _build(1014, 1024, 15, 64, 8, "tied"),
    _build(1015, 1024, 15, 64, 32, "sharp"),
    _accept(2001, 7, 7, 1, "full", form="chain"),
    _accept(2002, 15, 15, 32, "half", form="chain"),
    _accept(2003, 64, 7, 1, "full", quick=True),
    _accept(2004, 64, 7, 8, "none"),
    _accept(2005, 256, 15, 1, "full"),
    _accept(2006, 256, 15, 32, "half"),
    _accept(2007, 1024, 15, 1, "none"),
    _accept(2008, 1024, 15, 32, "full", quick=True),
    # Sized for a CPU, and measured on a GPU too.
    _attn(3001, 8, 8, 0, 4, 1, _BOTH),
    _attn(3002, 8, 8, 64, 1, 64, _BOTH, quick=True),
    _attn(3003, 8, 16, 128, 2, 1, _BOTH, quick=True),
    _attn(3004, 16, 16, 256, 1, 64, _BOTH),
    _attn(3005, 8, 64, 128, 1, 64, _BOTH),
    # Sized for a GPU.
    _attn(3101, 8, 8, 16384, 32, 64),
    _attn(3102, 8, 8, 65536, 1, 64),
    _attn(3103, 8, 8, 1024, 32, 1),
    _attn(3104, 16, 16, 4096, 1, 64),
    _attn(3105, 16, 64, 4096, 1, 64),
    _attn(3106, 8, 65, 4096, 8, 64),
    _attn(3107, 8, 64, 1024, 8, 1),
    _attn(3108, 8, 256, 4096, 1, 64),
    _attn(3109, 16, 256, 1024, 1, 64),
    _attn(3110, 16, 64, 16384, 8, 64),
    _attn(3111, 64, 8, 4096, 8, 64),
    _attn(3112, 64, 64, 4096, 8, 64),
    _attn(3113, 64, 64, 1024, 1, 1),
    _attn(3114, 64, 256, 16384, 1, 64),
    _attn(3115, 128, 16, 0, 32, 64),
    _attn(3116, 128, 64, 4096, 1, 64),
    _attn(3117, 128, 64, 65536, 1, 64),
    _topk(4001, 7, 16, "bf16", quick=True),
    _topk(4002, 15, 64, "bf16"),
    _topk(4003, 7, 16, "f32"),
    _topk(4004, 120, 64, "bf16", _CUDA),
    # Each budget at batch 1 and 64.
    _build(1016, 63, 15, 64, 64, "sharp"),
    _build(1017, 64, 7, 16, 64, "sharp"),
    _build(1018, 255, 15, 64, 1, "sharp"),
    _build(1019, 255, 15, 64, 64, "sharp"),
    _build(1020, 256, 7, 64, 64, "sharp"),
    _build(1021, 256, 15, 64, 64, "tied"),
    _build(1022, 1023, 15, 64, 1, "sharp"),
    _build(1023, 1023, 15, 64, 64, "sharp"),
    _build(1024, 1024, 15, 64, 64, "sharp"),
    _accept(2009, 7, 7, 1, "full"),
    _accept(2010, 7, 7, 1, "half"),
    _accept(2011, 7, 7, 1, "none"),
    _accept(2012, 7, 7, 64, "full"),
    _accept(2013, 7, 7, 64, "half"),
    _accept(2014, 7, 7, 64, "none"),
    _accept(2015, 63, 7, 1, "full"),
    _accept(2016, 63, 7, 1, "half"),
    _accept(2017, 63, 7, 1, "none"),
    _accept(2018, 63, 7, 64, "full"),
    _accept(2019, 63, 7, 64, "half"),
    _accept(2020, 63, 7, 64, "none"),
    _accept(2021, 255, 15, 1, "full"),
    _accept(2022, 255, 15, 1, "half"),
    _accept(2023, 255, 15, 1, "none"),
    _accept(2024, 255, 15, 64, "full"),
    _accept(2025, 255, 15, 64, "half"),
    _accept(2026, 255, 15, 64, "none"),
    _accept(2027, 1023, 15, 1, "full"),
    _accept(2028, 1023, 15, 64, "full"),
    _accept(2029, 64, 7, 64, "full"),
    _accept(2030, 256, 15, 64, "full"),
    _accept(2031, 1024, 15, 1, "full"),
    _accept(2032, 1024, 15, 64, "full"),
    # The shapes at which other libraries' kernels are timed.
    _single(3201, 8, 8, 1024),
    _single(3202, 8, 8, 4096),
    _single(3203, 8, 64, 4096),
    _single(3204, 16, 64, 1024),
    _single(3205, 16, 64, 16384),
    _single(3206, 64, 16, 4096),
    _single(3207, 64, 64, 4096),
    _single(3208, 16, 256, 16384),
    _even(3209, 8, 8, 4096, 8),
    _even(3210, 8, 64, 4096, 8),
    _even(3211, 16, 64, 1024, 8),
    _even(3212, 16, 64, 4096, 8),
    _even(3213, 64, 64, 4096, 8),
    _even(3214, 16, 256, 4096, 8),
    _even(3215, 16, 64, 1024, 32),
    _even(3216, 16, 64, 4096, 32),
    _even(3217, 16, 128, 16384, 32, peak=True),
    _even(3218, 8, 8, 65536, 32, peak=True),
    _even(3219, 16, 1, 1024, 128),
    _even(3220, 128, 1, 4096, 128, peak=True),
    # Node counts that fill tiles, and that spill one node.
    _single(3221, 16, 65, 4096),
    _single(3222, 8, 257, 4096),
    _single(3223, 16, 257, 4096),
    _single(3224, 8, 1024, 4096),
    _single(3225, 8, 1025, 4096),
    _single(3226, 16, 1024, 16384),
    _single(3227, 128, 256, 16384),
    _even(3228, 64, 65, 4096, 8),
    # Page size 1 beside page size 64.
    _single(3229, 8, 8, 65536, 1),
    _single(3230, 16, 64, 4096, 1),
    _single(3231, 16, 64, 16384, 1),
    _single(3232, 16, 256, 16384, 1),
    _single(3233, 8, 1025, 4096, 1),
    _even(3234, 16, 64, 4096, 8, 1),
    _even(3235, 64, 64, 4096, 8, 1),
    _even(3236, 8, 8, 65536, 32, 1, peak=True),
    _device(_topk(4005, 960, 64, "bf16"), peak=True),
    _compact(5001, 1, 1, 64, quick=True),
    _compact(5002, 1, 32, 64),
    _compact(5003, 1, 32, 1),
    _compact(5004, 61, 1, 64),
    _device(_compact(5005, 61, 32, 64)),
    _device(_compact(5006, 61, 32, 1)),
    # The tree's part of a cascade: the shapes of whole attention above, the prefix left to another kernel.
    _attn(3301, 8, 16, 128, 2, 1, _BOTH, tail_only=True),
    _attn(3302, 16, 64, 4096, 1, 64, tail_only=True),
    _attn(3303, 64, 64, 4096, 8, 64, tail_only=True),
    _attn(3304, 16, 256, 16384, 1, 64, tail_only=True),
    _attn(3305, 8, 1025, 4096, 1, 1, tail_only=True),
    # And what puts the two parts together.
    _merge(6001, 8, 16, 2, quick=True),
    _merge(6002, 16, 64, 1),
    _merge(6003, 16, 256, 1, _CUDA),
    _merge(6004, 64, 64, 8, _CUDA),
    _merge(6005, 128, 64, 8, _CUDA),
    # Sized for a CPU.
    _mla(7001, 4, 16, 128, 1, "absorb", _BOTH),
    _mla(7001, 4, 16, 128, 1, "mha", _BOTH),
    _mla(7002, 4, 65, 128, 2, "auto", _BOTH, quick=True),
    # Both modes on the same inputs, around the number of nodes from which mha is the cheaper one.
    *(
        _mla(seed, 16, nodes, prefix, 1, mode)
        for seed, (nodes, prefix) in enumerate(
            ((n, p) for n in (64, 128, 192, 256, 512, 1025) for p in (1024, 4096)), start=7101
        )
        for mode in ("absorb", "mha")
    ),
    _mla(7201, 16, 256, 4096, 8, "absorb"),
    _mla(7201, 16, 256, 4096, 8, "mha"),
)

REGISTRY = MappingProxyType({workload.name: workload for workload in _ALL})
if len(REGISTRY) != len(_ALL):
    raise AssertionError("two workloads have one name")
