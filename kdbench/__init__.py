# SPDX-License-Identifier: Apache-2.0
"""kdbench: benchmarks and regression tracking for a native DDTree speculative-decoding engine."""

__version__ = "0.1.0"
