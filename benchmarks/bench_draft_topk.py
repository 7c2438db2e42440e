# SPDX-License-Identifier: Apache-2.0
"""draft_topk: the likeliest tokens of each drafted position, from logits."""

from kdbench import asv_benchmark, native, workloads


class DraftTopk(asv_benchmark.KernelSuite):
    """Seconds a call of draft_topk."""

    kernel = "draft_topk"
    params = (workloads.names("draft_topk"), list(native.BACKENDS))

    def kern_hot(self, workload, backend):
        return self.subject.clock("hot")

    def kern_cold(self, workload, backend):
        return self.subject.clock("cold")
