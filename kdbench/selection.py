# SPDX-License-Identifier: Apache-2.0
"""What a command line selects by, checked before anything is done."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kdbench.errors import InvalidArgument


def pattern(option: str, text: str | None) -> str | None:
    """``text``, once it is a regular expression; None stays None."""
    try:
        re.compile(text or "")
    except re.error as error:
        raise InvalidArgument(f"{option} {text!r} is no regular expression: {error}") from error
    return text


def chosen(option: str, wanted: Sequence[str] | None, known: Sequence[str]) -> Sequence[str] | None:
    """``wanted``, once all of it is known; None for nothing wanted."""
    for name in wanted or ():
        if name not in known:
            raise InvalidArgument(f"{option} {name}: choose from {', '.join(known)}")
    return wanted or None
