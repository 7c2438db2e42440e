# SPDX-License-Identifier: Apache-2.0
"""The loop's own work, on an engine that is a hash: joining, leaving, refusing, staying behind the device."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from fake_engine import FakeEngine, Letters, autoregressive

from kdbench import scheduler
from kdbench.decode import Decoded, DecodeLoop, Request, Rounds, summary
from kdbench.errors import KdbenchError


def requests(count: int, **fields: Any) -> list[Request]:
    return [Request(tuple(range(2, 5 + index)), 5 + 3 * index, **fields) for index in range(count)]


def loop(engine: FakeEngine, **options: Any) -> DecodeLoop:
    return DecodeLoop(engine, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("lag", [0, 1, 3])
@pytest.mark.parametrize("slots", [1, 2, 16])
@pytest.mark.parametrize("mode", ["ar", "ddtree"])
def test_every_request_gets_its_own_text(lag: int, slots: int, mode: str) -> None:
    engine = FakeEngine(slots, lag=lag)
    asked = requests(9, stop_tokens=(3, 40))
    found = loop(engine).generate(asked, Rounds(mode))
    assert [list(result.tokens) for result in found] == [autoregressive(request) for request in asked]
    assert not engine.slots
    for request, result in zip(asked, found, strict=True):
        last = result.tokens[-1]
        assert result.finish_reason == ("stop" if last in request.stop_tokens else "length")
        assert sum(result.histogram) == result.rounds == result.target_forwards
        assert sum(i * n for i, n in enumerate(result.histogram)) == result.accepted >= len(result.tokens) - 1
        assert result.acceptance_length == (result.accepted / result.rounds if result.rounds else None)
        assert mode != "ar" or result.acceptance_length in (1.0, None)


def test_requests_wait_for_pages_in_order() -> None:
    engine = FakeEngine(4, pages=60)
    order = [news.index for news in scheduler.run(engine, requests(6), Rounds()) if news.ended]
    assert sorted(order) == list(range(6))
    assert order.index(0) < order.index(5)


@pytest.mark.parametrize("lag", [0, 2])
def test_a_request_that_can_never_fit_is_refused_alone(lag: int) -> None:
    engine = FakeEngine(2, pages=60, lag=lag)
    asked = requests(4)
    asked.insert(1, Request(tuple(range(50)), 20))
    found = loop(engine).generate(asked)
    assert found[1].finish_reason == "refused"
    assert found[1].refusal == "the request needs 70 tokens of cache, and there are 60"
    assert found[1].tokens == ()
    assert (found[1].ttft_s, found[1].acceptance_length) == (None, None)
    for at in (0, 2, 3, 4):
        assert list(found[at].tokens) == autoregressive(asked[at])
    whole = summary(found)
    assert (whole.requests, whole.refused) == (5, 1)
    assert whole.tokens == sum(len(result.tokens) for result in found)
    assert whole.acceptance_length == sum(r.accepted for r in found) / sum(r.rounds for r in found)


def test_a_full_engine_that_nobody_leaves_refuses_instead_of_waiting() -> None:
    engine = FakeEngine(1)
    engine.admit(Request((5,), 3))
    (found,) = loop(engine).generate(requests(1))
    assert found.refusal == "no slot or too few pages are free"


def test_the_host_stays_behind_the_device_and_never_waits() -> None:
    engine = FakeEngine(2, lag=2)
    loop(engine).generate(requests(5))
    assert engine.deepest == scheduler.ROUNDS_IN_FLIGHT["cuda"]
    assert engine.waits == 0


def test_no_more_rounds_are_asked_for_than_could_emit() -> None:
    engine = FakeEngine(1, lag=1)
    loop(engine, in_flight=64).generate([Request((9, 9), 6)], Rounds("ar"))
    assert engine.deepest <= 6


def test_an_engine_that_emits_nothing_is_an_error_and_no_hang() -> None:
    with pytest.raises(KdbenchError, match="a round must emit one at least"):
        loop(FakeEngine(1, mute=True)).generate([Request((9,), 6)])


def test_leaving_a_stream_early_frees_its_slots() -> None:
    engine = FakeEngine(4, lag=1)
    stream = loop(engine).stream(requests(4))
    assert len(list(itertools.islice(stream, 3))) == 3
    assert engine.slots
    stream.close()  # type: ignore[attr-defined]
    assert not engine.slots


def test_chunks_add_up_and_never_end_within_a_character() -> None:
    engine = FakeEngine(1)
    engine.target.eos_token_ids = ()
    run = loop(engine, tokenizer=Letters())
    request = run.request("ab", max_new_tokens=40)
    assert request.prompt == (0, 97, 98)
    chunks = list(run.stream([request], Rounds("ar")))
    (last,) = [chunk.decoded for chunk in chunks if chunk.decoded]
    assert chunks[-1].decoded is last
    assert [token for chunk in chunks for token in chunk.tokens] == list(last.tokens)
    assert "".join(chunk.text for chunk in chunks) == last.text == bytes(last.tokens).decode("utf-8", "replace")


def test_times_are_those_of_what_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count(100.0, 0.5)
    monkeypatch.setattr(scheduler.time, "perf_counter", lambda: next(ticks))
    # 100 is the call; the first look sees the first token and that of the first round, the others one more each.
    (found,) = loop(FakeEngine(1)).generate([Request((8, 4), 5)], Rounds("ar"))
    assert found.ttft_s == 0.5
    assert found.tpot_s == pytest.approx(1.5 / 3)
    assert found.output_tok_s == pytest.approx(5 / 2.0)


def test_one_token_needs_no_round() -> None:
    (found,) = loop(FakeEngine(1)).generate([Request((8, 4), 1)])
    assert (found.rounds, len(found.tokens), found.tpot_s) == (0, 1, None)


def test_stage_seconds_come_from_a_run_of_their_own() -> None:
    engine = FakeEngine(2)
    plain = loop(engine).generate(requests(3))
    assert engine.profiled == 0
    assert all(result.stage_seconds == {} for result in plain)
    for result, before in zip(loop(engine).generate(requests(3), stages=True), plain, strict=True):
        assert result.stage_seconds == {"draft": 2.0, "verify": 6.0}
        assert result.tokens == before.tokens


def test_a_document_is_strict_json() -> None:
    import json

    found = loop(FakeEngine(1)).generate([Request((8, 4), 12), Request((), 1)][:1])[0]
    text = json.dumps(found.document(), allow_nan=False)
    assert json.loads(text)["target_forwards"] == found.rounds
    empty = json.dumps(Decoded(mode="ar", prompt_tokens=0).document(), allow_nan=False)
    assert json.loads(empty)["acceptance_length"] is None


def test_a_summary_of_nothing_knows_nothing() -> None:
    whole = summary([])
    assert (whole.tokens, whole.acceptance_length, whole.output_tok_s, whole.histogram) == (0, None, None, ())


def test_a_summary_takes_the_longest_time() -> None:
    slow = Decoded(mode="ar", prompt_tokens=1, tokens=(1, 2), output_tok_s=1.0, histogram=(0, 1))
    fast = Decoded(mode="ar", prompt_tokens=1, tokens=(1, 2, 3), output_tok_s=3.0, histogram=(0, 2, 1))
    whole = summary([slow, fast])
    assert math.isclose(whole.output_tok_s or 0, 5 / 2)
    assert whole.histogram == (0, 3, 1)
