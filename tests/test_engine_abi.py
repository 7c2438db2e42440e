# SPDX-License-Identifier: Apache-2.0
"""engine.h's constants, structs and functions in Python against the header itself."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kdbench import engine_abi
from kdbench.engine_types import MODES

HEADER = Path(__file__).parents[1] / "native" / "include" / "kdtree" / "engine.h"


def enum(name: str) -> dict[str, int]:
    body = re.search(rf"typedef enum {name} \{{(.*?)\}}", HEADER.read_text(), re.DOTALL)
    assert body
    return {key: int(value) for key, value in re.findall(r"KDT_(\w+) = (\d+)", body[1])}


def test_constants_are_those_of_the_header() -> None:
    assert f"#define KDT_MAX_TARGET_FEATURES {engine_abi.MAX_TARGET_FEATURES}\n" in HEADER.read_text()
    assert re.search(rf"num_stop_tokens; +// 0 \.\. {engine_abi.MAX_STOP_TOKENS}\n", HEADER.read_text())
    modes = {f"DECODE_{mode.name}": mode.value for mode in engine_abi.DecodeMode}
    assert enum("kdt_decode_mode") == modes
    assert [mode.lower() for mode in engine_abi.DecodeMode.__members__] == list(MODES)
    stages = {f"STAGE_{stage.name}": stage.value for stage in engine_abi.Stage}
    assert enum("kdt_stage") == stages | {"NUM_STAGES": len(stages)}
    assert enum("kdt_expert_scores") == {f"SCORES_{kind.name}": kind.value for kind in engine_abi.ExpertScores}


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_structs_are_laid_out_as_the_header_says(tmp_path: Path) -> None:
    lines, expected = [], ""
    for name, struct in engine_abi.STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        expected += f"{name} {ctypes.sizeof(struct)}\n"
        for field, *_ in struct._fields_:
            descriptor = getattr(struct, field)
            lines.append(
                f'printf("{name} {field} %zu %zu\\n", offsetof({name}, {field}), sizeof((({name}*)0)->{field}));'
            )
            expected += f"{name} {field} {descriptor.offset} {descriptor.size}\n"
    source = ["#include <stdio.h>", f'#include "{HEADER}"', "int main(void) {", *lines, "}"]
    (tmp_path / "layout.c").write_text("\n".join(source))
    include = HEADER.parents[1]
    subprocess.run(["cc", f"-I{include}", "layout.c", "-o", "layout"], cwd=tmp_path, check=True)
    printed = subprocess.run([str(tmp_path / "layout")], capture_output=True, text=True, check=True).stdout
    assert printed == expected


def test_every_struct_of_the_header_is_here() -> None:
    declared = re.findall(r"^typedef struct (kdt_\w+) \{", HEADER.read_text(), re.MULTILINE)
    assert sorted(declared) == sorted(engine_abi.STRUCTS)


def test_every_function_of_the_header_is_here_with_as_many_arguments() -> None:
    text = re.sub(r"//.*", "", HEADER.read_text())
    found = re.findall(r"KDT_API (\w+) (kdt_\w+)\(([^)]*)\)", text)
    assert {name: len(arguments.split(",")) for _, name, arguments in found} == {
        name: len(types) for name, types in engine_abi.FUNCTIONS.items()
    }
    assert {name for answer, name, _ in found if answer == "void"} == {"kdt_engine_destroy"}
