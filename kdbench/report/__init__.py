# SPDX-License-Identifier: Apache-2.0
"""A results directory -> one page for people (index.html) and the same for machines (report.json)."""

from __future__ import annotations

import os
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from kdbench import __version__, ceilings, noise_records, peer_results
from kdbench.analysis import changes, newest, refuse, roofline
from kdbench.analysis.noise import from_results
from kdbench.errors import KdbenchError
from kdbench.report import decode, peers
from kdbench.report.document import SCHEMA, document, to_json
from kdbench.report.floors import Floors
from kdbench.report.page import render
from kdbench.report.view import places
from kdbench.results import load, machine_facts

__all__ = ["SCHEMA", "build", "document", "to_json", "write"]


def build(
    results_dir: str | os.PathLike[str], repo: str | os.PathLike[str] | None = None
) -> tuple[dict[str, Any], str]:
    """The document ``kdbench/report/1`` and the page.

    Args:
        results_dir: an asv results directory.
        repo: a repository that knows its commits; without it the one around ``results_dir`` is tried.

    Raises:
        KdbenchError: there is no such directory, or not one readable result in it.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        facts = machine_facts(results_dir)
        gpus = {machine: known.get("gpu", "") for machine, known in facts.items()}
        frame = refuse(load(results_dir, repo), gpus)
        beside = peer_results.load(results_dir)
    complaints = list(dict.fromkeys(str(warning.message) for warning in caught))
    judged = changes(frame)
    if judged.empty:
        found = f"; {len(complaints)} file(s) could not be used, the first: {complaints[0]}" if complaints else ""
        raise KdbenchError(f"no results in {Path(results_dir)}{found}")
    latest = newest(judged)
    rates = ceilings.read(results_dir)
    rooflines = roofline(frame, rates)
    # What was measured for its own sake comes last, and counts.
    known = [each for each in (from_results(frame), noise_records.read(results_dir)) if len(each)]
    noise = pd.concat(known) if known else None
    page = render(
        places(latest, judged, facts, Floors(rooflines, rates, gpus), noise),
        source=Path(results_dir).resolve().name,
        version=__version__,
        now=datetime.now(UTC),
        warnings=complaints,
        peers=peers.tables(beside),
        decode=decode.tables(frame),
    )
    return document(latest, judged, complaints, rooflines, peers.entries(beside), decode.entries(frame), noise), page


def write(
    results_dir: str | os.PathLike[str], out_dir: str | os.PathLike[str], repo: str | os.PathLike[str] | None = None
) -> dict[str, Any]:
    """Write ``index.html`` and ``report.json`` into ``out_dir``, which is made if need be; the document is returned."""
    content, page = build(results_dir, repo)
    out = Path(out_dir)
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "index.html").write_text(page, encoding="utf-8")
        (out / "report.json").write_text(to_json(content), encoding="utf-8")
    except OSError as error:
        raise KdbenchError(f"cannot write the report to {out}: {error.strerror or error}") from error
    return content
