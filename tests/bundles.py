# SPDX-License-Identifier: Apache-2.0
"""KDTR bundles for the C++ tests: seeded cases and what the NumPy oracles make of them.

``python tests/bundles.py FOLDER`` writes one file a kernel. Names are defined in native/tests/README.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from attention_cases import NAN_BF16, SCALE, attention_case
from mla_cases import mla_case
from tree_cases import STYLES, candidates, random_parents, targets

from kdbench import kdtr, reference
from kdbench.arrays import f32_to_bf16
from kdbench.tree import DraftTree

Arrays = dict[str, np.ndarray]


def _i32(value: int) -> np.ndarray:
    return np.array([value], np.int32)


def _expected(arrays: Arrays) -> Arrays:
    return {f"expect/{name}": array for name, array in arrays.items()}


def tree_build_cases(rng: np.random.Generator) -> Iterator[Arrays]:
    """Every style of log-probs at shapes around the word and path edges, refused and root-only requests included."""
    shapes = [(3, 7, 8, 15), (2, 15, 16, 64), (1, 31, 5, 130), (5, 2, 3, 63), (2, 1, 40, 31), (1, 15, 32, 1024)]
    for style in STYLES:
        for batch, horizon, topk, budget in shapes:
            yield _tree_build_case(candidates(rng, batch, horizon, topk, style), budget)
    poisoned = candidates(rng, 4, 5, 6, "softmax")
    poisoned[0][0, 4, 5] = np.nan
    poisoned[0][2, 0, 0] = 1e-20
    poisoned[0][3, 1, 0] = -np.inf
    yield _tree_build_case(poisoned, 20)
    yield _tree_build_case(candidates(rng, 2, 5, 6, "softmax"), 0)


def _tree_build_case(inputs: tuple[np.ndarray, ...], budget: int) -> Arrays:
    names = ("topk_log_probs", "topk_token_ids", "root_token_ids", "seq_lens")
    tree = reference.tree_build(*inputs, budget, dfs_order=True, expected_lengths=True)
    return dict(zip(names, inputs, strict=True)) | {"tree_budget": _i32(budget)} | _expected(tree.arrays())


def tree_accept_cases(rng: np.random.Generator) -> Iterator[Arrays]:
    """Built trees and trees of any shape, targets along a path; then the same trees broken in every way."""
    for batch, horizon, nodes in [(1, 1, 1), (4, 7, 16), (3, 15, 65), (2, 31, 300), (1, 31, 1025)]:
        parents, counts = random_parents(rng, batch, nodes, horizon)
        # A vocabulary of four has duplicate siblings everywhere, token 0 among them.
        tokens = rng.integers(0, 4, (batch, nodes)).astype(np.int32)
        lengths = rng.integers(0, 100, batch).astype(np.int32)
        tree = DraftTree.from_parents(tokens, parents, counts, lengths, horizon)
        wanted = targets(rng, tree, 4)
        yield _tree_accept_case(tree, wanted)
        yield _tree_accept_case(tree, wanted, lengths)
    built = reference.tree_build(*candidates(rng, 8, 7, 8, "bf16"), 31)
    wanted = targets(rng, built, 10)
    yield _tree_accept_case(built, wanted)
    for request, (node, parent) in enumerate([(1, 1), (2, 3), (3, -1), (4, 2**31 - 1), (5, -(2**31))]):
        built.parents[request, node] = parent
    built.num_nodes[5:] = [0, 33, -1]
    yield _tree_accept_case(built, wanted)
    yield _tree_accept_case(built, wanted, np.array([7, -1, 2**31 - 1, 0, 2**31 - 33, -5, -5, 9], np.int32))


def _tree_accept_case(tree: DraftTree, target_tokens: np.ndarray, seq_lens: np.ndarray | None = None) -> Arrays:
    answer = reference.tree_accept(tree, target_tokens, seq_lens)
    asked = {} if seq_lens is None else {"seq_lens": seq_lens}
    return (
        {
            "token_ids": tree.token_ids,
            "parents": tree.parents.copy(),  # the caller breaks the tree after this
            "num_nodes": tree.num_nodes.copy(),
            "target_tokens": target_tokens,
            "draft_horizon": _i32(tree.draft_horizon),
        }
        | asked
        | _expected(answer.arrays())
    )


def verify_attn_cases(rng: np.random.Generator) -> Iterator[Arrays]:
    """Ragged batches, three kinds of mask, page sizes 1 to 64; NaN wherever nobody may look."""
    for kind in ("chain", "tree", "arbitrary"):
        for seq_lens, counts, nodes, heads, page_size in [
            ([0, 1, 63, 64, 65], [1, 7, 9, 4, 2], 9, 4, 64),
            ([5, 130], [33, 17], 33, 2, 1),
            ([40, 3], [65, 64], 65, 1, 16),
        ]:
            case = attention_case(
                rng, seq_lens=seq_lens, counts=counts, nodes=nodes, heads=heads, page_size=page_size, kind=kind
            )
            out, lse = case.expected()
            arrays = {
                "q_nope": case.q_nope,
                "q_pe": case.q_pe,
                "kv_cache": case.kv_cache,
                "block_table": case.block_table,
                "seq_lens": case.seq_lens,
                "tree_mask": case.tree_mask,
                "softmax_scale": np.array([SCALE], np.float32),
            }
            if case.num_nodes is not None:
                arrays["num_nodes"] = case.num_nodes
            status = np.zeros(len(seq_lens), np.int32)
            yield arrays | _expected({"out": out, "lse": lse, "status": status})
            out, lse = case.expected(tail_only=True)
            yield arrays | {"tail_only": _i32(1)} | _expected({"out": out, "lse": lse, "status": status})


def merge_attn_states_cases(rng: np.random.Generator) -> Iterator[Arrays]:
    """Sides of like and unlike weight; sides that saw nothing, and NaN."""
    for rows, head_dim in [(1, 8), (37, 64), (100, 512)]:
        out_a, out_b = (f32_to_bf16(rng.standard_normal((rows, head_dim))) for _ in range(2))
        lse_a, lse_b = (rng.normal(0, 10, rows).astype(np.float32) for _ in range(2))
        lse_a[1:4], lse_b[2:5] = -np.inf, -np.inf
        out_a[1:3], lse_a[6:7], lse_b[7:8] = NAN_BF16, np.nan, np.inf
        arrays = {"out_a": out_a, "lse_a": lse_a, "out_b": out_b, "lse_b": lse_b}
        out, lse = reference.merge_attn_states(**arrays)
        yield arrays | _expected({"out": out, "lse": lse})


def kv_compact_cases(rng: np.random.Generator) -> Iterator[Arrays]:
    """Random words (NaN of every payload), overlapping moves, page sizes 1 to 64; then requests that are refused."""
    for layers, batch, horizon, page_size, width in [(1, 1, 7, 64, 576), (3, 4, 15, 16, 24), (2, 5, 31, 1, 8)]:
        nodes = 60
        lengths = rng.integers(0, 40, batch).astype(np.int32)
        table_width = -(-(40 + nodes) // page_size)
        path = np.full((batch, horizon + 1), -1, np.int32)
        for b in range(batch):
            length = int(rng.integers(1, horizon + 1))
            path[b, : length + 1] = [0, *np.sort(1 + rng.choice(nodes - 1, length, replace=False))]
        yield _kv_compact_case(rng, layers, page_size, width, table_width, lengths, path)
        bad = path.copy()
        bad[0, -2:] = [3, 2]
        yield _kv_compact_case(rng, layers, page_size, width, table_width, lengths - 1, bad)


def _kv_compact_case(
    rng: np.random.Generator,
    layers: int,
    page_size: int,
    width: int,
    table_width: int,
    seq_lens: np.ndarray,
    accepted_path: np.ndarray,
) -> Arrays:
    num_pages = len(seq_lens) * table_width + 1
    cache = rng.integers(0, 2**16, (layers, num_pages, page_size, width)).astype(np.uint16)
    table = rng.permutation(num_pages)[: len(seq_lens) * table_width].reshape(len(seq_lens), -1).astype(np.int32)
    table[-1, -1] = -1
    after = cache.copy()
    status = reference.kv_compact(after, table, seq_lens, accepted_path)
    inputs = {"kv_cache": cache, "block_table": table, "seq_lens": seq_lens, "accepted_path": accepted_path}
    return inputs | _expected({"kv_cache": after, "status": status})


def verify_mla_cases(rng: np.random.Generator) -> Iterator[Arrays]:
    """Ragged batches around tile edges, three kinds of mask; NaN wherever nobody may look."""
    for kind, seq_lens, counts, nodes, heads, page_size in [
        ("chain", [0, 1, 63, 64, 65], [1, 7, 9, 4, 2], 9, 3, 64),
        ("arbitrary", [5, 130], [33, 17], 33, 2, 1),
        ("tree", [40, 3], [129, 128], 129, 1, 16),
    ]:
        case = mla_case(rng, seq_lens=seq_lens, counts=counts, nodes=nodes, heads=heads, page_size=page_size, kind=kind)
        names = ("q_nope", "q_pe", "kv_cache", "block_table", "seq_lens", "tree_mask", "num_nodes")
        arrays = {name: getattr(case.attention, name) for name in names}
        arrays |= {"w_uk": case.w_uk, "w_uv": case.w_uv, "softmax_scale": np.array([SCALE], np.float32)}
        out, lse = case.expected()
        yield arrays | _expected({"out": out, "lse": lse, "status": np.zeros(len(seq_lens), np.int32)})


def draft_topk_cases(rng: np.random.Generator) -> Iterator[Arrays]:
    """f32 and bf16 logits with ties, -inf and refused rows."""
    for rows, vocab_size, topk in [(3, 50, 50), (4, 3001, 64), (2, 20000, 300)]:
        logits = (rng.standard_normal((rows, vocab_size)) * 3).astype(np.float32)
        logits[0] = np.round(logits[0])
        logits[1, ::3] = -np.inf
        yield _draft_topk_case(logits, topk)
        yield _draft_topk_case(f32_to_bf16(logits), topk)
    refused = rng.standard_normal((5, 200)).astype(np.float32)
    refused[0, 199], refused[2, 0], refused[3, 7:9] = np.nan, np.inf, (np.nan, np.inf)
    yield _draft_topk_case(refused, 8)


def _draft_topk_case(logits: np.ndarray, topk: int) -> Arrays:
    answer = reference.draft_topk(logits, topk)
    return {"logits": logits} | _expected(
        {"topk_log_probs": answer.log_probs, "topk_token_ids": answer.token_ids, "status": answer.status}
    )


CASES = {
    "tree_build": tree_build_cases,
    "tree_accept": tree_accept_cases,
    "verify_attn": verify_attn_cases,
    "draft_topk": draft_topk_cases,
    "kv_compact": kv_compact_cases,
    "merge_attn_states": merge_attn_states_cases,
    "verify_mla": verify_mla_cases,
}


def write_bundles(folder: Path, seed: int = 2604) -> list[Path]:
    """Write ``<kernel>.kdtr`` for each kernel into ``folder``, and return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for kernel, cases in CASES.items():
        arrays = {
            f"{kernel}/{index}/{name}": array
            for index, case in enumerate(cases(np.random.default_rng(seed)))
            for name, array in case.items()
        }
        paths.append(folder / f"{kernel}.kdtr")
        kdtr.write(paths[-1], arrays)
    return paths


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python tests/bundles.py FOLDER")
    for path in write_bundles(Path(sys.argv[1])):
        print(path)
