# SPDX-License-Identifier: Apache-2.0
"""Which commit made a series slower: a binary search whose questions are paired comparisons."""
