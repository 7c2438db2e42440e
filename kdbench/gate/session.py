# SPDX-License-Identifier: Apache-2.0
"""One run of the gate: the range, the reviewed file, the comparison, the decisions."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kdbench import machine, native, revisions
from kdbench.errors import InvalidArgument
from kdbench.gate import policy, rules
from kdbench.paired.types import Comparison, Update
from kdbench.runner import MEASURED, series_names
from kdbench.workloads import KERNELS

INTERRUPTED = 130


# ``kdbench.paired.compare``, or a stand-in.
Compare = Callable[..., Comparison]


@dataclass(frozen=True)
class Gated:
    """What a gate found.

    Attributes:
        asked: the range as it was given.
        base, head: full hashes.
        decisions: the worst first.
        warnings: sentences that decide nothing.
        machine: where it was measured.
        started: ISO time.
        seconds: wall time.
        interrupted: by Ctrl-C: never green.
        same_engine: nothing of the engine lies between the ends, so that nothing had to be measured.
    """

    asked: str
    base: str
    head: str
    decisions: tuple[policy.Decision, ...]
    warnings: tuple[str, ...]
    machine: str
    started: str
    seconds: float
    interrupted: bool = False
    same_engine: bool = False

    @property
    def code(self) -> int:
        """The exit code."""
        if self.same_engine:
            return policy.PASSED
        code = policy.exit_code(self.decisions)
        return INTERRUPTED if self.interrupted and code == policy.PASSED else code

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "schema": "kdbench/gate/1",
            "range": self.asked,
            "base": self.base,
            "head": self.head,
            "exit_code": self.code,
            "counts": {state: sum(d.state == state for d in self.decisions) for state in policy.STATES},
            "machine": self.machine,
            "started": self.started,
            "seconds": self.seconds,
            "interrupted": self.interrupted,
            "same_engine": self.same_engine,
            "warnings": list(self.warnings),
            "series": [_plain(decision) for decision in self.decisions],
        }


def gate(
    repo: Path,
    asked: str,
    compare: Compare,
    *,
    bench: str | None = None,
    kernels: Sequence[str] | None = None,
    backends: Sequence[str] | None = None,
    tag: str | None = None,
    max_regression: float | None = None,
    rules_file: Path | None = None,
    today: datetime.date | None = None,
    on_update: Callable[[Update], None] | None = None,
    **options: Any,
) -> Gated:
    """Compare the ends of a range and decide.

    Args:
        repo: folder in the repository.
        asked: a range, as for ``revisions.ends``.
        compare: ``kdbench.paired.compare``.
        bench, kernels, tag: which series; see there.
        backends: None for what this machine has. One that is named and cannot be used leaves its series unknown.
        max_regression: slowdown that passes, for series without a threshold of their own; None is the file's, or else
            each series' own.
        rules_file: None for benchmarks/gate.toml, where there is one.
        today: of whom an entry's expiry is asked; by default the day it is.
        on_update, options: handed to ``compare``.

    Raises:
        InvalidArgument: the range, the file or the selection is wrong.
        kdbench.paired.BuildError: an end cannot be built.
    """
    # Before minutes of measuring: an entry that has expired, a name that nobody knows.
    base, head = revisions.ends(repo, asked)
    if base == head:
        raise InvalidArgument(f"{asked}: both ends are {base[:10]}, and there is nothing between them to judge")
    reviewed = rules.load(rules_file, repo, today or datetime.datetime.now(datetime.UTC).date())
    chosen = kernels or (MEASURED if bench else KERNELS)
    names = series_names(chosen, backends or native.BACKENDS, ("primary",), tag, bench)
    limits = {name: limit for name in names if (limit := reviewed.limit(name, max_regression)) is not None}
    if revisions.same_engine(repo, base, head):
        # Builds of the same sources cannot differ, and a busy machine must not say that they might.
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return Gated(asked, base, head, (), (), machine.identity()["machine"], now, 0.0, same_engine=True)
    found = compare(
        repo,
        base,
        head,
        bench,
        kernels=kernels,
        backends=backends or native.BACKENDS,
        tag=tag,
        min_effect=limits or None,
        on_update=on_update,
        **options,
    )
    decisions = policy.decide(
        found.results,
        reviewed,
        usual=max_regression,
        in_range=lambda commits: revisions.holds(repo, base, head, commits),
        # Of the decode loop only what is a time is compared; a backend that cannot be used is missed by its kernels.
        expected=[name for name in names if ".kern_" in name] if backends else (),
    )
    warnings = policy.unused(reviewed, decisions) if bench is None and kernels is None and tag is None else []
    return Gated(
        asked,
        base,
        head,
        tuple(decisions),
        tuple(warnings),
        found.machine,
        found.started,
        found.seconds,
        found.interrupted,
    )


def _plain(decision: policy.Decision) -> dict[str, Any]:
    fields = asdict(decision)
    if decision.accepted is not None:
        fields["accepted"]["expires"] = str(decision.accepted.expires)
    return {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in fields.items()}
