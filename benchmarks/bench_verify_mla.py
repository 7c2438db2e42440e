# SPDX-License-Identifier: Apache-2.0
"""verify_mla: attention with its projections, each of its two modes on the same inputs; cold is the primary number."""

from kdbench import asv_benchmark, native, workloads


class VerifyMla(asv_benchmark.KernelSuite):
    """Seconds a call of verify_mla."""

    kernel = "verify_mla"
    params = (workloads.names("verify_mla"), list(native.BACKENDS))

    def kern_hot(self, workload, backend):
        return self.subject.clock("hot")

    def kern_cold(self, workload, backend):
        return self.subject.clock("cold")
