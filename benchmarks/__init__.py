# SPDX-License-Identifier: Apache-2.0
"""asv suites: parameters and one-line bodies; what a sample is stands in ``kdbench.timing``."""

from kdbench import asv_benchmark

asv_benchmark.register()
