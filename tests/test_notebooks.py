# SPDX-License-Identifier: Apache-2.0
"""Notebooks run from top to bottom, on made results, on what results/ holds, and on nothing."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import jupytext
import nbclient
import nbformat
import pytest
from asv_writer import planted

from kdbench.results import load

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def execute(path: Path, results: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, int]:
    """Run a notebook on a results directory; returns all it printed and how many figures it drew."""
    monkeypatch.setenv("KDBENCH_RESULTS", str(results))
    notebook: Any = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(path.parent)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    said = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs]
    return "\n".join(said), sum("image/png" in output.get("data", {}) for output in outputs)


def test_the_history_points_at_the_planted_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = planted(tmp_path / "repo" / "results", tmp_path / "repo", commits=8, slow_at=5, effect=1.2)
    said, figures = execute(ROOT / "notebooks" / "01_history.ipynb", tmp_path / "repo" / "results", monkeypatch)
    assert f"at {hashes[5][:10]} change 5" in said
    assert '"workload": "b"' in said
    assert figures == 2


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_say_so_when_there_is_nothing(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said, _ = execute(path, tmp_path / "none", monkeypatch)
    assert "There is nothing in" in said


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run_on_the_committed_results(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = ROOT / "results"
    if not results.is_dir() or load(results).empty:
        pytest.skip("no committed results yet")
    said, figures = execute(path, results, monkeypatch)
    assert "There is nothing in" not in said
    assert figures >= 1


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_without_outputs_and_as_their_script_says(path: Path) -> None:
    notebook: Any = nbformat.read(path, as_version=4)
    script: Any = jupytext.read(path.with_suffix(".py"))
    assert [(cell.cell_type, cell.source) for cell in notebook.cells] == [
        (cell.cell_type, cell.source) for cell in script.cells
    ]
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_call_analysis_and_results_and_define_nothing(path: Path) -> None:
    script: Any = jupytext.read(path.with_suffix(".py"))
    code = "\n".join(cell.source.rstrip(";") for cell in script.cells if cell.cell_type == "code")
    tree = ast.parse(code)
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    ours = {module for module in imported if module.startswith("kdbench")}
    assert ours <= {"kdbench.analysis", "kdbench.results"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda)]
