# SPDX-License-Identifier: Apache-2.0
"""What asv is missing, as a plugin that asv.conf.json names.

=================  ====================================================================================================
``overlay``        an environment that reuses the running interpreter's packages and builds only the commit's library
``builds``         each commit measured with its own library, and a log kept of every build that fails
``machine_entry``  a stable machine name, so that no machine file has to be written by hand
``saving``         results on disk after every benchmark, so that Ctrl-C loses nothing; resuming; side records
``steps``          steps fitted to logarithms, so that a large slowdown is not weighed away
``directions``     the regressions page and feed for benchmarks where more is better
``publish_gate``   ``kdbench lint`` before publish, which would hang or die on a NaN or an infinity
``tables``         asv's output without the rows in which nothing was measured
``offline``        the published site without a content network
=================  ====================================================================================================

asv has no hooks for most of this: its functions are wrapped, in ``install()`` of each module, and asv is pinned.
"""

from __future__ import annotations

# Importing a subclass of asv's Environment or OutputPublisher is what registers it.
from kdbench.asv_plugin import builds, directions, machine_entry, offline, overlay, publish_gate, saving, steps, tables

__all__ = [
    "builds",
    "directions",
    "machine_entry",
    "offline",
    "overlay",
    "publish_gate",
    "saving",
    "setup",
    "steps",
    "tables",
]

_installed = False


def setup() -> None:
    """asv calls this once it has read the configuration; wrapping twice would save twice."""
    global _installed
    if _installed:
        return
    _installed = True
    machine_entry.install()
    overlay.install()
    builds.install()
    saving.install()
    steps.install()
    tables.install()
    publish_gate.install()
