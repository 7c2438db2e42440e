# SPDX-License-Identifier: Apache-2.0
"""The plugin's parts without a run: machine entry, paths of an overlay, steps, directions, offline page, progress."""

from __future__ import annotations

import itertools
import json
import math
import os
import site
import subprocess
import sys
import xml.dom.minidom
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import asv
import numpy as np
import pytest
from asv import environment, step_detect, util
from asv.plugins.regressions import Regressions
from asv.results import Results

from kdbench.asv_plugin import (
    builds,
    directions,
    machine_entry,
    offline,
    overlay,
    progress,
    publish_gate,
    saving,
    steps,
    tables,
)

ENTRY = {"machine": "box", "os": "Linux", "arch": "x86_64", "cpu": "c", "num_cpu": "2", "ram": "24GB", "gpu": ""}


def test_a_missing_entry_is_added_and_others_are_kept(tmp_path: Path) -> None:
    path = tmp_path / ".asv-machine.json"
    machine_entry.add_entry(path, ENTRY)
    machine_entry.add_entry(path, {**ENTRY, "machine": "other", "cpu": "d"})
    machine_entry.add_entry(path, {**ENTRY, "cpu": "changed"})  # known: left alone, or its graphs would split
    assert json.loads(path.read_text()) == {
        "box": ENTRY,
        "other": {**ENTRY, "machine": "other", "cpu": "d"},
        "version": 1,
    }
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("text", ["[]", "{", ""])
def test_a_foreign_machine_file_is_not_overwritten(tmp_path: Path, text: str) -> None:
    path = tmp_path / ".asv-machine.json"
    path.write_text(text)
    with pytest.raises(util.UserError, match="not a machine file of asv"):
        machine_entry.add_entry(path, ENTRY)
    assert path.read_text() == text


def test_atomic_writes_leave_the_old_file_when_they_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.json"
    machine_entry.write_atomically(path, "old")

    def fail(source: Any, target: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        machine_entry.write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_overlay_sees_what_its_parent_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nested .pth files, folders of PYTHONPATH, and neither the standard library nor the configuration's folder."""
    conf, extra, scripts = tmp_path / "conf", tmp_path / "extra", tmp_path / "scripts"
    for folder in (conf, extra, scripts):
        folder.mkdir()
    monkeypatch.setattr(sys, "path", ["", str(scripts), str(conf), str(extra), str(tmp_path / "gone"), *sys.path])
    monkeypatch.setattr(sys, "argv", [str(scripts / "asv")])
    lines = overlay.parent_paths(str(conf))
    assert lines[0] == str(extra)
    packages = site.getsitepackages()[0]
    assert f"import site; site.addsitedir({packages!r})" in lines
    assert not any("lib-dynload" in line or str(scripts) in line or str(conf) in line for line in lines)
    assert os.path.dirname(os.__file__) not in lines


def test_pip_is_taken_from_python_itself_when_the_parent_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlay.importlib.util, "find_spec", lambda name: None)
    assert overlay.parent_paths("/nowhere")[-1].endswith(".whl")


def _overlay(tmp_path: Path, python: str) -> overlay.Overlay:
    conf = SimpleNamespace(
        env_dir=str(tmp_path / "env"),
        repo_subdir="",
        install_timeout=60,
        default_benchmark_timeout=60,
        project="p",
        build_command=None,
        install_command=None,
        uninstall_command=None,
    )
    return overlay.Overlay(conf, python, {"pip+asv_runner": "0.3.2"}, {})


def test_an_overlay_is_made_once_and_remade_for_another_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = _overlay(tmp_path, overlay.running_python())
    assert made.name == f"overlay-py{overlay.running_python()}"  # the pinned runner leaves no trace
    assert not made.check_presence()
    made.create()
    assert made.check_presence()
    code = "import asv_runner, numpy, sys; print(sys.prefix, numpy.__file__)"
    prefix, numpy_file = made.run(["-c", code]).split()
    assert prefix == made._path
    assert numpy_file == np.__file__
    assert "pip" in made.run_executable("pip", ["--version"])
    assert (made.site_packages / "kdbench_overlay.pth").read_text().splitlines()[0] == str(tmp_path)
    monkeypatch.setattr(overlay, "_base_executable", lambda: "/opt/other/bin/python3")
    assert not made.check_presence()


def test_another_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(environment.EnvironmentUnavailable, match=r"and Python 2\.7 is asked for"):
        _overlay(tmp_path, "2.7")


def test_a_process_loads_its_own_environment_s_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a developer's KDTREE_NATIVE_DIR nor what the parent has installed gets under a commit's name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KDTREE_NATIVE_DIR", "/developer/build")
    monkeypatch.setattr(environment.Environment, "run_executable", environment.Environment.run_executable)
    builds._use_own_library()
    made = _overlay(tmp_path, overlay.running_python())
    made.create()
    show = ["-c", "import os; print(os.environ['KDTREE_NATIVE_DIR'], os.environ['PIP_NO_INDEX'])"]
    assert made.run(show).split() == [f"{made._path}/no-kdtree-native", "1"]
    (made.site_packages / "kdtree_native").mkdir()
    assert made.run(show).split() == [str(made.site_packages / "kdtree_native"), "1"]


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> Any:
    from asv import _stats

    monkeypatch.setattr(step_detect, "detect_steps", step_detect.detect_steps)
    monkeypatch.setattr(_stats, "get_weight", _stats.get_weight)
    plain = step_detect.detect_steps
    steps.install()
    return plain


def _history(rng: Any, levels: np.ndarray, noise: float) -> tuple[list[float], list[Any]]:
    y = levels * np.exp(noise * rng.standard_normal(len(levels)))
    half = noise * (0.5 + rng.random(len(levels)))
    return y.tolist(), [{"ci_99_a": a, "ci_99_b": b} for a, b in zip(y * (1 - half), y * (1 + half), strict=True)]


def test_a_large_slowdown_under_noise_is_found_at_its_commit(fitted: Any) -> None:
    rng = np.random.default_rng(1)
    found = {"plain": 0, "ours": 0}
    for _ in range(100):
        y, stats = _history(rng, np.r_[np.ones(4), np.full(5, 20.0)], 0.2)
        plain = fitted(y, [2 / (s["ci_99_b"] - s["ci_99_a"]) for s in stats])
        ours = step_detect.detect_steps(y, [steps.relative_weight(s) for s in stats])
        for name, fit in (("plain", plain), ("ours", ours)):
            jumps = step_detect.detect_regressions(fit, 0.01)[2] or []
            found[name] += [jump[:2] for jump in jumps] == [(3, 4)]
    assert found["ours"] >= 95
    assert found["plain"] < 50


def test_no_step_is_found_where_there_is_none(fitted: Any) -> None:
    rng = np.random.default_rng(2)
    for _ in range(100):
        y, stats = _history(rng, np.ones(30), 0.02)
        fit = step_detect.detect_steps(y, [steps.relative_weight(s) for s in stats])
        assert not step_detect.detect_regressions(fit, 0.01)[2]


def test_steps_survive_what_would_hang_the_solver(fitted: Any) -> None:
    fit = step_detect.detect_steps([1.0, math.inf, None, 1.0, math.nan, 1.0], None)
    assert [(left, right) for left, right, *_ in fit] == [(0, 6)]
    assert fit[0][2] == pytest.approx(1.0)
    assert [round(step[2]) for step in step_detect.detect_steps([-1.0] * 8 + [5.0] * 8, None)] == [-1, 5]


@pytest.mark.parametrize(
    "stats", [None, {}, {"ci_99_a": -math.inf, "ci_99_b": math.inf}, {"ci_99_a": 1.0, "ci_99_b": 1.0}, {"ci_99_a": 1.0}]
)
def test_no_interval_is_no_weight(stats: Any) -> None:
    assert steps.relative_weight(stats) is None


class _Repo:
    def get_range_spec(self, first: str, last: str) -> str:
        return f"{first}..{last}"

    def get_hashes_from_range(self, spec: str) -> list[str]:
        return ["one"]


@pytest.mark.parametrize(("direction", "levels"), [("higher", (100.0, 75.0)), ("lower", (75.0, 100.0))])
def test_regressions_have_a_direction(direction: str, levels: tuple[float, float]) -> None:
    before, after = levels
    found = [(0, 5, before, before, 0.1), (5, 9, after, after, 0.1)]
    graph = SimpleNamespace(params={}, path="graphs/x")
    data = (None, "suite.track_x", found, 0.02)
    for publisher, benchmarks, expected in [
        (directions.DirectedRegressions, {"suite.track_x": {"direction": direction}}, True),
        (directions.DirectedRegressions, {"suite.track_x": {}}, direction == "lower"),
        (Regressions, {}, direction == "lower"),
    ]:
        directions.DirectedRegressions._benchmarks = benchmarks
        rows: list[Any] = []
        publisher._process_regression(rows, {4: "a", 5: "b"}, _Repo(), {}, data, graph)
        jumps = rows[0][6] if rows else []
        assert bool(jumps) == expected
        if expected:
            assert rows[0][4:6] == pytest.approx([after, before])
            assert jumps[0][:2] == (None, 5)
            assert jumps[0][2:] == pytest.approx((before, after))


def test_ours_overwrites_asv_s_regressions() -> None:
    publishers = [directions.DirectedRegressions, Regressions]
    found = [cls for cls in util.iter_subclasses(Regressions.__mro__[1]) if cls in publishers]
    assert [cls.__name__ for cls in sorted(found, key=lambda cls: cls.order)] == ["Regressions", "DirectedRegressions"]


def test_the_offline_page_asks_the_network_for_nothing() -> None:
    page = (Path(asv.__file__).parent / "www" / "index.html").read_text()
    local = offline.localised(page)
    loading = [line for line in local.splitlines() if "<script" in line or "<link" in line]
    assert len(loading) > 15
    assert not any("http" in line or "integrity" in line or "crossorigin" in line for line in loading)
    for name in offline.ASSETS.values():
        assert f'"assets/{name}"' in local
    assert xml.dom.minidom.parseString('<link rel="stylesheet" href="assets/css/bootstrap.min.css"/>')
    assert '<link rel="stylesheet" href="assets/css/bootstrap.min.css">' in local


def test_the_page_is_left_alone_without_assets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "html" / "index.html"
    page.parent.mkdir()
    page.write_text('<script src="https://code.jquery.com/jquery-3.3.1.min.js" integrity="x"></script>')
    conf = SimpleNamespace(html_dir=str(page.parent))
    before = page.read_text()
    offline.OfflineSite.publish(conf, None, {}, None, {})
    assert page.read_text() == before
    for name in offline.ASSETS.values():
        (offline.FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
        (offline.FOLDER / name).write_text(name)
    offline.OfflineSite.publish(conf, None, {}, None, {})
    assert page.read_text() == '<script src="assets/jquery.min.js"></script>'
    assert (page.parent / "assets" / "js" / "bootstrap.min.js").read_text() == "js/bootstrap.min.js"


def test_tables_show_what_was_measured() -> None:
    head = "======== ========== ======\nworkload    cpu      cuda \n======== ========== ======"
    table = (
        f"{head}\n   a      685±90ns   n/a  \n   b        n/a      n/a  \n   c       failed    n/a  \n======== ======"
    )
    assert tables.measured_rows(table) == table.replace("   b        n/a      n/a  \n", "")
    nothing = f"{head}\n   b        n/a      n/a  \n======== ======"
    assert tables.measured_rows(nothing) == nothing


def _results(params: list[list[str]], values: list[Any], repeats: list[int | None]) -> Any:
    results = Results({"machine": "box"}, {}, "0" * 40, 0, "3.11", "overlay", {})
    results._results["suite.kern_hot"] = values
    results._benchmark_params["suite.kern_hot"] = params
    results._stats["suite.kern_hot"] = [None if repeat is None else {"repeat": repeat} for repeat in repeats]
    results._samples["suite.kern_hot"] = None
    results._benchmark_version["suite.kern_hot"] = "1"
    return results


BENCHMARK = {
    "name": "suite.kern_hot",
    "version": "1",
    "params": [["'a'", "'b'", "'c'", "'d'"]],
    "samples_per_process": 20,
}


@pytest.mark.parametrize(
    ("value", "repeat", "done"),
    [(1e-6, 100, True), (1e-6, 80, False), (1e-6, 120, True), (None, None, False), (math.nan, None, False)],
)
def test_what_counts_as_done(value: Any, repeat: int | None, done: bool) -> None:
    results = _results(BENCHMARK["params"], [value, 1.0, 1.0, 1.0], [repeat, 100, 100, 100])
    assert progress.is_done(results, BENCHMARK, 0, 5) == done


@pytest.mark.parametrize(("value", "done"), [(3.25, True), (None, False), (math.nan, False)])
def test_a_tracked_value_is_done_when_it_is_there(value: Any, done: bool) -> None:
    results = _results(BENCHMARK["params"], [value, 1.0, 1.0, 1.0], [None, 100, 100, 100])
    assert progress.is_done(results, {**BENCHMARK, "type": "track"}, 0, 5) == done


def test_new_parameters_and_versions_are_not_done() -> None:
    results = _results([["'a'", "'b'"]], [1e-6, None], [100, None])
    assert [progress.is_done(results, BENCHMARK, index, 5) for index in range(4)] == [True, False, False, False]
    assert not progress.is_done(results, {**BENCHMARK, "version": "2"}, 0, 5)


def test_parameters_added_later_are_not_failures() -> None:
    results = _results([["'a'", "'b'"]], [1e-6, None], [100, None])
    saving._widen(results, BENCHMARK)
    values = results.get_result_value("suite.kern_hot", BENCHMARK["params"])
    assert values[:2] == [1e-6, None]
    assert all(math.isnan(value) for value in values[2:])
    assert results.get_result_params("suite.kern_hot") == BENCHMARK["params"]


def test_only_unfinished_combinations_are_left() -> None:
    results = _results(BENCHMARK["params"], [1e-6, 1e-6, None, math.nan], [100, 40, None, None])
    view = progress.Present(results, 5)

    class Chosen(dict[str, Any]):
        benchmark_selection: ClassVar[dict[str, list[int]]] = {"suite.kern_hot": [0, 1, 2, 3]}

    chosen = Chosen({"suite.kern_hot": BENCHMARK})
    assert view.get_result_keys(chosen) == set()
    # A failure is tried again.
    Chosen.benchmark_selection = {"suite.kern_hot": [0, 2]}
    assert view.get_result_keys(chosen) == set()
    Chosen.benchmark_selection = {"suite.kern_hot": [0]}
    assert view.get_result_keys(chosen) == {"suite.kern_hot"}
    assert view.get_result_value("suite.kern_hot", []) == [1.0]


def test_a_failed_command_s_output_is_kept() -> None:
    with pytest.raises(util.ProcessError) as caught:
        util.check_output(
            [sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"]
        )
    assert builds.output_of(caught.value) == "out\nerr"


def test_asv_still_has_every_member_that_is_wrapped() -> None:
    """An upgrade of asv that moves one of these fails here, and not in the middle of a night's run."""
    import asv.commands.find
    import asv.commands.run
    from asv import benchmarks, graph, runner
    from asv.commands.publish import Publish

    wrapped = [
        (runner, "run_benchmarks"),
        (runner, "_run_benchmark_single_param"),
        (runner, "format_benchmark_result"),
        (asv.commands.run, "run_benchmarks"),
        (asv.commands.find, "run_benchmarks"),
        (asv.commands.run, "iter_results_for_machine_and_hash"),
        (Results, "load_data"),
        (Results, "add_result"),
        (util, "write_json"),
        (step_detect, "detect_steps"),
        (graph.step_detect, "detect_steps"),
        (benchmarks.Benchmarks, "_disc_benchmarks"),
        (environment.Environment, "install_project"),
        (environment.Environment, "run_executable"),
        (Publish, "run"),
    ]
    assert [name for owner, name in wrapped if not hasattr(owner, name)] == []
    version = subprocess.run([sys.executable, "-m", "asv", "--version"], capture_output=True, text=True).stdout
    assert "0.6.6" in version
    assert list(itertools.islice(util.iter_subclasses(environment.Environment), 50)).count(overlay.Overlay) == 1


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[Any], Path]:
    """Publish behind the gate, what got through to asv, and a results folder with one sound value in it."""
    from asv.commands.publish import Publish

    published: list[Any] = []
    monkeypatch.setattr(Publish, "run", classmethod(lambda cls, conf: published.append(conf)))
    publish_gate.install()
    (tmp_path / "box").mkdir()
    entry = {"name": "suite.track_x", "type": "track", "params": [], "param_names": [], "version": "1"}
    (tmp_path / "benchmarks.json").write_text(json.dumps({"version": 2, "suite.track_x": entry}))
    (tmp_path / "box" / "machine.json").write_text(json.dumps({**ENTRY, "version": 1}))
    _one_result(tmp_path, {"suite.track_x": [[1.0], [], "1"]})
    conf = SimpleNamespace(results_dir=str(tmp_path), repo="https://example.org/x.git", branches=["main"])
    return lambda **options: Publish.run(SimpleNamespace(**{**vars(conf), **options})), published, tmp_path


def _one_result(results_dir: Path, results: Any) -> None:
    document = {"version": 2, "commit_hash": "0" * 40, "env_name": "e", "date": 1, "python": "3.11", "requirements": {}}
    columns = ["result", "params", "version"]
    text = json.dumps({**document, "params": ENTRY, "result_columns": columns, "results": results})
    (results_dir / "box" / "00000000-e.json").write_text(text)


def test_sound_results_are_published(gate: tuple[Any, list[Any], Path]) -> None:
    publish, published, _ = gate
    publish()
    assert len(published) == 1


@pytest.mark.parametrize(
    ("results", "problem"),
    [({"suite.track_x": [[math.inf], [], "1"]}, "the result is inf"), ([], r"its results is \[\]")],
)
def test_publish_refuses_fatal_findings(gate: tuple[Any, list[Any], Path], results: Any, problem: str) -> None:
    publish, published, folder = gate
    _one_result(folder, results)
    with pytest.raises(util.UserError, match=problem):
        publish()
    assert published == []


def test_publish_refuses_a_repository_that_git_cannot_read(gate: tuple[Any, list[Any], Path]) -> None:
    publish, published, folder = gate
    with pytest.raises(util.UserError, match="not a git repository"):
        publish(repo=str(folder))
    assert published == []


def test_a_finding_that_is_not_fatal_does_not_stop_publish(gate: tuple[Any, list[Any], Path]) -> None:
    publish, published, folder = gate
    _one_result(folder, {"suite.track_gone": [[1.0], [], "1"]})
    publish()
    assert len(published) == 1


def test_an_interrupt_between_benchmarks_needs_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    saving._short_interrupt(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert capsys.readouterr().err == "Interrupted.\n"
    saving._short_interrupt(ValueError, ValueError("else"), None)
    assert "ValueError: else" in capsys.readouterr().err
