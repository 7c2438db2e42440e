# SPDX-License-Identifier: Apache-2.0
"""kv_compact: the accepted nodes' rows of the cache to the slots behind the prefix, in every layer."""

from kdbench import asv_benchmark, native, workloads


class KvCompact(asv_benchmark.KernelSuite):
    """Seconds a call of kv_compact."""

    kernel = "kv_compact"
    params = (workloads.names("kv_compact"), list(native.BACKENDS))

    def kern_hot(self, workload, backend):
        return self.subject.clock("hot")

    def kern_cold(self, workload, backend):
        return self.subject.clock("cold")
