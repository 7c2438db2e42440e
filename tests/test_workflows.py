# SPDX-License-Identifier: Apache-2.0
"""The CI examples are YAML, run what exists, and give nobody more than they need."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from kdbench.cli import app

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    return document


def steps(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in document["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_are_yaml_with_time_limits(path: Path) -> None:
    document = read(path)
    assert document["jobs"]
    for job in document["jobs"].values():
        assert job["timeout-minutes"] <= 90
        assert job["steps"]
        assert all(("uses" in step) != ("run" in step) for step in job["steps"])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_ask_kdbench_for_what_it_has(path: Path) -> None:
    known = typer.main.get_command(app)
    asked = [step["run"].replace("\\\n", " ") for step in steps(read(path)) if "run" in step]
    for line in "\n".join(asked).splitlines():
        if not (found := re.search(r"bin/kdbench (\S+)(.*)", line)):
            continue
        verb, rest = found.groups()
        command = known.commands[verb]  # type: ignore[attr-defined]
        options = {name for parameter in command.params for name in parameter.opts}
        assert set(re.findall(r"--[a-z-]+", rest)) <= options


def test_the_gate_on_a_runner_of_ones_own_is_careful() -> None:
    path = ROOT / ".github" / "workflows" / "bench.yml"
    document = read(path)
    actions = [step["uses"] for step in steps(document) if "uses" in step]
    assert actions
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action) for action in actions)
    # Each hash says which release it is.
    assert len(re.findall(r"@[0-9a-f]{40} # v\d+\.\d+\.\d+$", path.read_text(), re.MULTILINE)) == len(actions)
    assert document["permissions"] == {"contents": "read"}
    jobs = document["jobs"]
    assert "self-hosted" in jobs["gate"]["runs-on"]
    assert "permissions" not in jobs["gate"]
    assert "head.repo.full_name == github.repository" in jobs["gate"]["if"]
    checkout = jobs["gate"]["steps"][0]["with"]
    assert checkout["persist-credentials"] is False
    assert checkout["fetch-depth"] == 0
    # What a pull request's author chooses must not become a script.
    assert all("${{" not in step.get("run", "") for step in steps(document))
    # The job that may write runs nothing of the pull request's.
    assert "self-hosted" not in jobs["comment"]["runs-on"]
    assert not any("checkout" in step.get("uses", "") or "run" in step for step in jobs["comment"]["steps"])
    (gate,) = [step["run"] for step in jobs["gate"]["steps"] if "kdbench gate" in step.get("run", "")]
    assert 'exit "$code"' in gate
