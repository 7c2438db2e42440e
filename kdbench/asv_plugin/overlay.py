# SPDX-License-Identifier: Apache-2.0
"""The ``overlay`` environment: seconds a commit, no network, no second copy of a multi-gigabyte framework.

A virtual environment without pip whose one ``.pth`` file names the configuration's folder (for kdbench) and then
everything that the running interpreter imports from. Only the commit's native wheel is installed into it, built by
the very build_command of asv.conf.json. Results are comparable with ``virtualenv`` ones only through their records:
use one of the two on a machine.
"""

from __future__ import annotations

import importlib.util
import json
import os
import site
import sys
import sysconfig
import tempfile
import venv
import zipfile
from pathlib import Path
from typing import Any

from asv import benchmarks, environment, runner, util
from asv.console import log

from kdbench.asv_plugin import builds

_PTH = "kdbench_overlay.pth"
# No index is asked, so that a box without network behaves as one with.
_PIP_ENVIRONMENT = {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}


def running_python() -> str:
    """Major and minor version of the running interpreter, as asv writes it."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


class Overlay(environment.Environment):
    """See the module; ``-E overlay``, or ``"environment_type": "overlay"``."""

    tool_name = "overlay"

    def __init__(self, conf: Any, python: str, requirements: dict[str, str], tagged_env_vars: dict[Any, str]) -> None:
        if not self.matches(python):
            raise environment.EnvironmentUnavailable(
                f"an overlay reuses the running Python {running_python()}, and Python {python} is asked for"
            )
        # Both are read by the base class while it builds the name.
        self._python = running_python()
        self._requirements = requirements
        super().__init__(conf, self._python, requirements, tagged_env_vars)

    @classmethod
    def matches(cls, python: str) -> bool:
        """True for the running interpreter's version."""
        return python in (running_python(), "same")

    @property
    def site_packages(self) -> Path:
        """Where the commit's wheel goes."""
        return Path(self._path) / "lib" / f"python{running_python()}" / "site-packages"

    def check_presence(self) -> bool:
        """Also False when the environment was made from another interpreter."""
        home = _pyvenv_home(Path(self._path) / "pyvenv.cfg")
        return home == str(Path(_base_executable()).parent) and bool(super().check_presence())

    def create(self) -> None:
        """Create when missing; the list of paths is written each time, since the parent's may have changed."""
        super().create()
        self._write_paths()

    def _setup(self) -> None:
        log.info(f"Creating overlay environment {self.name}")
        venv.EnvBuilder(symlinks=True, with_pip=False).create(self._path)
        self._write_paths()
        # asv takes an environment without bin/pip for broken.
        pip = Path(self._path) / "bin" / "pip"
        pip.write_text('#!/bin/sh\nexec "$(dirname "$0")/python" -m pip "$@"\n', "utf-8")
        pip.chmod(0o755)

    def _write_paths(self) -> None:
        lines = [os.path.abspath(os.getcwd()), *parent_paths(os.getcwd())]
        (self.site_packages / _PTH).write_text("\n".join(lines) + "\n", "utf-8")

    def _uninstall_project(self) -> None:
        self._set_installed_commit_hash(None)
        for entry in self.site_packages.iterdir():
            if entry.name != _PTH:
                util.long_path_rmtree(str(entry)) if entry.is_dir() else entry.unlink()

    def _install_project(self, repo: Any, commit_hash: str, build_dir: str) -> None:
        folder = Path(self._global_env_vars["ASV_BUILD_CACHE_DIR"])
        wheels = sorted(folder.glob("*.whl"))
        if len(wheels) != 1:
            found = ", ".join(wheel.name for wheel in wheels) or "none"
            raise util.ProcessError(["install"], 1, "", f"one wheel is expected in {folder}, and there is {found}")
        # A wheel without scripts is a zip of what belongs into site-packages. pip would take longer, and would look at
        # the parent's packages first.
        with zipfile.ZipFile(wheels[0]) as archive:
            archive.extractall(self.site_packages)

    def run_executable(self, executable: str, args: list[str], **kwargs: Any) -> Any:
        """As the base class, with pip kept off the network."""
        given = {**kwargs.pop("env", os.environ), **_PIP_ENVIRONMENT}
        return super().run_executable(executable, args, env=given, **kwargs)

    def run(self, args: list[str], **kwargs: Any) -> Any:
        """Run the environment's Python."""
        log.debug(f"Running '{' '.join(args)}' in {self.name}")
        return self.run_executable("python", args, **kwargs)


def parent_paths(conf_dir: str) -> list[str]:
    """Lines of a ``.pth`` file: what the running interpreter imports from, beyond its standard library.

    Site folders go through site.addsitedir, so that the ``.pth`` files in them (editable installs) work too.
    """
    standard = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    standard |= {os.path.join(folder, "lib-dynload") for folder in standard}
    archive = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
    sites = {os.path.realpath(path) for path in [*site.getsitepackages(), site.getusersitepackages()]}
    script = os.path.realpath(os.path.dirname(sys.argv[0]) or ".")
    skipped = {os.path.realpath(conf_dir), script, os.path.realpath(os.path.join(sys.prefix, "bin"))}
    lines: list[str] = []
    for entry in sys.path:
        real = os.path.realpath(entry or ".")
        if not entry or not os.path.exists(real) or real in standard | skipped or os.path.basename(real) == archive:
            continue
        absolute = os.path.abspath(entry)
        lines.append(f"import site; site.addsitedir({absolute!r})" if real in sites else absolute)
    if importlib.util.find_spec("pip") is None:
        lines.append(_bundled_pip())
    return list(dict.fromkeys(lines))


def _bundled_pip() -> str:
    """The pip wheel that Python ships for ensurepip: importable as it is."""
    try:
        import ensurepip

        folder = Path(ensurepip.__file__).parent / "_bundled"
    except ImportError:
        folder = Path()
    wheels = sorted(folder.glob("pip-*.whl"))
    if not wheels:
        raise environment.EnvironmentUnavailable(f"{sys.executable} has no pip, which builds the wheel: install pip")
    return str(wheels[-1])


def _base_executable() -> str:
    return os.path.abspath(getattr(sys, "_base_executable", None) or sys.executable)


def _pyvenv_home(path: Path) -> str | None:
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        key, _, value = line.partition("=")
        if key.strip() == "home":
            return value.strip()
    return None


def install() -> None:
    """Discover suites in an overlay without building any commit: the suite and the harness are the working tree's.

    asv would build the first commit of the range for it, and give up when the only one does not build.
    """
    original = benchmarks.Benchmarks._disc_benchmarks.__func__

    def discover(cls: Any, conf: Any, repo: Any, environments: Any, commit_hashes: Any, check: bool) -> Any:
        overlay = next((env for env in environments if isinstance(env, Overlay)), None)
        if overlay is None or check:
            return original(cls, conf, repo, environments, commit_hashes, check)
        cls.check_tree(conf.benchmark_dir)
        log.info("Discovering benchmarks")
        overlay.create()
        with tempfile.TemporaryDirectory() as folder:
            answer = Path(folder) / "benchmarks.json"
            arguments = [runner.BENCHMARK_RUN_SCRIPT, "discover", os.path.abspath(conf.benchmark_dir), str(answer)]
            try:
                overlay.run(arguments, cwd=folder, env={**os.environ, **overlay.env_vars}, dots=False)
            except util.ProcessError as error:
                raise util.UserError(f"The benchmark suite cannot be imported:\n{builds.output_of(error)}") from error
            except KeyboardInterrupt:
                raise util.UserError("Interrupted.") from None
            return json.loads(answer.read_text("utf-8"))

    benchmarks.Benchmarks._disc_benchmarks = classmethod(discover)
