# SPDX-License-Identifier: Apache-2.0
"""The draft tree, what accepting it gives, and the invariants that every draft tree has."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from kdbench.abi import RequestStatus
from kdbench.arrays import Array, to_numpy
from kdbench.errors import InvalidTree
from kdbench.tree_invariants import Ints, closure, depths, links, problems


@dataclass(frozen=True, eq=False, kw_only=True)
class DraftTree:
    """A batch of draft trees, as tree_build writes them (arXiv 2604.12989).

    Node 0 is the root; a parent's index is below its children's; lower-rank siblings come first. Entries at and beyond
    ``num_nodes[b]`` are pads. B is the batch, N = tree_budget + 1 the nodes with the root, W = ceil(N / 64).

    Attributes:
        token_ids: i32[B, N]; the root's is the last committed token, a pad's is 0.
        parents: i32[B, N]; -1 for root and pads.
        depths: i32[B, N]; 0 for root and pads.
        positions: i32[B, N]; committed length + depth, the committed length itself for pads.
        first_child, next_sibling: i32[B, N]; child and sibling lists in ascending index, -1 where they end.
        tree_mask: u64[B, N, W]; bit j of row i says that node i attends node j: ancestors and self, none for pads.
        scores: f32[B, N]; sum of log-probs from the root, -inf for pads.
        num_nodes: i32[B]; the root included.
        status: i32[B]; ``kdbench.native.RequestStatus`` bits.
        dfs_order: i32[B, N] or None; node indices in pre-order, then -1.
        expected_lengths: f32[B, N] or None; sum of exp(score) over nodes 0 to i, the acceptance_length that the drafter
            expects of the tree cut after node i; pads repeat the last.
        tree_budget: draft nodes asked for, the root excluded.
        draft_horizon: deepest level a node may have.
    """

    token_ids: Array
    parents: Array
    depths: Array
    positions: Array
    first_child: Array
    next_sibling: Array
    tree_mask: Array
    scores: Array
    num_nodes: Array
    status: Array
    tree_budget: int
    draft_horizon: int
    dfs_order: Array | None = None
    expected_lengths: Array | None = None

    def to_numpy(self) -> DraftTree:
        """The same tree in host memory."""
        host: dict[str, Any] = {name: to_numpy(array) for name, array in self.arrays().items()}
        return dataclasses.replace(self, **host)

    def arrays(self) -> dict[str, Array]:
        """The array fields by name; the optional ones only when the tree has them."""
        names = [field.name for field in dataclasses.fields(self) if field.name not in ("tree_budget", "draft_horizon")]
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def validate(self) -> None:
        """Check every request of a tree in host memory.

        Raises:
            InvalidTree: naming the request, the node and the invariant that is broken.
        """
        host = self.to_numpy()
        for request in range(host.token_ids.shape[0]):
            for node, problem in problems(host, request):
                where = f"request {request}" + ("" if node is None else f", node {node}")
                raise InvalidTree(f"{where}: {problem}")

    @classmethod
    def from_parents(
        cls, token_ids: Array, parents: Array, num_nodes: Array, seq_lens: Array, draft_horizon: int
    ) -> DraftTree:
        """The tree that ``parents`` describes, in host memory: depths, links and the mask as ancestor closure.

        Args:
            token_ids, parents: i32[B, N]; a parent's index must be below its child's, the root's is -1.
            num_nodes: i32[B], 1 to N.
            seq_lens: i32[B] committed tokens.
            draft_horizon: deepest level allowed.

        Returns:
            A tree whose scores are 0 for real nodes, since nobody scored it.

        Raises:
            InvalidTree: a count, a parent or a depth out of range.
        """
        tokens, above, counts, lengths = (np.asarray(to_numpy(a)) for a in (token_ids, parents, num_nodes, seq_lens))
        batch, nodes = above.shape
        tree = blank_tree(tokens[:, 0], lengths, nodes - 1, draft_horizon)
        for b in range(batch):
            count = int(counts[b])
            if not 1 <= count <= nodes:
                raise InvalidTree(f"request {b}: num_nodes is {count}, outside 1 to {nodes}")
            bad = np.flatnonzero((above[b, 1:count] < 0) | (above[b, 1:count] >= np.arange(1, count)))
            if bad.size:
                node = int(bad[0]) + 1
                raise InvalidTree(f"request {b}, node {node}: parent {above[b, node]} is not an earlier node")
            real = above[b, :count].copy()
            real[0] = -1
            levels = depths(real)
            if int(levels.max()) > draft_horizon:
                raise InvalidTree(f"request {b}: depth {levels.max()} is beyond draft_horizon {draft_horizon}")
            tree.token_ids[b, :count] = tokens[b, :count]
            tree.parents[b, :count] = real
            tree.depths[b, :count] = levels
            tree.positions[b, :count] += levels
            tree.first_child[b, :count], tree.next_sibling[b, :count] = links(real)
            tree.tree_mask[b, :count] = closure(real, tree.tree_mask.shape[2])
            tree.scores[b, :count] = 0
            tree.num_nodes[b] = count
            tree.status[b] = RequestStatus.SHORT_TREE if count < nodes else 0
        return tree


@dataclass(frozen=True, eq=False, kw_only=True)
class Acceptance:
    """What tree_accept answers; D is draft_horizon.

    Attributes:
        accepted_path: i32[B, D+1]; node indices from the root, strictly increasing, then -1.
        acceptance_length: i32[B]; entries of the path = tokens the round emits, the bonus included.
        bonus_token: i32[B]; the target's token after the last accepted node.
        status: i32[B]; ``kdbench.native.RequestStatus`` bits.
        source_slots: i32[B, D+1]; seq_lens + accepted_path, -1 behind the path; None unless asked for.
    """

    accepted_path: Array
    acceptance_length: Array
    bonus_token: Array
    status: Array
    source_slots: Array | None = None

    def arrays(self) -> dict[str, Array]:
        """The fields that are there, by name."""
        fields = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        return {name: array for name, array in fields if array is not None}

    def to_numpy(self) -> Acceptance:
        """The same answer in host memory."""
        return Acceptance(**{name: to_numpy(array) for name, array in self.arrays().items()})


@dataclass(frozen=True, eq=False, kw_only=True)
class DraftTopk:
    """What draft_topk answers.

    Attributes:
        log_probs: f32[..., K]; the K largest log-softmax values, descending.
        token_ids: i32[..., K]; their tokens, equal values by lowest id.
        status: i32[...]; ``kdbench.native.RequestStatus`` bits of each row.
    """

    log_probs: Array
    token_ids: Array
    status: Array

    def to_numpy(self) -> DraftTopk:
        """The same answer in host memory."""
        return DraftTopk(**{field.name: to_numpy(getattr(self, field.name)) for field in dataclasses.fields(self)})


def blank_tree(
    root_token_ids: Ints,
    seq_lens: Ints,
    tree_budget: int,
    draft_horizon: int,
    *,
    dfs_order: bool = False,
    expected_lengths: bool = False,
) -> DraftTree:
    """Root-only trees in host memory, every other entry a pad."""
    batch, nodes = len(root_token_ids), tree_budget + 1

    def filled(value: int) -> Ints:
        return np.full((batch, nodes), value, np.int32)

    tree = DraftTree(
        token_ids=filled(0),
        parents=filled(-1),
        depths=filled(0),
        positions=filled(0) + np.asarray(seq_lens, np.int32)[:, None],
        first_child=filled(-1),
        next_sibling=filled(-1),
        tree_mask=np.zeros((batch, nodes, -(-nodes // 64)), np.uint64),
        scores=np.full((batch, nodes), -np.inf, np.float32),
        num_nodes=np.ones(batch, np.int32),
        status=np.full(batch, RequestStatus.SHORT_TREE if tree_budget else 0, np.int32),
        dfs_order=filled(-1) if dfs_order else None,
        expected_lengths=np.ones((batch, nodes), np.float32) if expected_lengths else None,
        tree_budget=tree_budget,
        draft_horizon=draft_horizon,
    )
    tree.token_ids[:, 0] = root_token_ids
    tree.tree_mask[:, 0, 0] = 1
    tree.scores[:, 0] = 0
    if tree.dfs_order is not None:
        tree.dfs_order[:, 0] = 0
    return tree
