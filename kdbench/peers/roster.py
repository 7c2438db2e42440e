# SPDX-License-Identifier: Apache-2.0
"""All implementations that can be compared, kernel by kernel, in the order in which tables show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kdbench.peers.accept_peers import PythonWalk, SglangAccept
from kdbench.peers.adapter import Peer
from kdbench.peers.attention_engines import FlashInferMla, FlashMla, VllmFa3
from kdbench.peers.attention_peers import Cascade, TritonExtend, Unmasked
from kdbench.peers.topk_peers import FlashInferTopk, TorchTopk
from kdbench.peers.torch_attention import TorchAttention
from kdbench.peers.tree_peers import HeapFromLogits, HeapFromLogProbs, SglangLink, SglangSelectAndLink

_ENGINES = (FlashMla(), FlashInferMla(), VllmFa3())

PEERS: Mapping[str, Sequence[Peer]] = {
    "tree_build": (HeapFromLogProbs(), HeapFromLogits(), SglangLink(), SglangSelectAndLink()),
    "tree_accept": (PythonWalk(), SglangAccept()),
    "verify_attn": (
        *(Cascade(engine, own_tail=True) for engine in _ENGINES),
        *(Cascade(engine, own_tail=False) for engine in _ENGINES if engine.any_page),
        TritonExtend(),
        TorchAttention(),
        *(Unmasked(engine) for engine in _ENGINES),
    ),
    "draft_topk": (TorchTopk(), FlashInferTopk()),
}
