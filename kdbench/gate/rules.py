# SPDX-License-Identifier: Apache-2.0
"""The reviewed file beside the suites: how much slower a series may get, and which slowdowns are accepted.

.. code-block:: toml

    max_regression = "2%"                     # of series that nothing below fits; by default each one's own

    [[threshold]]                             # the first that fits a series counts
    series = "VerifyAttn.*'cuda'"             # regular expression, searched in the series' name
    max_regression = "3%"
    reason = "bandwidth-bound, and this GPU shares its memory clock"
    expires = 2027-06-30

    [[accepted]]
    series = "TreeAccept.kern_hot.*'cpu'"
    commits = "3f2a9c1d"                      # or a range "a..b": counts while the gate's range holds one of them
    max_ratio = 1.06                          # slower than this is a regression all the same
    reason = "source_slots are worth 5 %: kv_compact saves 40 %"
    expires = 2027-01-31

An entry without a reason, or one that has expired, is an error: the gate does not run until somebody has looked at it.
"""

from __future__ import annotations

import datetime
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kdbench.errors import InvalidArgument

DEFAULT_FILE = Path("benchmarks/gate.toml")
_COMMITS = re.compile(r"[0-9a-fA-F]{7,64}(\.\.[0-9a-fA-F]{7,64})?")


@dataclass(frozen=True)
class Threshold:
    """How much slower the series that fit may get.

    Attributes:
        series: regular expression.
        max_regression: fraction; 0.02 is 2 %.
        reason: why not the usual one.
        expires: last day on which it counts.
    """

    series: str
    max_regression: float
    reason: str
    expires: datetime.date


@dataclass(frozen=True)
class Accepted:
    """A slowdown that somebody decided to live with.

    Attributes:
        series: regular expression.
        commits: hash, or "a..b", of the commits that it is about; None for any.
        max_ratio: largest head / base that is accepted; None for any.
        reason: why it is accepted.
        expires: last day on which it counts.
    """

    series: str
    commits: str | None
    max_ratio: float | None
    reason: str
    expires: datetime.date


@dataclass(frozen=True)
class Rules:
    """What the file says.

    Attributes:
        max_regression: of series that no threshold fits; None when the file does not say.
        thresholds: in the order of the file.
        accepted: in the order of the file.
        path: the file, None without one.
    """

    max_regression: float | None = None
    thresholds: tuple[Threshold, ...] = ()
    accepted: tuple[Accepted, ...] = ()
    path: Path | None = None

    def limit(self, series: str, usual: float | None = None) -> float | None:
        """The largest slowdown of ``series`` that passes, as a fraction; None leaves it to the series itself.

        Args:
            usual: what the command line says for series without a threshold of their own.
        """
        for threshold in self.thresholds:
            if re.search(threshold.series, series):
                return threshold.max_regression
        return self.max_regression if usual is None else usual


def fraction(text: str, what: str) -> float:
    """``"2%"`` or ``"0.02"`` as 0.02.

    Raises:
        InvalidArgument: no number, or not between 0 and 1 (a slowdown of 100 % passes nothing by).
    """
    number, percent, rest = text.strip().partition("%")
    try:
        value = float(number) / (100.0 if percent else 1.0)
    except ValueError:
        value = math.nan
    if rest.strip() or not 0.0 < value < 1.0:
        raise InvalidArgument(f"{what} is {text!r}, and a fraction between 0 and 1, such as 2% or 0.02, is wanted")
    return value


def load(path: Path | None, folder: Path, today: datetime.date) -> Rules:
    """Read the file.

    Args:
        path: as given by the user, or None for benchmarks/gate.toml in ``folder`` where there is one.
        folder: of the repository.
        today: expiry is counted from.

    Raises:
        InvalidArgument: naming the file, the entry and what is wrong with it.
    """
    if path is None:
        path = folder / DEFAULT_FILE
        if not path.is_file():
            return Rules()
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path} is no TOML: {error}") from error
    _only(content, {"max_regression", "threshold", "accepted"}, str(path))
    usual = content.get("max_regression")
    return Rules(
        None if usual is None else fraction(str(usual), f"{path}: max_regression"),
        tuple(_threshold(entry, where, today) for entry, where in _entries(content, "threshold", path)),
        tuple(_accepted(entry, where, today) for entry, where in _entries(content, "accepted", path)),
        path,
    )


def _entries(content: Mapping[str, Any], kind: str, path: Path) -> list[tuple[Mapping[str, Any], str]]:
    entries = content.get(kind, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidArgument(f"{path}: {kind} is no list of tables: write [[{kind}]] above each entry")
    return [(entry, f"{path}: [[{kind}]] {at}") for at, entry in enumerate(entries, 1)]


def _threshold(entry: Mapping[str, Any], where: str, today: datetime.date) -> Threshold:
    _only(entry, {"series", "max_regression", "reason", "expires"}, where)
    if "max_regression" not in entry:
        raise InvalidArgument(f"{where} has no max_regression")
    limit = fraction(str(entry["max_regression"]), f"{where}: max_regression")
    return Threshold(_series(entry, where), limit, _reason(entry, where), _expires(entry, where, today))


def _accepted(entry: Mapping[str, Any], where: str, today: datetime.date) -> Accepted:
    _only(entry, {"series", "commits", "max_ratio", "reason", "expires"}, where)
    commits, ratio = entry.get("commits"), entry.get("max_ratio")
    if commits is None and ratio is None:
        raise InvalidArgument(f"{where} has neither commits nor max_ratio: it would accept every slowdown there is")
    if commits is not None and not (isinstance(commits, str) and _COMMITS.fullmatch(commits)):
        # A branch or tag moves, and what was accepted would move with it.
        raise InvalidArgument(f"{where}: commits is {commits!r}, and a hash or hash..hash is wanted, 7 digits or more")
    if ratio is not None and not (isinstance(ratio, int | float) and math.isfinite(ratio) and ratio > 1.0):
        raise InvalidArgument(f"{where}: max_ratio is {ratio!r}, and a number above 1, such as 1.05, is wanted")
    ratio = None if ratio is None else float(ratio)
    return Accepted(_series(entry, where), commits, ratio, _reason(entry, where), _expires(entry, where, today))


def _only(entry: Mapping[str, Any], known: set[str], where: str) -> None:
    if unknown := sorted(set(entry) - known):
        # A misspelt key would silently not count.
        raise InvalidArgument(f"{where} has {', '.join(unknown)}; known are {', '.join(sorted(known))}")


def _series(entry: Mapping[str, Any], where: str) -> str:
    pattern = entry.get("series")
    if not isinstance(pattern, str) or not pattern.strip():
        raise InvalidArgument(f"{where} has no series: a regular expression is wanted")
    try:
        re.compile(pattern)
    except re.error as error:
        raise InvalidArgument(f"{where}: series {pattern!r} is no regular expression: {error}") from error
    return pattern


def _reason(entry: Mapping[str, Any], where: str) -> str:
    reason = entry.get("reason")
    if not isinstance(reason, str) or not reason.strip():
        raise InvalidArgument(f"{where} has no reason: say why, for whoever reads this next")
    return reason.strip()


def _expires(entry: Mapping[str, Any], where: str, today: datetime.date) -> datetime.date:
    expires = entry.get("expires")
    if isinstance(expires, datetime.datetime) or not isinstance(expires, datetime.date):
        raise InvalidArgument(f"{where}: expires is {expires!r}, and a date without quotes, as 2027-01-31, is wanted")
    if expires < today:
        raise InvalidArgument(f"{where} expired on {expires}: remove it, or say anew why and until when")
    return expires
