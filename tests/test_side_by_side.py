# SPDX-License-Identifier: Apache-2.0
"""What asv's tables are read as, and how the judges are put side by side."""

from __future__ import annotations

import pytest

from kdbench.gate import side_by_side

SERIES = "bench_tree_build.TreeBuild.kern_hot('b64-d7-k16-n1-sharp', 'cpu')"
OUTPUT = """
| Change   | Before [ca29017a] <main~4>   | After [4b356be8] <main~1>   | Ratio   | Benchmark (Parameter)  |
|----------|------------------------------|-----------------------------|---------|------------------------|
|          | n/a                          | n/a                         | n/a     | {other} |
| {mark} | 12.3±5μs                     | 10.5±3μs                    | ~0.85   | {series} |
"""


@pytest.mark.parametrize(
    ("mark", "said"), [("+", "slower"), ("-", "faster"), (" ", "same"), ("!", "failed"), ("x", "not comparable")]
)
def test_the_first_column_of_asv_compare_is_its_verdict(mark: str, said: str) -> None:
    output = OUTPUT.format(mark=mark, series=SERIES, other=SERIES.replace("cpu", "cuda"))
    assert side_by_side.mark_of(output, SERIES) == said
    assert side_by_side.mark_of(output, SERIES.replace("b64", "b65")) == "no line"


def test_the_table_counts_what_was_said() -> None:
    asv = {"asv_continuous": "same", "asv_compare": "same", "asv_compare_2": "slower"}
    records = [
        {"slowdown": 0.0, **asv, "kdbench_compare": "SAME", "ratio": 0.999},
        {"slowdown": 0.03, **asv, "kdbench_compare": "SLOWER", "ratio": 1.031},
        {"slowdown": 0.03, **asv, "kdbench_compare": "AMBIGUOUS", "ratio": 1.02},
        {"slowdown": 0.05, **asv},
    ]
    rows = side_by_side.table(records).splitlines()[2:]
    assert rows[0] == "| none | 1 same | 1 same | 1 slower | 1 SAME | -0.10% … -0.10% |"
    assert rows[1] == "| +3% | 2 same | 2 same | 2 slower | 1 AMBIGUOUS, 1 SLOWER | +2.00% … +3.10% |"
    assert rows[2] == "| +5% | 1 same | 1 same | 1 slower |  |  |"
