# SPDX-License-Identifier: Apache-2.0
"""Our kernels beside other people's: same inputs, outputs compared first, timed interleaved in one process.

An implementation is one adapter (``kdbench.peers.adapter.Peer``); ``kdbench.peers.roster`` lists them all. What is not
installed is skipped with a reason, what is wrong is refused with its error, and only the rest gets a time.
"""
