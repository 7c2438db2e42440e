# SPDX-License-Identifier: Apache-2.0
"""Builds: the right environment for them, the right library for each benchmark process, and a log when one fails.

asv throws away what a failed build printed. Here it goes to ``.asv/logs/``, with a line in
``results/<machine>/failures.jsonl``; the commit's results are null and the run goes on.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from asv import environment, util
from asv.console import log

from kdbench import machine as this_machine
from kdbench import provenance
from kdbench.asv_plugin import machine_entry

_TAIL = 4000
_failed: dict[tuple[str, str], util.ProcessError] = {}


def install() -> None:
    """Wrap asv's Environment."""
    # nvcc without a GPU would compile for minutes, for kernels that nothing here can run.
    if not this_machine.gpu_answers():
        os.environ.setdefault("KDTREE_CUDA", "0")
    _keep_logs()
    _use_own_library()


def _keep_logs() -> None:
    original = environment.Environment.install_project

    def install_project(self: Any, conf: Any, repo: Any, commit_hash: str) -> None:
        known = (commit_hash, self.name)
        if known in _failed:
            # Rounds take turns, and each would build the commit again.
            raise _failed[known]
        try:
            original(self, conf, repo, commit_hash)
        except util.ProcessError as error:
            _failed[known] = error
            _report(self, conf, commit_hash, error)
            raise
        except (util.UserError, OSError) as error:
            # A command that is not there, or no wheel: asv would end the whole run.
            failure = _failed[known] = util.ProcessError(["build"], 1, "", str(error))
            _report(self, conf, commit_hash, failure)
            raise failure from error

    environment.Environment.install_project = install_project


def _report(env: Any, conf: Any, commit_hash: str, error: Any) -> None:
    output = output_of(error)
    folder = Path(conf.env_dir).parent / "logs"
    path = folder / f"{commit_hash[:8]}-{env.name}.log"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(f"commit {commit_hash}\nenvironment {env.name}\n{error}\n\n{output}\n", "utf-8")
    log.error(f"Commit {commit_hash[:8]} does not build: see {path}")
    provenance.append(
        Path(conf.results_dir) / machine_entry.current() / "failures.jsonl",
        {
            "schema": provenance.FAILURE,
            "kind": "build",
            "commit": commit_hash,
            "env_name": env.name,
            "time": datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="seconds"),
            "command": str(error),
            "log": str(path),
            "output_tail": output[-_TAIL:],
        },
    )


def output_of(error: Any) -> str:
    """What a failed command printed, stdout before stderr."""
    parts = (getattr(error, name, None) for name in ("stdout", "stderr"))
    return "\n".join(str(part).strip() for part in parts if part).strip()


def _use_own_library() -> None:
    """Let every process of a managed environment load that environment's library and no other.

    A developer's KDTREE_NATIVE_DIR, or an editable kdtree-native of the parent interpreter, would otherwise be measured
    under every commit's name.
    """
    original = environment.Environment.run_executable

    def run_executable(self: Any, executable: str, args: list[str], **kwargs: Any) -> Any:
        given = dict(kwargs.pop("env", os.environ))
        installed = sorted(Path(self._path).glob("lib/python*/site-packages/kdtree_native"))
        given["KDTREE_NATIVE_DIR"] = str(installed[0] if installed else Path(self._path) / "no-kdtree-native")
        return original(self, executable, args, env=given, **kwargs)

    environment.Environment.run_executable = run_executable
