# SPDX-License-Identifier: Apache-2.0
"""The command line: exit codes, one sentence for an error, and nothing but one document on stdout under --json."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asv_writer import planted

import kdbench
from kdbench import calibration, ceilings, cli, doctor, lint, runner, verify
from kdbench.errors import InvalidArgument
from kdbench.timing import MeasuringError

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def kd(capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs a command line; returns its exit code, stdout and stderr."""

    def run(*arguments: Any) -> tuple[int, str, str]:
        code = cli.run_command([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return code, out, err

    return run


def document(out: str, verb: str) -> dict[str, Any]:
    """The one strict JSON document that a verb printed."""

    def refuse(word: str) -> Any:
        raise AssertionError(word)

    content: dict[str, Any] = json.loads(out, parse_constant=refuse)
    assert content["schema"] == f"kdbench/{verb}/1"
    return content


def one_sentence(err: str) -> str:
    assert err.startswith("kdbench: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


def test_report_writes_both_forms_and_prints_the_same(kd: Run, tmp_path: Path) -> None:
    planted(tmp_path / "results", tmp_path / "repo", commits=4, slow_at=3, effect=1.3)
    place = ("--results", tmp_path / "results", "--repo", tmp_path / "repo", "--out", tmp_path / "a" / "out")
    code, out, err = kd("report", *place, "--json")
    assert code == 0
    content = document(out, "report")
    assert content["summary"]["slower"] == 2
    assert content == json.loads((tmp_path / "a" / "out" / "report.json").read_text())
    assert (tmp_path / "a" / "out" / "index.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert "2 slower" in err
    code, out, err = kd("report", *place)
    assert (code, err) == (0, "")
    assert "index.html: " in out
    assert "2 slower" in out


def test_report_names_what_it_could_not_read_on_stderr(kd: Run, tmp_path: Path) -> None:
    planted(tmp_path / "results", tmp_path / "repo", commits=2)
    broken = tmp_path / "results" / "box" / "0badc0de-env.json"
    broken.write_text('{"commit')
    code, out, err = kd("report", "--results", tmp_path / "results", "--out", tmp_path / "out", "--json")
    assert code == 0
    assert f"warning: skipped {broken}" in err
    assert str(broken) in document(out, "report")["warnings"][0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("report", "--results", "nowhere"), "no results directory at nowhere"),
        (("report", "--results", "."), "no results in ."),
        (("report", "--repo", "nowhere"), "no repository at nowhere"),
        (("lint", "nowhere"), "no results directory at nowhere"),
        (("verify", "--backend", "xpu"), "--backend xpu: choose from cpu, cuda"),
        (("verify", "--kernel", "gemm"), "--kernel gemm: choose from tree_build"),
        (("verify", "--tag", "nix"), "no workload has the tag 'nix'"),
        (("verify", "--workload", "^nix"), "no workload has a name that fits '^nix'"),
        (("verify", "--workload", "("), "--workload '(' is no regular expression"),
        (("run", "--mode", "warm"), "--mode warm: choose from hot, cold, primary"),
        (("run", "--bench", "("), "--bench '(' is no regular expression"),
    ],
)
def test_bad_input_is_one_sentence_and_1(
    kd: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for as_json in ((), ("--json",)):
        code, out, err = kd(*arguments, *as_json)
        assert (code, out) == (1, "")
        assert words in one_sentence(err)


@pytest.mark.parametrize(
    "arguments", [("report", "--bogus"), ("bogus",), ("run", "--last", "0"), ("run", "--last", "x")]
)
def test_a_wrong_option_is_1_and_no_traceback(kd: Run, arguments: tuple[str, ...]) -> None:
    code, out, err = kd(*arguments)
    assert (code, out) == (1, "")
    assert "Traceback" not in err
    assert next(word for word in arguments if word not in ("report", "run")) in err


def test_help_documents_the_exit_codes_of_every_verb(kd: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    verbs = ("doctor", "verify", "run", "lint", "report", "calibrate", "peers")
    for verb in ((), *((name,) for name in verbs)):
        code, out, _ = kd(*verb, "--help")
        assert code == 0
        assert "0 done; 1 user error or bad input; 2 something measured failed" in " ".join(out.split())
        if verb:
            assert "--json" in out


def test_version(kd: Run) -> None:
    assert kd("version") == (0, f"{kdbench.__version__}\n", "")


def outcomes(*statuses: str) -> Callable[..., list[verify.Outcome]]:
    return lambda *_: [
        verify.Outcome("tree_build", f"w{at}", "cpu", status, "x [b]") for at, status in enumerate(statuses)
    ]


@pytest.mark.parametrize(
    ("statuses", "wanted"), [(("ok", "n/a"), 0), (("ok", "wrong"), 2), (("n/a", "n/a"), 2)], ids=["ok", "wrong", "none"]
)
def test_verify_is_0_only_when_something_was_right_and_nothing_wrong(
    kd: Run, monkeypatch: pytest.MonkeyPatch, statuses: tuple[str, ...], wanted: int
) -> None:
    monkeypatch.setattr(verify, "verify", outcomes(*statuses))
    code, out, err = kd("verify", "--json")
    assert code == wanted
    content = document(out, "verify")
    assert [workload["status"] for workload in content["workloads"]] == list(statuses)
    assert content["summary"]["wrong"] == statuses.count("wrong")
    # Foreign text is printed as it is: rich would take [b] for markup.
    assert "tree_build w0 cpu x [b]" in err


def test_calibrate_files_what_was_measured(kd: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    record = {"machine": "box", "bytes_per_s": 4.2e12, "flops_per_s": None, "absent": {"matmul": "no cuBLAS"}}
    monkeypatch.setattr(calibration, "measure", lambda: {"schema": ceilings.SCHEMA, "date": "2026-01-02", **record})
    code, out, err = kd("calibrate", "--results", str(tmp_path), "--machine", "mine", "--json")
    assert code == 0
    content = document(out, "calibrate")
    assert (content["record"]["bytes_per_s"], content["path"]) == (4.2e12, str(tmp_path / "mine" / ceilings.FILE))
    assert err.startswith("warning: no matmul: no cuBLAS\n")
    assert ceilings.read(tmp_path)["mine"].bytes_per_s == 4.2e12


def test_calibrate_is_2_without_a_rate(kd: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse() -> Any:
        raise MeasuringError("bytes_per_s came out as 9e12")

    monkeypatch.setattr(calibration, "measure", refuse)
    code, out, err = kd("calibrate", "--results", str(tmp_path))
    assert (code, out) == (2, "")
    assert "bytes_per_s came out as 9e12" in one_sentence(err)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("code", "status"), [(0, "measured"), (1, "refused"), (2, "failed"), (130, "interrupted")])
def test_run_passes_its_options_and_its_code_on(
    kd: Run, monkeypatch: pytest.MonkeyPatch, code: int, status: str
) -> None:
    seen: dict[str, Any] = {}

    def fake(conf: Path, **options: Any) -> int:
        seen.update(options, conf=conf)
        subprocess.run([sys.executable, "-c", "print('asv speaks')"], stdout=options["output"], check=True)
        return code

    monkeypatch.setattr(runner, "run", fake)
    given = ("--last", 3, "--tag", "quick", "--kernel", "tree_build", "--backend", "cpu", "--rounds", 2, "--conf", "x")
    got, out, err = kd("run", *given, "--json")
    assert got == code
    content = document(out, "run")
    assert (content["status"], content["exit_code"]) == (status, code)
    assert "asv speaks" in err
    assert (seen["commits"], seen["tag"], seen["rounds"], seen["conf"]) == (3, "quick", 2, Path("x"))
    assert (list(seen["kernels"]), list(seen["backends"]), seen["resume"]) == (["tree_build"], ["cpu"], True)
    kd("run", "--commits", "NEW", "--again")
    assert (seen["commits"], seen["resume"]) == ("NEW", False)


def test_run_refuses_and_is_interrupted_without_a_traceback(kd: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> int:
        raise InvalidArgument("no benchmark fits the selection")

    def interrupt(*_: Any, **__: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run", refuse)
    code, out, err = kd("run", "--json")
    assert (code, out) == (1, "")
    assert "no benchmark fits" in one_sentence(err)
    monkeypatch.setattr(runner, "run", interrupt)
    code, _, err = kd("run")
    assert code == 130
    assert "Traceback" not in err


def test_lint_is_2_when_there_is_a_finding(kd: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lint, "lint", lambda *_, **__: [])
    code, out, _ = kd("lint", tmp_path)
    assert (code, out) == (0, "nothing to complain about\n")
    findings = [lint.Finding("box/a.json", "s.kern_x", "the result is infinite", True)]
    monkeypatch.setattr(lint, "lint", lambda *_, **__: findings)
    code, out, err = kd("lint", tmp_path, "--json")
    assert code == 2
    assert document(out, "lint")["findings"] == [
        {"path": "box/a.json", "series": "s.kern_x", "problem": "the result is infinite", "fatal": True}
    ]
    assert "box/a.json: s.kern_x: the result is infinite" in err


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("broken", 2)])
def test_doctor_prints_everything_and_fails_only_without_a_cpu_backend(
    kd: Run, monkeypatch: pytest.MonkeyPatch, state: str, code: int
) -> None:
    probes = (
        doctor.Probe("CPU library", doctor.Finding(state, "a [red]library[/red]", "build it"), needed=True),
        doctor.Probe("GPU", doctor.Finding("broken", "on fire"), needed=False),
    )
    monkeypatch.setattr(doctor, "examine", lambda _: doctor.Report(probes))
    got, out, err = kd("doctor", "--json")
    assert got == code
    content = document(out, "doctor")
    assert content["can_measure"] is (code == 0)
    assert [probe["name"] for probe in content["probes"]] == ["CPU library", "GPU"]
    assert "a [red]library[/red]" in err
    assert kd("doctor")[1].count("\n") >= 3


def test_the_installed_command_is_a_process_with_clean_streams(tmp_path: Path) -> None:
    planted(tmp_path / "results", tmp_path / "repo", commits=2)
    command = [sys.executable, "-m", "kdbench", "report", "--results", "results"]
    done = subprocess.run([*command, "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0
    document(done.stdout, "report")
    assert (tmp_path / "report" / "index.html").is_file()
    failed = subprocess.run(
        [*command[:-1], "nope"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (failed.returncode, failed.stdout) == (1, "")
    one_sentence(failed.stderr)
