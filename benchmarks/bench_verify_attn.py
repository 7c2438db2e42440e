# SPDX-License-Identifier: Apache-2.0
"""verify_attn: latent attention of the tree's nodes over prefix and tree; cold is the primary number."""

from kdbench import asv_benchmark, native, workloads


class VerifyAttn(asv_benchmark.KernelSuite):
    """Seconds a call of verify_attn."""

    kernel = "verify_attn"
    params = (workloads.names("verify_attn"), list(native.BACKENDS))

    def kern_hot(self, workload, backend):
        return self.subject.clock("hot")

    def kern_cold(self, workload, backend):
        return self.subject.clock("cold")
