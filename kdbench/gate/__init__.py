# SPDX-License-Identifier: Apache-2.0
"""The gate: verdicts of one range of commits, held against the reviewed limits, as one exit code."""
