# SPDX-License-Identifier: Apache-2.0
"""Typed reading of a config.json: a field has the type and range that was asked for, or one sentence says why not."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

from kdbench.errors import ModelError

_ABSENT: Any = object()


class Fields:
    """The fields of one JSON object, named in errors by ``where`` (a file, or a file and a field of it)."""

    def __init__(self, values: dict[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    @classmethod
    def of_directory(cls, directory: Path | str) -> Fields:
        """The object in ``directory``/config.json."""
        path = Path(directory) / "config.json"
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            raise ModelError(f"{path} is no JSON: {error}") from error
        if not isinstance(values, dict):
            raise ModelError(f"{path} holds {_told(values)}; wanted an object")
        return cls(values, str(path))

    def refuse(self, name: str, wanted: str) -> ModelError:
        """The error for a field that is not what was wanted."""
        came = _told(self.values[name]) if name in self.values else "missing"
        return ModelError(f"{self.where}: {name} is {came}; wanted {wanted}")

    def has(self, name: str) -> bool:
        """True for a field that is there and not null."""
        return self.values.get(name) is not None

    def integer(self, name: str, low: int = 1, high: int = 2**31 - 1, default: int = _ABSENT) -> int:
        """An integer of ``low`` to ``high``; ``default`` for one that is absent or null."""
        if not self.has(name) and default is not _ABSENT:
            return default
        value = self.values.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.refuse(name, f"an integer of {low} to {high}" if high < 2**31 - 1 else f"an integer >= {low}")
        return value

    def number(self, name: str, above: float = 0.0, default: float = _ABSENT, *, or_equal: bool = False) -> float:
        """A finite number above ``above`` (or equal to it)."""
        if not self.has(name) and default is not _ABSENT:
            return default
        value = self.values.get(name)
        number = math.nan
        if isinstance(value, int | float) and not isinstance(value, bool):
            with contextlib.suppress(OverflowError):  # JSON's integers have no bound
                number = float(value)
        if not math.isfinite(number) or number < above or (number == above and not or_equal):
            raise self.refuse(name, f"a number {'>=' if or_equal else '>'} {above:g}")
        return number

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self.values.get(name)
        if not isinstance(value, bool):
            raise self.refuse(name, "true or false")
        return value

    def only(self, name: str, wanted: Any) -> None:
        """Refuses any value but ``wanted``; an absent or null field counts as that."""
        value = self.values[name] if self.has(name) else wanted
        if value != wanted or isinstance(value, bool) != isinstance(wanted, bool):
            raise self.refuse(name, json.dumps(wanted))

    def integers(self, name: str, low: int, high: int) -> tuple[int, ...]:
        """A list of integers of ``low`` to ``high``."""
        value = self.values.get(name)
        if not isinstance(value, list) or not all(
            isinstance(item, int) and not isinstance(item, bool) and low <= item <= high for item in value
        ):
            raise self.refuse(name, f"a list of integers of {low} to {high}")
        return tuple(value)

    def inner(self, name: str) -> Fields:
        """The object in field ``name``."""
        value = self.values.get(name)
        if not isinstance(value, dict):
            raise self.refuse(name, "an object")
        return Fields(value, f"{self.where}: {name}")


def _told(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
