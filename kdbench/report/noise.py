# SPDX-License-Identifier: Apache-2.0
"""The smallest change that each series of the report lets one see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from kdbench.analysis.noise import PROCESSES, mde_for, series_name


class Sight:
    """What can be seen, by series.

    Args:
        noise: as ``kdbench.analysis.noise.mde_for`` takes it; None when it is not known.
    """

    def __init__(self, noise: pd.DataFrame | None) -> None:
        self._noise = noise

    def of(self, row: Mapping[Any, Any]) -> float | None:
        """Minimum detectable effect of a series at as many processes as its newest commit has; None when unknown."""
        if self._noise is None or row["status"] != "ok":
            return None
        processes = max(2, int(row["processes"] or PROCESSES))
        return mde_for(self._noise, series_name(row["name"], row["params"]), row["machine"], processes)
