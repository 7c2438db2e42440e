# SPDX-License-Identifier: Apache-2.0
"""Models that the decode engine runs: DeepSeek-V3 targets and DFlash drafters, their files, oracles and training."""
