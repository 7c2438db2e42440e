# SPDX-License-Identifier: Apache-2.0
"""Planted slowdowns: one number differs, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from kdbench.bisect import planted
from kdbench.errors import KdbenchError

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("kernel", ["tree_accept", "tree_build", "draft_topk", "kv_compact", "verify_attn"])
def test_planting_again_replaces_the_number_and_the_mark(kernel: str) -> None:
    source = (ROOT / planted.source_of(kernel)).read_text()
    once = planted.plant(source, kernel, 100, "a")
    assert once.count("volatile int planted") == 1
    again = planted.plant(once, kernel, 250, "b")
    assert again == once.replace("planted < 100;", "planted < 250;").replace("// planted: a", "// planted: b")
    assert planted.plant(again, kernel, 100, "a") == once


def test_a_source_without_the_entry_is_refused() -> None:
    with pytest.raises(KdbenchError, match="has 0 entries kdt_tree_accept"):
        planted.plant("int main() {}\n", "tree_accept", 100, "a")
