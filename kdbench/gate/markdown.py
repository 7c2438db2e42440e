# SPDX-License-Identifier: Apache-2.0
"""Decisions as a comment for a pull request: what needs eyes first, what passed folded away."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kdbench import units
from kdbench.gate import words
from kdbench.gate.policy import PASSED, SLOWER, Decision, exit_code

# GitHub refuses comments above 65,536 characters.
_LONGEST = 60_000
# What Markdown would read as more than text: tables, emphasis, code, links, HTML.
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~<>$^&])")
# GitHub looks for mentions and issues after Markdown is gone: a character of no width keeps them from being found.
_LINKED = re.compile(r"([@#])(?=\w)")
_SIGNS = {"slower": "❌", "unknown": "❔", "accepted": "⚠️", "passed": "✅"}


def comment(decisions: Sequence[Decision], base: str, head: str, about: Sequence[str] = ()) -> str:
    """The whole comment, ending in a newline.

    Args:
        decisions: as from ``policy.decide``.
        base, head: how the two sides are called.
        about: further lines, for example the machine.
    """
    code = exit_code(decisions)
    outcome = {PASSED: "passed", SLOWER: "regression"}.get(code, "could not tell")
    head_lines = [
        f"### kdbench gate: {outcome}",
        "",
        f"{escape(base)} → {escape(head)}: {escape(words.headline(decisions))}",
        "",
    ]
    foot = [f"<sub>{escape(line)}</sub>  " for line in about]
    shown = [decision for decision in decisions if decision.state != "passed"]
    passed = [decision for decision in decisions if decision.state == "passed"]
    room = _LONGEST - sum(len(line) + 1 for line in (*head_lines, *foot))
    body = _table(shown, room)
    if passed:
        room -= sum(len(line) + 1 for line in body) + 100
        body += ["<details>", f"<summary>{len(passed)} passed</summary>", "", *_table(passed, room), "</details>", ""]
    return "\n".join([*head_lines, *body, *foot]).rstrip() + "\n"


def escape(text: str) -> str:
    """``text`` so that it is shown as it is, on one line."""
    return _LINKED.sub("\\1\N{ZERO WIDTH SPACE}", _SPECIAL.sub(r"\\\1", " ".join(text.split())))


def _table(decisions: Sequence[Decision], room: int) -> list[str]:
    if not decisions:
        return []
    lines = ["| | series | verdict | change | interval | allowed | |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for at, decision in enumerate(decisions):
        cells = (
            _SIGNS[decision.state],
            escape(decision.series),
            decision.verdict,
            words.change(decision),
            words.interval(decision),
            units.change(decision.max_regression),
            escape(decision.reason),
        )
        line = f"| {' | '.join(cells)} |"
        room -= len(line) + 1
        if room < 0:
            lines += ["", f"and {len(decisions) - at} more: see the log", ""]
            return lines
        lines.append(line)
    return [*lines, ""]
