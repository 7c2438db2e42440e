# SPDX-License-Identifier: Apache-2.0
"""The sweep that compares speculation with plain decoding: what it finds, and that it can find a fault."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

import pytest

from kdbench import decode_sweep
from kdbench.decode import Decoded, Request, Rounds


class Loop:
    """A loop that says given texts: plain ones, and others when it speculates."""

    class Engine:
        dtype = "f32"

    engine = Engine()

    def __init__(self, plain: Sequence[Sequence[int]], speculated: Sequence[Sequence[int]]) -> None:
        self._texts = {"ar": plain, "ddtree": speculated}

    def generate(self, requests: Sequence[Request], rounds: Rounds) -> list[Decoded]:
        texts = self._texts[rounds.mode]
        assert len(texts) == len(requests)
        return [Decoded(rounds.mode, 1, tuple(text), finish_reason="length", rounds=1, accepted=1) for text in texts]


def test_texts_are_equal_or_near_ties_or_wrong() -> None:
    plain = [[5, 6, 7], [5, 6, 7], [5, 6, 7], [5, 6, 7]]
    found = [[5, 6, 7], [5, 9, 9], [5, 6, 9], [5, 6]]
    gaps = {2: 1e-6, 3: 0.1}  # by the tokens known where a text parts: the prompt's and those before

    def judge(text: Sequence[int], first: int) -> list[tuple[int, float]]:
        assert first == len(text) - 1
        return [(0, gaps[len(text)])]

    requests = [Request((1,), 3)] * 4
    (record,) = decode_sweep.sweep(Loop(plain, found), requests, [Rounds("ddtree", 8)], lambda: judge)
    assert record["widest_gap"] == 1e-6
    assert (record["texts"], record["equal"], record["near_ties"], record["wrong"]) == (4, 1, 1, [2, 3])
    assert dataclasses.asdict(Rounds("ddtree", 8))["tree_budget"] == record["tree_budget"]


def test_the_shipped_model_says_the_same_however_it_speculates(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    code = decode_sweep.main(["--prompts", "3", "--new-tokens", "16", "--tree-budgets", "8", "--batch", "2"])
    document = json.loads(capsys.readouterr().out)
    assert code == 0
    assert [way["equal"] for way in document["ways"]] == [3] * 4
    assert max(way["acceptance_length"] for way in document["ways"]) > 1.5  # drafts were taken


@pytest.mark.gpu
def test_the_shipped_model_on_the_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    for dtype in ("f32", "bf16"):
        assert decode_sweep.main(["--backend", "cuda", "--dtype", dtype, "--prompts", "16"]) == 0
        ways = json.loads(capsys.readouterr().out)["ways"]
        assert all(way["equal"] + way["near_ties"] == 16 and way["equal"] >= 8 for way in ways)
