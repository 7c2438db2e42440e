# SPDX-License-Identifier: Apache-2.0
"""Decisions as GitHub's workflow commands, which show them beside the run and the pull request."""

from __future__ import annotations

from collections.abc import Sequence

from kdbench.gate import words
from kdbench.gate.policy import Decision

# GitHub shows ten annotations of a kind a step and drops the others without a word.
_MOST = 9
_KINDS = {"slower": "error", "unknown": "warning", "accepted": "notice"}


def lines(decisions: Sequence[Decision]) -> list[str]:
    """One command a series that did not simply pass, and one for what did not fit."""
    found: list[str] = []
    for state, kind in _KINDS.items():
        chosen = [decision for decision in decisions if decision.state == state]
        found += [_command(kind, decision.series, words.sentence(decision)) for decision in chosen[:_MOST]]
        if len(chosen) > _MOST:
            found.append(_command(kind, "kdbench gate", f"{len(chosen) - _MOST} more {state}: see the log"))
    return found


def error(message: str) -> str:
    """The command for a gate that could not run."""
    return _command("error", "kdbench gate", message)


def _command(kind: str, title: str, message: str) -> str:
    return f"::{kind} title={_property(title)}::{_data(message)}"


def _data(text: str) -> str:
    # The runner takes a line as the command, and reverses exactly these.
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
