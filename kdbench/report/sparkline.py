# SPDX-License-Identifier: Apache-2.0
"""The shape of one series over the history: coordinates only, the template draws them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 200.0, 44.0
_PAD = 5.0
# A quiet series must look quiet: the axis never shows less than this part of the median.
_SMALLEST_SPAN = 0.10


@dataclass(frozen=True)
class Point:
    """One commit of a series: its place among the commits shown, its number, its interval, its verdict."""

    at: int
    value: float
    low: float
    high: float
    verdict: str


@dataclass(frozen=True)
class Sparkline:
    """Coordinates in a box of WIDTH x HEIGHT.

    Attributes:
        lines: points of each unbroken run, as SVG ``points`` text; a missing commit breaks the line.
        bands: outline of the interval of each run.
        dots: (x, y) of runs of a single commit.
        marks: (x, y, verdict) of commits judged slower or faster.
        last: (x, y) of the newest number.
    """

    lines: tuple[str, ...]
    bands: tuple[str, ...]
    dots: tuple[tuple[float, float], ...]
    marks: tuple[tuple[float, float, str], ...]
    last: tuple[float, float]


def draw(points: Sequence[Point], count: int) -> Sparkline | None:
    """Lay out a series.

    Args:
        points: the commits that have a finite number, by ``at``.
        count: commits on the axis; ``at`` runs from 0 to count - 1.

    Returns:
        None for no points.
    """
    if not points:
        return None
    bottom, top = _range(points)

    def x(at: float) -> float:
        return round(_PAD + (WIDTH - 2 * _PAD) * (at / (count - 1) if count > 1 else 0.5), 1)

    def y(value: float) -> float:
        inside = min(max(value, bottom), top)
        return round(HEIGHT - _PAD - (HEIGHT - 2 * _PAD) * (inside - bottom) / (top - bottom), 1)

    lines: list[str] = []
    bands: list[str] = []
    dots: list[tuple[float, float]] = []
    for run in _runs(points):
        if len(run) == 1:
            dots.append((x(run[0].at), y(run[0].value)))
        else:
            lines.append(" ".join(f"{x(p.at)},{y(p.value)}" for p in run))
        for part in _known(run):
            # A lone commit has no width: its interval is drawn as a narrow bar.
            sides = (0.0,) if len(part) > 1 else (-0.25, 0.25)
            upper = [(p.at + side, p.high) for p in part for side in sides]
            lower = [(p.at + side, p.low) for p in part for side in sides]
            outline = upper + lower[::-1]
            bands.append(" ".join(f"{x(at)},{y(value)}" for at, value in outline))
    marks = tuple((x(p.at), y(p.value), p.verdict) for p in points if p.verdict in ("slower", "faster"))
    return Sparkline(tuple(lines), tuple(bands), tuple(dots), marks, (x(points[-1].at), y(points[-1].value)))


def _range(points: Sequence[Point]) -> tuple[float, float]:
    values = [p.value for p in points]
    bottom, top = min(values), max(values)
    # Intervals may stretch the axis by half, so that one wild interval does not flatten the rest.
    reach = max(top - bottom, _SMALLEST_SPAN * abs(sorted(values)[len(values) // 2])) / 2
    bottom = min([bottom, *(max(p.low, bottom - reach) for p in points if math.isfinite(p.low))])
    top = max([top, *(min(p.high, top + reach) for p in points if math.isfinite(p.high))])
    short_by = _SMALLEST_SPAN * abs(sorted(values)[len(values) // 2]) - (top - bottom)
    if short_by > 0:
        bottom, top = bottom - short_by / 2, top + short_by / 2
    return (bottom, top) if top > bottom else (bottom - 1.0, top + 1.0)


def _runs(points: Sequence[Point]) -> list[list[Point]]:
    runs: list[list[Point]] = [[points[0]]]
    for point in points[1:]:
        if point.at == runs[-1][-1].at + 1:
            runs[-1].append(point)
        else:
            runs.append([point])
    return runs


def _known(run: Sequence[Point]) -> list[list[Point]]:
    """The parts of a run whose intervals are known."""
    parts: list[list[Point]] = [[]]
    for point in run:
        if math.isfinite(point.low) and math.isfinite(point.high):
            parts[-1].append(point)
        elif parts[-1]:
            parts.append([])
    return [part for part in parts if part]
