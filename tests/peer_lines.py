# SPDX-License-Identifier: Apache-2.0
"""Invented lines of results/peers: what a comparison would have recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from kdbench.bootstrap import median_interval


def line(implementation: str, around: float, **other: Any) -> dict[str, Any]:
    """One measurement of 9 rounds around ``around`` s; all implementations share the drift of the rounds."""
    rng = np.random.default_rng(len(implementation))
    drift = 1 + 0.1 * np.sin(np.arange(9))
    samples = (around * drift * (1 + 0.001 * rng.standard_normal(9))).tolist()
    low, high = median_interval(samples)
    return {
        "schema": "kdbench/peer/1",
        "kernel": "verify_attn",
        "workload": "h16-n64-p4k-b1-ps64",
        "implementation": implementation,
        "seconds": float(np.median(samples)),
        "ci_low": low,
        "ci_high": high,
        "floor_seconds": 12.1e-6,
        "commit": "c" * 40,
        "date": "2026-03-01T10:00:00+00:00",
        "run": "run1",
        "machine": "h200",
        "backend": "cuda",
        "scope": "tree mask",
        "clock": "graph slope",
        "mode": "cold",
        "samples_s": samples,
        "error": 1e-3,
        "library": f"{implementation} 1.0",
        "note": "",
        "gpu": "NVIDIA H200",
        "driver": "580.1",
        "sm_clock_mhz": 1980.0,
        "harness": "0.1.0",
        **other,
    }


def lines() -> list[dict[str, Any]]:
    """Two runs, three workloads: ours, a cascade that is slower, an unmasked engine that is faster, two clocks."""
    other = {"workload": "h8-n64-p1k-b8-ps1"}
    walls = {"kernel": "tree_build", "workload": "b64-d7-k16-n1-sharp", "scope": "logits to tree", "mode": "hot"}
    walls |= {"floor_seconds": None}
    return [
        line("kdtree", 30e-6),
        line("cascade", 45e-6),
        line("engine", 24e-6, scope="no mask"),
        line("kdtree", 20e-6, **other),
        line("cascade", 22e-6, **other),
        line("kdtree", 40e-6, **walls),
        line("kdtree", 60e-6, **walls, clock="wall clock"),
        line("heap", 1.2e-3, **walls, clock="wall clock"),
        line("kdtree", 25e-6, run="run2", date="2026-03-02T10:00:00+00:00", commit="d" * 40),
        line("cascade", 50e-6, run="run2", date="2026-03-02T10:00:00+00:00", commit="d" * 40),
    ]


def write(results: Path, records: list[dict[str, Any]]) -> Path:
    """The file of machine h200 below ``results``."""
    path = results / "peers" / "h200.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
