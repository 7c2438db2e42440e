# SPDX-License-Identifier: Apache-2.0
"""Small cases with answers worked out by hand or taken from SGLang's own tests."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

ROOT = 99
INF = np.inf


@dataclass(frozen=True)
class BuildVector:
    """One request of tree_build and the arrays expected of it; seq_lens is 40."""

    name: str
    log_probs: list[list[float]]
    token_ids: list[list[int]]
    budget: int
    expected: dict[str, list] = field(hash=False)

    def inputs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
        return (
            np.array([self.log_probs], np.float32),
            np.array([self.token_ids], np.int32),
            np.array([ROOT], np.int32),
            np.array([40], np.int32),
            self.budget,
        )


G1 = BuildVector(
    "G1 by hand",
    np.log([[0.6, 0.3, 0.1], [0.55, 0.25, 0.2], [0.7, 0.2, 0.1]]).tolist(),
    [[11, 12, 13], [21, 22, 23], [31, 32, 33]],
    7,
    {
        "token_ids": [ROOT, 11, 21, 12, 31, 21, 22, 23],
        "parents": [-1, 0, 1, 0, 2, 3, 1, 1],
        "depths": [0, 1, 2, 1, 3, 2, 2, 2],
        "positions": [40, 41, 42, 41, 43, 42, 42, 42],
        "first_child": [1, 2, 4, 5, -1, -1, -1, -1],
        "next_sibling": [-1, 3, 6, -1, -1, -1, 7, -1],
        "tree_mask": [1, 3, 7, 9, 23, 41, 67, 131],
        "scores": [0, -0.510825634, -1.108662605, -1.203972816, -1.465337515, -1.801809788, -1.897119999, -2.120263577],
        "dfs_order": [0, 1, 2, 4, 6, 7, 3, 5],
        "num_nodes": 8,
        # (0,2) is the third of three columns, and a budget of 7 has room for more at depth 2.
        "status": 2,
    },
)
G2 = BuildVector(
    "G2 ties between paths",
    [[-1, -2], [-1, -2]],
    [[1, 2], [3, 4]],
    6,
    {
        "parents": [-1, 0, 1, 0, 1, 3, 3],
        "scores": [0, -1, -2, -2, -3, -3, -4],
        "first_child": [1, 2, -1, 5, -1, -1, -1],
        "next_sibling": [-1, 3, 4, -1, -1, 6, -1],
        "tree_mask": [1, 3, 7, 9, 19, 41, 73],
        "num_nodes": 7,
    },
)
G2_ALL_EQUAL = BuildVector(
    "G2 ties everywhere",
    [[-1, -1], [-1, -1]],
    [[1, 2], [3, 4]],
    6,
    {"token_ids": [ROOT, 1, 2, 3, 4, 3, 4], "parents": [-1, 0, 0, 1, 1, 2, 2], "num_nodes": 7},
)
G3 = BuildVector(
    "G3 exhaustion",
    np.log([[0.75, 0.25]]).tolist(),
    [[5, 6]],
    4,
    {
        "token_ids": [ROOT, 5, 6, 0, 0],
        "parents": [-1, 0, 0, -1, -1],
        "positions": [40, 41, 41, 40, 40],
        "first_child": [1, -1, -1, -1, -1],
        "next_sibling": [-1, 2, -1, -1, -1],
        "tree_mask": [1, 3, 5, 0, 0],
        "scores": [0, -0.287682, -1.386294, -INF, -INF],
        "dfs_order": [0, 1, 2, -1, -1],
        "num_nodes": 3,
        "status": 1 | 2,
    },
)
G4 = BuildVector(
    "G4 -inf ends a row",
    [[-0.1, -INF, -INF], [-0.2, -3, -INF]],
    [[1, 2, 3], [4, 5, 6]],
    8,
    {
        "token_ids": [ROOT, 1, 4, 5, 0, 0, 0, 0, 0],
        "parents": [-1, 0, 1, 1, -1, -1, -1, -1, -1],
        "scores": [0, -0.1, -0.3, -3.1, -INF, -INF, -INF, -INF, -INF],
        "num_nodes": 4,
        "status": 1,
    },
)
FLOOR = BuildVector(
    "the floor is inclusive",
    [[-1, -64, -64.00001], [-64.5, -65, -3e38]],
    [[1, 2, 3], [4, 5, 6]],
    5,
    {"token_ids": [ROOT, 1, 2, 0, 0, 0], "scores": [0, -1, -64, -INF, -INF, -INF], "num_nodes": 3, "status": 1},
)
ROOT_ONLY = BuildVector(
    "a budget of zero is not short",
    [[-1, -2]],
    [[1, 2]],
    0,
    {"token_ids": [ROOT], "parents": [-1], "first_child": [-1], "tree_mask": [1], "num_nodes": 1, "status": 0},
)
CERTAIN = BuildVector(
    "mass one: the parent before its child, a nephew before his uncle",
    [[0, -1], [0, -1]],
    [[1, 2], [3, 4]],
    3,
    {"token_ids": [ROOT, 1, 3, 4], "parents": [-1, 0, 1, 1], "scores": [0, 0, 0, -1], "num_nodes": 4},
)
BUILDS = [G1, G2, G2_ALL_EQUAL, G3, G4, FLOOR, ROOT_ONLY, CERTAIN]

# target_tokens on the tree of G1 -> accepted_path, acceptance_length, bonus_token
G1_ACCEPTS = [
    ([11, 21, 31, 1, 1, 1, 1, 1], [0, 1, 2, 4], 4, 1),
    ([11, 21, 0, 0, 31, 0, 0, 0], [0, 1, 2, -1], 3, 0),
    ([12, 7, 7, 21, 7, 8, 7, 7], [0, 3, 5, -1], 3, 8),
    ([11, 22, 5, 5, 5, 5, 9, 5], [0, 1, 6, -1], 3, 9),
    ([5, 5, 5, 5, 5, 5, 5, 5], [0, -1, -1, -1], 1, 5),
]

# sgl-kernel/tests/speculative/test_eagle_utils.py; request 1 links a higher index before a lower one.
G5 = {
    "candidates": [[0, 1, 2, 3, 4, 5], [7, 8, 9, 10, 11, 12]],
    "next_token": [[1, 2, -1, 4, 5, -1], [4, 2, 3, -1, 5, -1]],
    "next_sibling": [[-1, 3, -1, -1, -1, -1], [-1, -1, -1, -1, 1, -1]],
    "target": [[3, 18, 18, 4, 5, 18], [11, 18, 18, 18, 12, 18]],
    "predicts": [3, -1, -1, 4, 5, 18, 11, -1, -1, -1, 12, 18],
    "accept_index": [[0, 3, 4, 5], [6, 10, 11, -1]],
    "accept_token_num": [3, 2],
    "parents": [[-1, 0, 1, 0, 3, 4], [-1, 0, 1, 2, 0, 4]],
    "accepted_path": [[0, 3, 4, 5], [0, 4, 5, -1]],
    "acceptance_length": [4, 3],
    "bonus_token": [18, 18],
    "draft_horizon": 3,
}

# SGLang's reconstruct_indices_from_tree_mask
G6 = {
    "mask": [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]],
    "seq_len": 12,
    "next_token": [1, -1, 3, -1],
    "next_sibling": [-1, 2, -1, -1],
    "positions": [12, 13, 13, 14],
    "tree_mask": [1, 3, 5, 13],
    "parents": [-1, 0, 0, 2],
}
