# SPDX-License-Identifier: Apache-2.0
"""kdbench: benchmarks and regression tracking for a native DDTree speculative-decoding engine."""

from kdbench.errors import BackendUnavailable, InvalidArgument, InvalidTree, KdbenchError, KdtrError, KernelError
from kdbench.expected_length import worthwhile_num_nodes
from kdbench.kernels import (
    draft_topk,
    kv_compact,
    merge_attn_states,
    tree_accept,
    tree_build,
    verify_attn,
    verify_mla,
    verify_mla_plan,
)
from kdbench.tree import Acceptance, DraftTopk, DraftTree

__version__ = "0.1.0"

__all__ = [
    "Acceptance",
    "BackendUnavailable",
    "DraftTopk",
    "DraftTree",
    "InvalidArgument",
    "InvalidTree",
    "KdbenchError",
    "KdtrError",
    "KernelError",
    "__version__",
    "draft_topk",
    "kv_compact",
    "merge_attn_states",
    "tree_accept",
    "tree_build",
    "verify_attn",
    "verify_mla",
    "verify_mla_plan",
    "worthwhile_num_nodes",
]
