# SPDX-License-Identifier: Apache-2.0
"""asv's parameters (lists of Python reprs) as plain values, and foreign text made safe to write anywhere."""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Sequence
from typing import Any


def combinations(params: Sequence[Sequence[str]], names: object) -> list[dict[str, Any]]:
    """One dict per combination, in the order in which asv flattens its columns.

    Args:
        params: per parameter the reprs of its values.
        names: ``param_names`` of benchmarks.json; anything but a fitting list of texts gives param1, param2, ...

    Returns:
        ``[{}]`` for a benchmark without parameters.
    """
    labels = _labels(names, len(params))
    decoded = [[value_of(text) for text in values] for values in params]
    return [dict(zip(labels, cell, strict=True)) for cell in itertools.product(*decoded)]


def value_of(text: object) -> Any:
    """The value behind a repr when JSON can hold it without loss (text, bool, None, finite number), else the repr."""
    if not isinstance(text, str):
        return plain_text(str(text))
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return plain_text(text)
    if isinstance(value, str):
        return plain_text(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return plain_text(text)


def plain_text(text: str) -> str:
    """Text that UTF-8, HTML and JSON can all carry: lone surrogates and control characters become U+FFFD."""
    if text.isprintable():
        return text
    return "".join("\ufffd" if _is_control(c) and c not in "\n\t" else c for c in text)


def _is_control(char: str) -> bool:
    code = ord(char)
    return code < 0x20 or 0x7F <= code <= 0x9F or 0xD800 <= code <= 0xDFFF or code in (0xFFFE, 0xFFFF)


def _labels(names: object, count: int) -> list[str]:
    if not (isinstance(names, list) and len(names) == count and all(isinstance(n, str) for n in names)):
        return [f"param{at + 1}" for at in range(count)]
    labels: list[str] = []
    for name in map(plain_text, names):
        # asv allows two parameters of one name; a dict does not.
        twin = sum(label == name or label.startswith(f"{name}#") for label in labels)
        labels.append(f"{name}#{twin + 1}" if twin else name)
    return labels
