# SPDX-License-Identifier: Apache-2.0
"""Numbers as people read them. Everywhere else kdbench keeps seconds and fractions."""

from __future__ import annotations

import math
from typing import Any

_TIME = ((1e-9, "ns"), (1e-6, "µs"), (1e-3, "ms"), (1.0, "s"))
_BYTES = ((1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"))
_MINUS = "\N{MINUS SIGN}"
_THIN = "\N{NARROW NO-BREAK SPACE}"


def quantity(value: float, unit: str) -> str:
    """A number with its unit, four significant digits: 12.35 µs."""
    return f"{_number(value, *_scale(value, unit))}{_label(value, unit)}" if math.isfinite(value) else "n/a"


def interval(value: float, low: float, high: float, unit: str) -> str:
    """An interval in the scale of the value that it belongs to, without the unit: 12.21 – 12.52; "" when unknown."""
    if not (math.isfinite(low) and math.isfinite(high) and math.isfinite(value)):
        return ""
    scale, digits = _scale(value, unit)
    return f"{_number(low, scale, digits)} – {_number(high, scale, digits)}"


def change(fraction: float) -> str:
    """A change in per cent with its sign: +1.9 %; "" when unknown."""
    if not math.isfinite(fraction):
        return ""
    percent = 100.0 * fraction
    digits = 0 if abs(percent) >= 100 else 1
    text = f"{abs(percent):,.{digits}f}{_THIN}%"
    if float(f"{abs(percent):.{digits}f}") == 0.0:
        return text
    return f"{'+' if percent > 0 else _MINUS}{text}"


def change_interval(low: float, high: float) -> str:
    """An interval of a change: −0.3 … +0.4 %; "" when unknown."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f"{change(low).removesuffix(f'{_THIN}%')} … {change(high)}"


def percent(fraction: float) -> str:
    """A size in per cent, two significant digits: 0.26 %, 12 %."""
    return f"{100.0 * fraction:.2g}{_THIN}%" if fraction < 0.1 else f"{100.0 * fraction:,.0f}{_THIN}%"


def count(number: int, noun: str) -> str:
    """A number of things: 1 commit, 2 commits, 2 processes."""
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def scale_of(value: float, unit: str) -> tuple[float, str]:
    """Divisor and name of the unit that suits a number: (1e-6, "µs") for 12e-6 seconds."""
    return _pick(value, unit)


def short(sha: str | None) -> str:
    """The part of a commit hash that people read."""
    return (sha or "")[:10]


def day(date: Any) -> str:
    """The day of a pandas timestamp, "" for none."""
    return "" if date is None or date != date else str(date.strftime("%Y-%m-%d"))


def _scale(value: float, unit: str) -> tuple[float, int]:
    """Divisor and decimals that show four significant digits of ``value``."""
    scale = _pick(value, unit)[0]
    size = float(f"{abs(value / scale):.4g}")
    if size == 0 or not math.isfinite(size):
        return scale, 0
    return scale, max(0, 3 - math.floor(math.log10(size)))


def _label(value: float, unit: str) -> str:
    name = _pick(value, unit)[1]
    return f"{_THIN}{name}" if name else ""


def _pick(value: float, unit: str) -> tuple[float, str]:
    ladder = {"seconds": _TIME, "s": _TIME, "bytes": _BYTES}.get(unit)
    if ladder is None:
        return 1.0, "" if unit == "unit" else unit
    if value == 0 or not math.isfinite(value):
        return 1.0, ladder[-1 if ladder is _TIME else 0][1]
    # 999.96 ns is shown as 1.000 µs, not as 1000 ns.
    return max((step for step in ladder if step[0] <= abs(value) * 1.00005), default=ladder[0])


def _number(value: float, scale: float, digits: int) -> str:
    text = f"{value / scale:,.{min(digits, 12)}f}"
    if digits > 9:
        text = f"{value / scale:.4g}"
    return text.replace("-", _MINUS, 1) if text.startswith("-") else text
