# SPDX-License-Identifier: Apache-2.0
"""merge_attn_states: two attention results over disjoint slots, e.g. a prefix's and a tree's, as one."""

from kdbench import asv_benchmark, native, workloads


class MergeAttnStates(asv_benchmark.KernelSuite):
    """Seconds a call of merge_attn_states."""

    kernel = "merge_attn_states"
    params = (workloads.names("merge_attn_states"), list(native.BACKENDS))

    def kern_hot(self, workload, backend):
        return self.subject.clock("hot")

    def kern_cold(self, workload, backend):
        return self.subject.clock("cold")
