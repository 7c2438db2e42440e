# SPDX-License-Identifier: Apache-2.0
"""tree_accept: the longest path of a draft tree that agrees with the target."""

from kdbench import asv_benchmark, native, workloads


class TreeAccept(asv_benchmark.KernelSuite):
    """Seconds a call of tree_accept."""

    kernel = "tree_accept"
    params = (workloads.names("tree_accept"), list(native.BACKENDS))

    def kern_hot(self, workload, backend):
        return self.subject.clock("hot")

    def kern_cold(self, workload, backend):
        return self.subject.clock("cold")
