# SPDX-License-Identifier: Apache-2.0
"""A fall of tok/s, split: planted changes of acceptance and of a round's time are told apart, in frame and page."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from asv_writer import AsvDirectory, benchmark, git_repository

from kdbench import decode_workloads
from kdbench.analysis import decode_split
from kdbench.report import build
from kdbench.results import load

CHAIN, PLAIN, SIMULATED = "tiny-chain-n4", "tiny-ar-n4", "kimi-moe-ddtree-b64-n16-sim75"
TPOT, ACCEPTANCE = decode_workloads.SERIES["tpot"], decode_workloads.SERIES["acceptance_length"]


def row(name: str, workload: str, order: int, value: float, **more: Any) -> dict[str, Any]:
    params = json.dumps({"backend": "cpu", "workload": workload})
    place = {"machine": "box", "env": "e", "commit": f"{order:040x}", "date": pd.NaT, "order": order}
    return {"name": name, "params": params, **place, "value": value, "status": "ok", **more}


def frame(*steps: tuple[float, float | None], workload: str = CHAIN) -> pd.DataFrame:
    """One commit a (seconds a round, acceptance_length); None where the latter was not measured."""
    rows = []
    for order, (round_s, accepted) in enumerate(steps):
        rows.append(row(TPOT, workload, order, round_s / (accepted or 1.0)))
        if accepted is not None:
            rows.append(row(ACCEPTANCE, workload, order, accepted))
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("after", "cause", "words"),
    [
        ((0.010, 3.2), "acceptance", "drafts are right less often"),
        ((0.0125, 4.0), "round", "a round is slower"),
        ((0.0125, 3.2), "both", "drafts are right less often and a round is slower"),
        ((0.010, 4.8), "acceptance", "drafts are right more often"),
        ((0.008, 4.0), "round", "a round is faster"),
        ((0.008, 4.8), "both", "drafts are right more often and a round is faster"),
        ((0.008, 3.2), "offset", "the two cancel out"),
        # A round became faster, and acceptance fell by more than that is worth.
        ((0.0095, 3.2), "acceptance", "drafts are right less often"),
        ((0.010, 4.0), "", ""),
        ((0.0101, 3.98), "", ""),
        ((0.0101, 3.95), "acceptance", "drafts are right less often"),
    ],
)
def test_a_planted_change_is_put_down_to_its_cause(after: tuple[float, float], cause: str, words: str) -> None:
    split = decode_split(frame((0.010, 4.0), after))
    first, second = split.to_dict("records")
    assert (first["before"], first["cause"], first["sentence"]) == ("", "", "")
    assert math.isnan(first["tok_s_change"])
    assert second["before"] == first["commit"]
    assert second["cause"] == cause
    assert words in second["sentence"]
    assert (second["sentence"] == "") == (cause == "")
    assert second["round_s"] == pytest.approx(after[0])
    assert second["tok_s"] == pytest.approx(4 * after[1] / after[0])
    # The law that the page is about.
    assert 1 + second["tok_s_change"] == pytest.approx((1 + second["acceptance_change"]) / (1 + second["round_change"]))


def test_numbers_stand_in_the_sentence() -> None:
    split = decode_split(frame((0.010, 4.0), (0.0125, 4.0)))
    assert split["sentence"][1] == (
        "tok/s \N{MINUS SIGN}20.0\u202f%: a round is slower (acceptance_length 0.0\u202f%, round time +25.0\u202f%)"
    )


def test_plain_decoding_has_an_acceptance_of_one() -> None:
    split = decode_split(frame((0.010, None), (0.012, None), workload=PLAIN))
    assert list(split["acceptance_length"]) == [1.0, 1.0]
    assert list(split["cause"]) == ["", "round"]
    assert split["tok_s"][0] == pytest.approx(400)


def test_an_acceptance_that_was_not_measured_is_no_guess() -> None:
    split = decode_split(frame((0.010, 4.0), (0.02, None)))
    assert split["cause"][1] == "unknown"
    assert math.isnan(split["round_s"][1])
    assert "was not measured at both commits" in split["sentence"][1]


def test_series_are_kept_apart_and_compared_with_their_own_past() -> None:
    both = pd.concat([frame((0.010, 4.0), (0.010, 2.0)), frame((0.5, 3.0), (0.4, 3.0), workload=SIMULATED)])
    split = decode_split(both).set_index(["workload", "order"])
    assert split.loc[(CHAIN, 1), "cause"] == "acceptance"
    assert split.loc[(SIMULATED, 1), "cause"] == "round"
    told = split.loc[(SIMULATED, 1)]
    assert (told["model"], told["mode"], told["tree_budget"], told["batch"], told["simulated"]) == (
        "kimi-moe",
        "ddtree",
        64,
        16,
        75,
    )


def test_failures_other_series_and_strange_names_are_passed_over() -> None:
    rows = [
        row(TPOT, CHAIN, 0, math.nan, status="failed"),
        row(TPOT, CHAIN, -1, 0.01),
        row(TPOT, "something else", 0, 0.01),
        row("bench_tree_build.TreeBuild.kern_hot", CHAIN, 0, 0.01),
    ]
    assert decode_split(pd.DataFrame(rows)).empty
    assert decode_split(pd.DataFrame()).empty


def test_every_name_of_the_table_is_understood() -> None:
    rows = [row(TPOT, name, 0, 0.01) for name in decode_workloads.REGISTRY]
    for found in decode_split(pd.DataFrame(rows)).to_dict("records"):
        workload = decode_workloads.get(found["workload"])
        assert (found["model"], found["mode"], found["tree_budget"], found["batch"]) == (
            workload.model,
            workload.mode,
            workload.tree_budget,
            workload.batch,
        )
        assert found["simulated"] == round(100 * workload.simulated_accept)


class TestReport:
    @pytest.fixture
    def page(self, tmp_path: Path) -> tuple[dict[str, Any], str]:
        commits = git_repository(tmp_path / "repo", ["first", "drafter spoilt", "round slower"])
        names = [PLAIN, CHAIN, SIMULATED]
        params = {"workload": names, "backend": ["cpu"]}
        directory = AsvDirectory(
            tmp_path / "results",
            [
                benchmark(TPOT, params=params),
                benchmark(ACCEPTANCE, unit="tokens", direction="higher", params={**params, "workload": names[1:]}),
            ],
        )
        for day, (round_s, accepted) in enumerate([(0.010, 4.0), (0.010, 3.0), (0.014, 3.0)]):
            cells = [[[value] * 6] * 5 for value in (round_s, round_s / accepted, 2 * round_s / accepted)]
            directory.add(commits[day], {TPOT: cells, ACCEPTANCE: [[[accepted]], [[accepted]]]}, day=day)
        return build(tmp_path / "results", tmp_path / "repo")

    def test_the_document_splits_every_commit(self, page: tuple[dict[str, Any], str]) -> None:
        found = [entry for entry in page[0]["decode"] if entry["workload"] == CHAIN]
        assert [entry["cause"] for entry in found] == [None, "acceptance", "round"]
        assert found[0]["tok_s_change"] is None
        json.dumps(page[0], allow_nan=False)

    def test_the_page_says_which_it_was(self, page: tuple[dict[str, Any], str]) -> None:
        text = page[1]
        assert "The decode loop" in text
        assert "a round is slower" in text
        assert "4 × <bdi>chain</bdi>" in text
        assert text.count("simulated acceptance") == 1
        # 4 requests, 3 tokens a round, 14 ms a round; three times plain decoding.
        assert "857.1" in text
        assert "3.00 ×" in text

    def test_without_the_loop_there_is_no_section(self, tmp_path: Path) -> None:
        commits = git_repository(tmp_path / "repo", ["first"])
        directory = AsvDirectory(tmp_path / "results", [benchmark("s.kern_x")])
        directory.add(commits[0], {"s.kern_x": [[[1e-3] * 20] * 5]})
        content, text = build(tmp_path / "results", tmp_path / "repo")
        assert content["decode"] == []
        assert "The decode loop" not in text

    def test_the_frame_of_a_directory_gives_the_same(self, page: tuple[dict[str, Any], str], tmp_path: Path) -> None:
        split = decode_split(load(tmp_path / "results", tmp_path / "repo"))
        assert len(split) == len(page[0]["decode"]) == 9
