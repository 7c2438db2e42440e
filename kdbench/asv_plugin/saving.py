# SPDX-License-Identifier: Apache-2.0
"""Results that survive: saved atomically after every benchmark, Ctrl-C included; a rerun measures only the rest.

asv saves a commit when all its benchmarks are done, by writing over the file, and an interrupt loses the commit.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import asv.commands.find
import asv.commands.run
from asv import results as asv_results
from asv import runner, util

from kdbench import provenance
from kdbench.asv_plugin import machine_entry
from kdbench.asv_plugin.progress import Present, Progress, is_done

# Number of rounds that a finished series has; set by kdbench.runner when it resumes.
RESUME_VARIABLE = "KDBENCH_RESUME_ROUNDS"
_TAIL = 4000

_progress = Progress()


def install() -> None:
    """Wrap asv's runner and its Results."""
    _write_json_atomically()
    _save_often()
    _stop_after_saving()
    _wrap_runs()
    sys.excepthook = _short_interrupt
    if os.environ.get(RESUME_VARIABLE):
        _skip_finished()


def _write_json_atomically() -> None:
    def write_json(path: str, data: Any, api_version: int | None = None, compact: bool = False) -> None:
        document = data if api_version is None else {**data, "version": api_version}
        text = json.dumps(document) if compact else json.dumps(document, indent=4, sort_keys=True)
        machine_entry.write_atomically(Path(path).absolute(), text)

    util.write_json = write_json


def _save_often() -> None:
    load_data, add_result = asv_results.Results.load_data, asv_results.Results.add_result

    def remember(self: Any, results_dir: str) -> None:
        # asv loads old data exactly when it means to save: not in a dry run.
        self.kdbench_results_dir = results_dir
        load_data(self, results_dir)

    def add_and_save(self: Any, benchmark: Mapping[str, Any], result: Any, **options: Any) -> None:
        _widen(self, benchmark)
        measured, interrupted = _progress.take()
        if interrupted:
            options["selected_idx"] = measured
        if not interrupted or measured:
            add_result(self, benchmark, result, **options)
            _record_failure(self, benchmark, result)
            if folder := getattr(self, "kdbench_results_dir", None):
                self.save(folder)
        if interrupted:
            raise util.UserError("Interrupted.")

    asv_results.Results.load_data = remember
    asv_results.Results.add_result = add_and_save


def _widen(results: Any, benchmark: Mapping[str, Any]) -> None:
    """Give parameters that were added to a benchmark since it was measured n/a instead of asv's "failed"."""
    name, params = benchmark["name"], benchmark["params"]
    if name in results._results and results._results[name] is None:
        # The commit did not build, or nothing worked: that says nothing about what is not measured this time.
        results.remove_result(name)
    old = results._results.get(name)
    if not isinstance(old, list) or not params or results._benchmark_params[name] == params:
        return
    known = set(itertools.product(*results._benchmark_params[name]))
    values = results.get_result_value(name, params)
    results._results[name] = [
        value if combination in known else math.nan
        for value, combination in zip(values, itertools.product(*params), strict=True)
    ]
    results._stats[name] = results._stats[name] and results.get_result_stats(name, params)
    results._samples[name] = results._samples[name] and results.get_result_samples(name, params)
    results._benchmark_params[name] = params


def _record_failure(results: Any, benchmark: Mapping[str, Any], result: Any) -> None:
    folder = getattr(results, "kdbench_results_dir", None)
    # A commit that does not build fails every benchmark without a word: that is recorded by kdbench.asv_plugin.builds.
    if not folder or result.errcode in (None, 0) or not result.stderr:
        return
    provenance.append(
        Path(folder) / results.params["machine"] / "failures.jsonl",
        {
            "schema": provenance.FAILURE,
            "kind": "benchmark",
            "commit": results.commit_hash,
            "env_name": results.env_name,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "benchmark": benchmark["name"],
            "exit_code": result.errcode,
            "output_tail": result.stderr[-_TAIL:],
        },
    )


def _stop_after_saving() -> None:
    """On Ctrl-C hand back what this benchmark has, and let ``add_and_save`` save it before the run ends."""
    original = runner._run_benchmark_single_param

    def single(benchmark: Any, spawner: Any, param_idx: int, **options: Any) -> Any:
        if not _progress.interrupted:
            try:
                answer = original(benchmark, spawner, param_idx, **options)
            except util.UserError as error:
                if str(error) != "Interrupted.":
                    raise
                _progress.interrupted = True
            else:
                _progress.measured.append(param_idx)
                return answer
        return runner.BenchmarkResult(
            result=[math.nan], samples=[None], number=[None], errcode=0, stderr="", profile=None
        )

    runner._run_benchmark_single_param = single


def _short_interrupt(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
    """Ctrl-C between benchmarks, where asv does not expect it, needs no traceback: everything is saved."""
    if issubclass(kind, KeyboardInterrupt):
        print("Interrupted.", file=sys.stderr)
    else:
        sys.__excepthook__(kind, value, trace)


def _wrap_runs() -> None:
    original: Callable[..., Any] = runner.run_benchmarks

    def run_benchmarks(benchmarks: Any, env: Any, results: Any = None, **options: Any) -> Any:
        folder = getattr(results, "kdbench_results_dir", None)
        os.environ.pop(provenance.DIRECTORY_VARIABLE, None)
        if folder:
            os.environ[provenance.DIRECTORY_VARIABLE] = str(Path(folder).absolute() / results.params["machine"])
            os.environ[provenance.HARNESS_VARIABLE] = _harness_commit()
        rounds = os.environ.get(RESUME_VARIABLE)
        if rounds and folder:
            benchmarks = _unfinished(benchmarks, results, int(rounds))
            if not benchmarks:
                return results
            if options.get("run_rounds"):
                # asv begins a series anew in the first round of a run; rounds of an interrupted one count as well.
                options["append_samples"] = True
        try:
            return original(benchmarks, env, results=results, **options)
        finally:
            # Also when an exception of another kind passes by.
            if folder and results.get_all_result_keys():
                results.save(folder)

    asv.commands.run.run_benchmarks = run_benchmarks
    asv.commands.find.run_benchmarks = run_benchmarks


def _unfinished(benchmarks: Any, results: Any, rounds: int) -> Any:
    """The same benchmarks without the parameter combinations that ``results`` already holds in full."""
    left: dict[str, list[int] | None] = {}
    for name, benchmark in benchmarks.items():
        selected = benchmarks.benchmark_selection.get(name)
        if selected is not None:
            left[name] = [i for i in selected if not is_done(results, benchmark, i, rounds)]
        elif not is_done(results, benchmark, 0, rounds):
            left[name] = None
    copy = benchmarks.filter_out({name for name in benchmarks if left.get(name, []) == []})
    copy._benchmark_selection.update({name: indices for name, indices in left.items() if name in copy})
    return copy


def _skip_finished() -> None:
    """Let ``--skip-existing`` skip, without building, what is finished, and nothing else."""
    original = asv.commands.run.iter_results_for_machine_and_hash
    rounds = int(os.environ[RESUME_VARIABLE])

    def finished(results_dir: str, machine: str, commit: str) -> Any:
        for results in original(results_dir, machine, commit[:8]):
            yield Present(results, rounds)

    asv.commands.run.iter_results_for_machine_and_hash = finished


def _harness_commit() -> str:
    """The working tree's commit, with "+" when it has changes."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
