# SPDX-License-Identifier: Apache-2.0
"""``kdbench lint`` before ``asv publish``, which fits steps first of all, and never ends on an infinity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from asv import util
from asv.commands.publish import Publish
from asv.console import log

from kdbench.errors import KdbenchError
from kdbench.lint import lint

_SHOWN = 20


def install() -> None:
    """Wrap asv's publish command."""
    original = Publish.run.__func__

    def run(cls: Any, conf: Any, *args: Any, **kwargs: Any) -> Any:
        repo = Path(conf.repo)
        try:
            findings = lint(Path(conf.results_dir), repo=repo if repo.is_dir() else None, branches=conf.branches)
        except KdbenchError as error:
            raise util.UserError(str(error)) from error
        fatal = [str(finding) for finding in findings if finding.fatal]
        if fatal:
            more = [f"... and {len(fatal) - _SHOWN} more"] if len(fatal) > _SHOWN else []
            raise util.UserError(
                "Results that publish would hang or die on; repair or remove them:\n  "
                + "\n  ".join([*fatal[:_SHOWN], *more])
            )
        for finding in findings[:_SHOWN]:
            log.warning(str(finding))
        if len(findings) > _SHOWN:
            log.warning(f"... and {len(findings) - _SHOWN} more findings: see kdbench lint")
        return original(cls, conf, *args, **kwargs)

    Publish.run = classmethod(run)
