# SPDX-License-Identifier: Apache-2.0
"""Decisions as JUnit XML, for CI systems that know nothing else.

What could not be told is an error and not a skip: CI systems show skipped tests in green.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence

from kdbench.gate import words
from kdbench.gate.policy import Decision

# XML 1.0 has no way at all to write these, escaped or not.
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def document(decisions: Sequence[Decision], name: str, seconds: float) -> str:
    """The XML document.

    Args:
        decisions: as from ``policy.decide``.
        name: of the suite, for example "abc1234..def5678".
        seconds: that the gate took.
    """
    counts = {
        "tests": len(decisions),
        "failures": sum(decision.state == "slower" for decision in decisions),
        "errors": sum(decision.state == "unknown" for decision in decisions),
        "skipped": 0,
    }
    attributes = {key: str(value) for key, value in counts.items()}
    took = f"{seconds:.3f}"
    root = ET.Element("testsuites", {"name": "kdbench gate", **attributes, "time": took})
    suite = ET.SubElement(root, "testsuite", {"name": _text(name), **attributes, "time": took})
    for decision in decisions:
        classname = _text(decision.series.split("(")[0])
        case = ET.SubElement(suite, "testcase", {"classname": classname, "name": _text(decision.series), "time": "0"})
        said = _text(words.sentence(decision))
        tag = {"slower": "failure", "unknown": "error"}.get(decision.state, "system-out")
        note = ET.SubElement(case, tag)
        if tag != "system-out":
            note.attrib.update({"type": decision.verdict, "message": said})
        note.text = said
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _text(text: str) -> str:
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)
