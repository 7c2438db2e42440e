# SPDX-License-Identifier: Apache-2.0
"""The report for people: one HTML page that needs nothing beside itself, not even a script."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from jinja2 import Environment, PackageLoader, StrictUndefined

from kdbench import units
from kdbench.analysis.verdict import ALPHA, LEVEL, THRESHOLD, THRESHOLD_FEW, THRESHOLD_UNTESTED
from kdbench.report import roofline_chart, sparkline
from kdbench.report.decode import DecodeTable
from kdbench.report.peers import PeerTable
from kdbench.report.records import Place

# Never colour alone: each word has a sign of its own.
SYMBOLS = {
    "slower": "▲",
    "failed": "✕",
    "ambiguous": "?",
    "faster": "▽",
    "same": "=",
    "new": "+",
    "missing": "✕",
    "absent": "∅",
    "n/a": "∅",
}
_LONGEST = 160


def render(
    places: Sequence[Place],
    *,
    source: str,
    version: str,
    now: datetime,
    warnings: Sequence[str] = (),
    peers: Sequence[PeerTable] = (),
    decode: Sequence[DecodeTable] = (),
) -> str:
    """The page as text.

    Every value goes through escaping: names, parameters and commit titles are foreign text and stay text.

    Args:
        source: what the results directory is called.
        version: of kdbench.
        warnings: what could not be read, a sentence each.
        peers: comparisons with other people's kernels.
        decode: the decode loop's results.
    """
    environment = Environment(
        loader=PackageLoader("kdbench.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["shorten"] = shorten
    environment.filters["count"] = units.count
    return environment.get_template("page.html.j2").render(
        places=places,
        source=source,
        version=version,
        now=now,
        warnings=warnings,
        peers=peers,
        decode=decode,
        symbols=SYMBOLS,
        box=(sparkline.WIDTH, sparkline.HEIGHT),
        chart_box=(roofline_chart.WIDTH, roofline_chart.HEIGHT),
        rule={"alpha": ALPHA, "level": LEVEL, "least": THRESHOLD, "few": THRESHOLD_FEW, "untested": THRESHOLD_UNTESTED},
    )


def shorten(text: str, longest: int = _LONGEST) -> str:
    """Text cut to a length that a table can bear."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
