# SPDX-License-Identifier: Apache-2.0
"""The suites of the decode loop as asv_runner sees them, their golden tokens, and what they time."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asv_runner.discovery import get_benchmark_from_name, list_benchmarks
from decode_models import prompts, write_pair

from kdbench import (
    decode_clock,
    decode_golden,
    decode_golden_writer,
    decode_subject,
    decode_workloads,
    kimi_shapes,
    lint_shapes,
    native,
    provenance,
    runner,
)
from kdbench.decode_golden import Golden
from kdbench.decode_workloads import BLOCK_SIZE, NEW_TOKENS, ROUNDS, SAMPLES
from kdbench.errors import KdbenchError
from kdbench.golden import DigestMismatch
from kdbench.timing import MeasuringError

SUITES = str(Path(__file__).parents[1] / "benchmarks")
BACKENDS = native.BACKENDS


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("safetensors")
    return write_pair(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def golden(pair: Path) -> Golden:
    pytest.importorskip("torch")
    entry = decode_golden_writer.entry(pair / "target", pair / "drafter", prompts(3))
    path = pair / "golden.json"
    decode_golden_writer.write("other", {**entry, "prompts": [], "tokens": [], "gaps": []}, path)
    decode_golden_writer.write("tiny", entry, path)
    assert decode_golden.load("other", path) is not None
    found = decode_golden.load("tiny", path)
    assert found is not None
    return found


@pytest.fixture
def shipped(pair: Path, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> Golden:
    """The small pair stands in for the shipped one."""
    monkeypatch.setattr(decode_subject, "shipped_model", lambda: (pair / "target", pair / "drafter"))
    monkeypatch.setattr(decode_golden, "load", lambda model: golden)
    for name in (provenance.DIRECTORY_VARIABLE, "ASV_COMMIT", "ASV_ENV_NAME"):
        monkeypatch.delenv(name, raising=False)
    return golden


def benchmark(series: str, workload: str, backend: str = "cpu", extra: dict[str, Any] | None = None) -> Any:
    name = decode_workloads.SERIES[series]
    listed = decode_workloads.names(
        "cuda" if series == "loop_ratio" else None, speculative=series == "acceptance_length"
    )
    index = listed.index(workload) * len(BACKENDS) + BACKENDS.index(backend)
    return get_benchmark_from_name(SUITES, f"{name}-{index}", extra_params=extra)


class TestTable:
    def test_names_say_what_they_are(self) -> None:
        for name, workload in decode_workloads.REGISTRY.items():
            assert name.startswith(f"{workload.model}-{workload.mode}-")
            assert f"-n{workload.batch}" in name
            assert ("-sim" in name) == workload.simulated == (workload.simulated_accept > 0)
            assert (f"-b{workload.tree_budget}-" in name) == (workload.mode == "ddtree")
            assert workload.simulated == (workload.model != "tiny" and workload.speculative)
            assert workload.model == "tiny" or workload.backends == ("cuda",)

    def test_all_modes_budgets_and_batches_are_there(self) -> None:
        for model in ("tiny", *kimi_shapes.MODELS):
            found = {(w.mode, w.tree_budget, w.batch) for w in decode_workloads.REGISTRY.values() if w.model == model}
            budgets = (16, 64, 256) if model != "tiny" else (8, 16, 64, 256)
            kinds = [("ar", 0), ("chain", 0), *(("ddtree", budget) for budget in budgets)]
            assert found == {(mode, budget, batch) for mode, budget in kinds for batch in (1, 4, 16)}

    def test_quick_is_few_and_on_the_cpu(self) -> None:
        quick = decode_workloads.names("cpu", "quick")
        assert 2 <= len(quick) <= 3
        assert quick == decode_workloads.names(tag="quick")

    def test_an_unknown_name_is_told(self) -> None:
        with pytest.raises(KdbenchError, match="there is no workload 'x'"):
            decode_workloads.get("x")

    @pytest.mark.parametrize("model", kimi_shapes.MODELS)
    def test_kimis_shapes_fit_each_other(self, model: str) -> None:
        target = kimi_shapes.target(model)
        kimi_shapes.drafter(model).check_fits(target)
        assert target.softmax_scale == pytest.approx(0.1308608, rel=1e-6)  # of yarn's factor 32
        assert (target.mixture is not None) == (model == "kimi-moe")


@pytest.fixture(scope="module")
def metadata() -> dict[str, Any]:
    """What asv discovers, by name."""
    text = io.StringIO()
    list_benchmarks(SUITES, text)
    return {entry["name"]: entry for entry in json.loads(text.getvalue())}


class TestDiscovery:
    def test_four_series_with_their_directions(self, metadata: dict[str, Any]) -> None:
        names = decode_workloads.SERIES
        told = {key: metadata[name] for key, name in names.items()}
        assert {key: (entry["type"], entry["unit"], entry["direction"]) for key, entry in told.items()} == {
            "tpot": ("decode", "seconds", "lower"),
            "acceptance_length": ("track", "tokens", "higher"),
            "output_tok_s": ("track", "tok/s", "higher"),
            "loop_ratio": ("track", "ratio", "lower"),
        }
        for entry in told.values():
            assert entry["version"] == "1"
            assert entry["workloads"]["kimi-dense-chain-n1-sim75"]["simulated"] is True
            assert entry["workloads"]["tiny-chain-n1"]["simulated"] is False
            assert lint_shapes.benchmark_entry(entry) == ""
        assert told["tpot"]["samples_per_process"] == SAMPLES
        assert not any("-ar-" in text for text in told["acceptance_length"]["params"][0])

    def test_the_runner_asks_for_what_is_there(self, metadata: dict[str, Any]) -> None:
        quick = runner.series_names(runner.MEASURED, ("cpu",), ("primary",), "quick")
        decode = [name for name in quick if "bench_decode" in name]
        assert decode == [
            "bench_decode.Decode.decode_tpot('tiny-ar-n1', 'cpu')",
            "bench_decode.Decode.decode_tpot('tiny-ddtree-b8-n1', 'cpu')",
            "bench_decode.DecodeAcceptance.track_acceptance_length('tiny-ddtree-b8-n1', 'cpu')",
        ]
        everything = runner.series_names(("decode",), BACKENDS, ("hot", "cold"))
        for name in everything:
            benchmark_name, _, rest = name.partition("(")
            workload, backend = (word.strip(" ')") for word in rest.split(","))
            assert repr(workload) in metadata[benchmark_name]["params"][0]
            assert backend in decode_workloads.get(workload).backends
        assert any("loop_ratio" in name for name in everything)
        assert not runner.series_names(("decode",), BACKENDS, ("hot",))


class TestGolden:
    GAPS = (0.5, 0.5, 0.0005, 0.5)

    def test_equal_and_shorter_texts_pass(self) -> None:
        assert decode_golden.check("x", (1, 2, 3), (1, 2, 3, 4), self.GAPS, "f32") == 0

    def test_a_near_tie_is_counted_and_what_follows_is_another_text(self) -> None:
        assert decode_golden.check("x", (1, 2, 9, 9), (1, 2, 3, 4), self.GAPS, "f32") == 1

    @pytest.mark.parametrize("found", [(1, 9, 3, 4), (9,), (1, 2, 3, 9)])
    def test_any_other_difference_is_a_wrong_engine(self, found: tuple[int, ...]) -> None:
        with pytest.raises(DigestMismatch, match=r"x: token \d is 9, and \d is golden"):
            decode_golden.check("x", found, (1, 2, 3, 4), self.GAPS, "bf16")

    def test_nothing_said_is_wrong(self) -> None:
        with pytest.raises(DigestMismatch, match="nothing was said"):
            decode_golden.check("x", (), (1,), (0.0,), "f32")

    def test_a_file_of_another_kind_is_told(self, tmp_path: Path) -> None:
        path = tmp_path / "golden.json"
        assert decode_golden.load("tiny", path) is None
        for text in ("[", '{"schema": "x"}', "[]", '{"schema": "kdbench/decode-golden/1", "models": {"tiny": {}}}'):
            path.write_text(text)
            decode_golden.load.cache_clear()
            with pytest.raises(KdbenchError, match=r"golden\.json"):
                decode_golden.load("tiny", path)

    def test_golden_tokens_are_the_best_and_the_gaps_are_theirs(self, golden: Golden, pair: Path) -> None:
        from decode_models import reference

        assert all(
            len(tokens) == NEW_TOKENS == len(gaps) for tokens, gaps in zip(golden.tokens, golden.gaps, strict=True)
        )
        text = [*golden.prompts[0], *golden.tokens[0]]
        logits = reference(pair / "target")(text)[len(golden.prompts[0]) - 1 : -1]
        top = np.sort(logits, 1)[:, -2:]
        np.testing.assert_allclose((top[:, 1] - top[:, 0]) / np.abs(logits).max(1), golden.gaps[0], atol=2e-3)

    def test_prompts_are_windows_of_the_texts(self) -> None:
        class Letters:
            def encode(self, text: str) -> list[int]:
                return list(text.encode())

        texts = ["short", *("".join(f"line {line} of text {at}\n" for line in range(60)) for at in range(9))]
        found = decode_golden_writer.held_out_prompts(Letters(), texts, 6)
        assert len(found) == 6
        assert all(24 <= len(tokens) <= 88 for tokens in found)
        assert all(bytes(tokens).decode() in text for tokens, text in zip(found, texts[1:], strict=False))
        assert len({tuple(tokens) for tokens in decode_golden_writer.held_out_prompts(Letters(), texts, 20)}) > 9
        with pytest.raises(KdbenchError, match="no held-out text has 40 lines"):
            decode_golden_writer.held_out_prompts(Letters(), ["short"], 2)


class TestMeasuring:
    @pytest.mark.parametrize("workload", ["tiny-ar-n1", "tiny-chain-n4", "tiny-ddtree-b16-n1"])
    def test_tpot_is_a_rounds_time_over_acceptance(
        self,
        shipped: Golden,
        cpu_library: native.Library,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        workload: str,
    ) -> None:
        monkeypatch.setenv(provenance.DIRECTORY_VARIABLE, str(tmp_path))
        chosen = benchmark("tpot", workload, extra={"repeat": 3})
        assert chosen.do_setup() is False
        answer = chosen.do_run()
        assert answer["number"] == 1
        (line,) = (tmp_path / "unknown-unknown.jsonl").read_text().splitlines()
        record = json.loads(line)
        assert record["schema"] == provenance.MEASUREMENT
        timing, told = record["timing"], record["workload"]
        assert timing["samples_s"] == answer["samples"]
        assert timing["samples_s"] == pytest.approx([s / timing["acceptance_length"] for s in timing["round_s"]])
        batch = decode_workloads.get(workload).batch
        assert sum(timing["histogram"]) == 3 * ROUNDS * batch
        accepted = sum(i * n for i, n in enumerate(timing["histogram"]))
        assert timing["acceptance_length"] == pytest.approx(accepted / (3 * ROUNDS * batch))
        assert 1 <= timing["acceptance_length"] <= BLOCK_SIZE
        assert told["digest_ok"] is True
        assert told["golden"] == shipped.sha256
        assert told["model_sha256"] == shipped.model_sha256

    def test_acceptance_is_that_of_the_timed_rounds(self, shipped: Golden, cpu_library: native.Library) -> None:
        track = benchmark("acceptance_length", "tiny-ddtree-b16-n1")
        assert track.do_setup() is False
        value = track.do_run()
        subject = decode_subject.DecodeSubject(decode_workloads.get("tiny-ddtree-b16-n1"), "cpu")
        assert decode_clock.measure(subject).acceptance_length == value
        assert set(subject.stage_seconds()) == {"draft", "tree_build", "verify", "tree_accept", "commit"}

    def test_throughput_is_of_the_whole_batch(
        self, shipped: Golden, cpu_library: native.Library, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fixed = decode_clock.DecodeMeasurement((0.002, 0.004, 0.003), (), 1.0, (), 0)
        monkeypatch.setattr(decode_clock, "measure", lambda subject, samples: fixed)
        track = benchmark("output_tok_s", "tiny-ar-n4")
        track.do_setup()
        assert track.do_run() == pytest.approx(4 / 0.003)

    def test_the_loops_cost_is_a_ratio_of_the_same_rounds(
        self, shipped: Golden, cpu_library: native.Library, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        subject = decode_subject.DecodeSubject(decode_workloads.get("tiny-ar-n1"), "cpu")
        timed = decode_clock.sample_rounds

        def slower_one_by_one(subject: Any, sample: int, work: Any) -> Any:
            _, found = timed(subject, sample, work)  # which checks that all rounds ran
            return (0.010 if work == subject.run else 0.012), found

        monkeypatch.setattr(decode_clock, "sample_rounds", slower_one_by_one)
        assert decode_clock.loop_ratio(subject, 3) == pytest.approx(1.2)

    def test_a_wrong_engine_has_no_time(
        self, shipped: Golden, cpu_library: native.Library, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = Golden(
            shipped.model_sha256,
            shipped.prompts,
            tuple(tuple((token + 1) % 32 for token in row) for row in shipped.tokens),
            tuple((1.0,) * len(row) for row in shipped.gaps),
        )
        monkeypatch.setattr(decode_golden, "load", lambda model: other)
        with pytest.raises(DigestMismatch, match="prompt 0 of tiny-chain-n1: token 0 is"):
            benchmark("tpot", "tiny-chain-n1").do_setup()

    def test_another_model_than_the_golden_ones_is_an_error(
        self, shipped: Golden, cpu_library: native.Library, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = Golden("0" * 64, shipped.prompts, shipped.tokens, shipped.gaps)
        monkeypatch.setattr(decode_golden, "load", lambda model: other)
        with pytest.raises(KdbenchError, match="the golden tokens are those of 0000000000000000"):
            benchmark("tpot", "tiny-ar-n1").do_setup()

    def test_a_round_that_takes_too_long_is_not_sampled(
        self, shipped: Golden, cpu_library: native.Library, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(decode_clock, "_LONGEST_SAMPLE_S", 0.0)
        subject = decode_subject.DecodeSubject(decode_workloads.get("tiny-ar-n1"), "cpu")
        with pytest.raises(MeasuringError, match="are not sampled"):
            decode_clock.measure(subject, 1)
        with pytest.raises(MeasuringError, match="at least 1"):
            decode_clock.measure(subject, 0)


class TestNotAvailable:
    def check(self, chosen: Any, folder: Path, sentence: str) -> None:
        assert chosen.do_setup() is True
        (line,) = (folder / "unknown-unknown.jsonl").read_text().splitlines()
        record = json.loads(line)
        assert record["schema"] == provenance.SKIP
        assert sentence in record["reason"]

    def test_another_backend(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv(provenance.DIRECTORY_VARIABLE, str(tmp_path))
        self.check(benchmark("tpot", "kimi-dense-ar-n1"), tmp_path, "kimi-dense-ar-n1 is not measured on cpu")

    def test_a_missing_model(
        self, cpu_library: native.Library, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        from kdbench import models

        monkeypatch.setenv(provenance.DIRECTORY_VARIABLE, str(tmp_path))
        monkeypatch.setattr(models, "__file__", str(tmp_path / "__init__.py"))
        self.check(benchmark("tpot", "tiny-ar-n1"), tmp_path, "the shipped model is not there")

    def test_a_commit_from_before_the_engine(
        self, shipped: Golden, cpu_library: native.Library, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        plain = native.Library._plain

        def old(self: native.Library, symbol: str, restype: Any) -> Any:
            if symbol.startswith("kdt_engine"):
                symbol += "_of_a_later_commit"
            return plain(self, symbol, restype)

        monkeypatch.setattr(native.Library, "_plain", old)
        monkeypatch.setenv(provenance.DIRECTORY_VARIABLE, str(tmp_path))
        self.check(benchmark("tpot", "tiny-ar-n1"), tmp_path, "an older build")
