# SPDX-License-Identifier: Apache-2.0
"""tree_build: from a drafter's top-k log-probs to the best draft tree."""

from kdbench import asv_benchmark, native, workloads


class TreeBuild(asv_benchmark.KernelSuite):
    """Seconds a call of tree_build."""

    kernel = "tree_build"
    params = (workloads.names("tree_build"), list(native.BACKENDS))

    def kern_hot(self, workload, backend):
        return self.subject.clock("hot")

    def kern_cold(self, workload, backend):
        return self.subject.clock("cold")
