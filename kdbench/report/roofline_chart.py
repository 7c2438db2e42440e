# SPDX-License-Identifier: Apache-2.0
"""The roofline of one machine: FLOPs a byte against FLOPs a second, both logarithmic. Coordinates only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kdbench.ceilings import Ceilings

WIDTH, HEIGHT = 640.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 56.0, 24.0, 12.0, 34.0
# A figure of roofs alone would say nothing, and one of a decade would show noise: at least this much is drawn.
_LEAST_DECADES = 2.0


@dataclass(frozen=True)
class Series:
    """One series: what it is called, FLOPs a byte, FLOPs a second, and whether its number is doubted."""

    name: str
    intensity: float
    flop_rate: float
    doubtful: bool = False


@dataclass(frozen=True)
class Chart:
    """Coordinates in a box of WIDTH x HEIGHT.

    Attributes:
        roof: measured ceiling, as SVG ``points`` text.
        sheet: the datasheet's, "" where it is not known.
        dots: (x, y, what it is, doubtful) of each series.
        columns: (x, label) of the decades of FLOPs a byte.
        lines: (y, label) of the decades of FLOPs a second.
    """

    roof: str
    sheet: str
    dots: tuple[tuple[float, float, str, bool], ...]
    columns: tuple[tuple[float, str], ...]
    lines: tuple[tuple[float, str], ...]


def draw(series: Sequence[Series], measured: Ceilings, datasheet: Ceilings | None) -> Chart | None:
    """Lay out the series under their roofs; None where no series has FLOPs or a rate of the roof is not known."""
    shown = [one for one in series if one.intensity > 0 and one.flop_rate > 0]
    if not shown or not (measured.bytes_per_s > 0 and measured.flops_per_s > 0):
        return None
    ridge = measured.flops_per_s / measured.bytes_per_s
    left = math.floor(math.log10(min([ridge, *(one.intensity for one in shown)])))
    right = math.ceil(math.log10(max([ridge * 4, *(one.intensity for one in shown)])))
    top = math.log10(1.6 * max(roof.flops_per_s for roof in (measured, datasheet) if roof))
    bottom = min(math.log10(min(one.flop_rate for one in shown)) - 0.2, top - _LEAST_DECADES)

    def x(intensity: float) -> float:
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * (math.log10(intensity) - left) / (right - left), 1)

    def y(rate: float) -> float:
        at = min(max((math.log10(rate) - bottom) / (top - bottom), 0.0), 1.0)
        return round(HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * at, 1)

    def roof(rates: Ceilings) -> str:
        # The slanted part begins where the figure does, at the left or at the bottom.
        start = max(10.0**left, 10.0**bottom / rates.bytes_per_s)
        bend = max(start, rates.flops_per_s / rates.bytes_per_s)
        corners = [(start, start * rates.bytes_per_s), (bend, rates.flops_per_s), (10.0**right, rates.flops_per_s)]
        return " ".join(f"{x(intensity)},{y(rate)}" for intensity, rate in corners)

    return Chart(
        roof=roof(measured),
        sheet=roof(datasheet) if datasheet else "",
        dots=tuple((x(one.intensity), y(one.flop_rate), one.name, one.doubtful) for one in shown),
        columns=tuple((x(10.0**power), f"{10.0**power:g}") for power in range(left, right + 1)),
        lines=tuple((y(10.0**power), _tera(power)) for power in range(math.ceil(bottom), math.floor(top) + 1)),
    )


def _tera(power: int) -> str:
    return f"{10.0 ** (power - 12):g}"
