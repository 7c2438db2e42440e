# SPDX-License-Identifier: Apache-2.0
"""What DDTree is without native kernels, or with somebody else's: the things that ours are measured against."""
