# SPDX-License-Identifier: Apache-2.0
"""asv's site without a content network: scripts and styles from a local folder, when there is one.

The page loads nine scripts and a style sheet from the network, and shows an error page when they do not come. Put
those files into ``.asv/assets/`` once (names as in ``ASSETS``; each comes from the npm package of the same name), and
publish copies them and points the page at them. Without the folder the page is left as asv writes it.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from asv.console import log
from asv.publishing import OutputPublisher

FOLDER = Path(".asv/assets")
_TARGET = "assets"
# File name that ends the address in asv's page -> file below the assets folder. Bootstrap finds its fonts at ../fonts.
ASSETS = {
    "jquery-3.3.1.min.js": "jquery.min.js",
    "jquery.flot.min.js": "jquery.flot.js",
    "jquery.flot.time.min.js": "jquery.flot.time.js",
    "jquery.flot.selection.min.js": "jquery.flot.selection.js",
    "jquery.flot.categories.min.js": "jquery.flot.categories.js",
    "jquery.flot.orderBars.js": "jquery.flot.orderBars.js",
    "stupidtable.min.js": "stupidtable.min.js",
    "md5.min.js": "md5.min.js",
    "bootstrap.min.js": "js/bootstrap.min.js",
    "bootstrap.min.css": "css/bootstrap.min.css",
}
_REMOTE = re.compile(r"""<(?P<tag>script|link)\b[^>]*?\b(?P<key>src|href)="https?://[^"]*/(?P<file>[^"/]+)"[^>]*>""")
_KEPT = re.compile(r"""\b(?:rel|type)="[^"]*\"""")


class OfflineSite(OutputPublisher):
    """Runs last: publish empties its folder first, and writes pages as it goes."""

    name = "offline"
    button_label = None
    description = None
    order = 1000

    @classmethod
    def publish(cls, conf: Any, repo: Any, benchmarks: Any, graphs: Any, revisions: Any) -> None:
        """asv's hook."""
        missing = [name for name in ASSETS.values() if not (FOLDER / name).is_file()]
        if missing:
            if FOLDER.is_dir():
                log.warning(f"{FOLDER} lacks {', '.join(missing)}: the site needs the network")
            return
        html = Path(conf.html_dir)
        shutil.copytree(FOLDER, html / _TARGET, dirs_exist_ok=True)
        index = html / "index.html"
        index.write_text(localised(index.read_text("utf-8")), "utf-8")


def localised(page: str) -> str:
    """``page`` with every known remote script and style taken from the assets folder, without integrity attributes."""

    def replace(match: re.Match[str]) -> str:
        local = ASSETS.get(match["file"])
        if local is None:
            return match[0]
        kept = "".join(f" {attribute}" for attribute in _KEPT.findall(match[0]))
        return f'<{match["tag"]}{kept} {match["key"]}="{_TARGET}/{local}">'

    return _REMOTE.sub(replace, page)
