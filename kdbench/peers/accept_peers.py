# SPDX-License-Identifier: Apache-2.0
"""Who else accepts trees: sgl-kernel's verify_tree_greedy, and the paper's walk over dictionaries."""

from __future__ import annotations

import importlib

import numpy as np

from kdbench.arrays import to_numpy
from kdbench.baselines import tree_walk
from kdbench.peers.adapter import TARGETS_TO_PATH, WALL, HostOutputs, Outputs, Peer, Prepared
from kdbench.peers.inputs import Inputs
from kdbench.peers.libraries import Libraries
from kdbench.sglang_layout import to_sglang
from kdbench.tree import DraftTree


class PythonWalk(Peer):
    """Dictionaries followed in Python, in host memory; they were made when the tree was."""

    name = "Python walk"
    kernel = "tree_accept"
    scope = TARGETS_TO_PATH
    clock = WALL
    backends = ("cpu",)

    def missing(self, libraries: Libraries) -> str | None:
        """Never."""
        return None

    def version(self, libraries: Libraries) -> str:
        """It is part of kdbench."""
        return "kdbench.baselines.tree_walk"

    def prepare(self, inputs: Inputs) -> Prepared:
        """The dictionaries."""
        host, horizon = inputs.host, int(inputs.workload.shape["horizon"])
        maps = tree_walk.child_maps(host["token_ids"], host["parents"], host["num_nodes"])

        def launch() -> Outputs:
            answer = tree_walk.accept(maps, host["target_tokens"], horizon)
            return {
                "accepted_path": answer.accepted_path,
                "acceptance_length": answer.acceptance_length,
                "bonus_token": answer.bonus_token,
            }

        return Prepared(launch, dict, "the dictionaries are made outside the clock")


class SglangAccept(Peer):
    """verify_tree_greedy: a thread a request, along child and sibling links."""

    name = "SGLang verify_tree_greedy"
    kernel = "tree_accept"
    scope = TARGETS_TO_PATH

    def missing(self, libraries: Libraries) -> str | None:
        """sgl-kernel."""
        return libraries.missing("sgl_kernel")

    def version(self, libraries: Libraries) -> str:
        """sgl-kernel's."""
        return libraries.version("sgl_kernel")

    def prepare(self, inputs: Inputs) -> Prepared:
        """The tree in SGLang's arrays, and outputs that start as -1."""
        ops = importlib.import_module("torch").ops.sgl_kernel
        host, horizon = inputs.host, int(inputs.workload.shape["horizon"])
        batch, nodes = host["parents"].shape
        zeros = np.zeros(batch, np.int32)
        theirs = to_sglang(
            DraftTree.from_parents(host["token_ids"], host["parents"], host["num_nodes"], zeros, horizon)
        )
        names = ("candidates", "retrive_index", "retrive_next_token", "retrive_next_sibling")
        read = [inputs.device(getattr(theirs, name)) for name in names]
        read.append(inputs.device(host["target_tokens"].astype(np.int64)))
        written = {
            "predicts": inputs.device(np.full(batch * nodes, -1, np.int32)),
            "accept_index": inputs.device(np.full((batch, horizon + 1), -1, np.int32)),
            "accept_token_num": inputs.device(zeros),
        }

        def launch() -> Outputs:
            ops.verify_tree_greedy(*written.values(), *read)
            return written

        def to_host(outputs: Outputs) -> HostOutputs:
            flat = to_numpy(outputs["accept_index"])
            length = to_numpy(outputs["accept_token_num"]) + 1
            # It writes what it accepts and leaves the rest of its outputs as they were.
            real = np.arange(horizon + 1) < length[:, None]
            path = np.where(real, flat - nodes * np.arange(batch)[:, None], -1).astype(np.int32)
            last = np.take_along_axis(flat, length[:, None].astype(np.int64) - 1, axis=1)[:, 0]
            bonus = to_numpy(outputs["predicts"])[np.clip(last, 0, batch * nodes - 1)]
            return {"accepted_path": path, "acceptance_length": length, "bonus_token": bonus}

        return Prepared(launch, to_host, "its outputs are set to -1 once, outside the clock")
