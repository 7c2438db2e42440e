# SPDX-License-Identifier: Apache-2.0
"""kdbench decode as a user meets it."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from decode_models import write_pair

from kdbench import cli, decode, native

PARTS = {"draft", "tree_build", "verify", "tree_accept", "commit"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pair whose vocabulary is the 256 bytes, three special tokens and some merges."""
    pytest.importorskip("safetensors")
    pytest.importorskip("tokenizers")
    from kdbench.models.train.corpus import train_tokenizer

    folder = write_pair(tmp_path_factory.mktemp("models"), vocab_size=300)
    (folder / "drafter" / "config.json").write_text(
        (folder / "drafter" / "config.json").read_text().replace('"vocab_size": 32', '"vocab_size": 300')
    )
    text = "".join(path.read_text() for path in Path(cli.__file__).parent.glob("c*.py"))
    train_tokenizer([text], 300).backend.save(str(folder / "target" / "tokenizer.json"))
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.run_command(["decode", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def asked(models: Path, *more: str) -> list[str]:
    return ["--prompt", "def f(", "--model", str(models), "--max-new-tokens", "12", "--tree-budget", "8", *more]


@pytest.mark.parametrize("mode", ["ar", "chain", "ddtree"])
def test_text_and_a_line_of_figures(
    models: Path, cpu_library: native.Library, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    code, out, err = run(capsys, *asked(models, "--mode", mode))
    assert (code, err) == (0, "")
    line = out.splitlines()[-1]
    assert re.fullmatch(
        rf"\d+ tokens? \((length|stop)\), {mode}, acceptance_length \d\.\d\d over \d+ rounds?, [\d.]+ tok/s, "
        r"ttft \S+\s\S+, tpot \S+\s\S+",
        line,
    )


def test_json_holds_everything_and_the_text_goes_to_stderr(
    models: Path, cpu_library: native.Library, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *asked(models, "--json", "--stages"))
    assert code == 0
    content = json.loads(out)
    assert content["schema"] == "kdbench/decode/1"
    assert {
        "tokens",
        "text",
        "mode",
        "acceptance_length",
        "target_forwards",
        "output_tok_s",
        "stage_seconds",
        "ttft_s",
        "tpot_s",
        "histogram",
        "finish_reason",
    } <= set(content)
    assert set(content["stage_seconds"]) == PARTS
    assert content["backend"] == "cpu"
    assert "a round by stage, timed apart: draft" in err


def test_modes_say_the_same_and_seeds_do_not(
    models: Path, cpu_library: native.Library, capsys: pytest.CaptureFixture[str]
) -> None:
    def tokens(*more: str) -> Any:
        return json.loads(run(capsys, *asked(models, "--json", *more))[1])["tokens"]

    assert tokens("--mode", "ar") == tokens("--mode", "chain", "--block-size", "4") == tokens("--topk", "4")
    hot = ("--temperature", "2")
    assert tokens(*hot, "--mode", "ar", "--seed", "5") == tokens(*hot, "--seed", "5") != tokens(*hot, "--seed", "6")


def test_a_prompt_from_stdin(
    models: Path,
    cpu_library: native.Library,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = []
    for text in (b"def f(", b"d"):
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(text)))
        code, out, _ = run(capsys, "--prompt", "-", *asked(models, "--json")[2:])
        assert code == 0
        counted.append(json.loads(out)["prompt_tokens"])
    assert counted[0] > counted[1] == 2  # the begin token, and one letter


def test_control_characters_of_a_model_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    from kdbench.decode_command import _shown

    record = decode.Decoded(mode="ar", prompt_tokens=1)
    chunks = [decode.Chunk(0, (1,), "a\x1b[2J\tb\n"), decode.Chunk(0, (2,), "c\x07", record)]
    out = io.StringIO()
    loop: Any = SimpleNamespace(stream=lambda requests, rounds: iter(chunks))
    assert _shown(loop, None, decode.Rounds(), out) is record
    assert out.getvalue() == "a�[2J\tb\nc�"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"--mode": "tree"}, "--mode tree: choose from ar, chain, ddtree"),
        ({"--backend": "tpu"}, "--backend tpu: choose from cpu, cuda"),
        ({"--prompt": ""}, "the prompt is empty"),
        ({"--model": "/nowhere"}, "no model directory at /nowhere"),
        ({"--tree-budget": "5000"}, "tree_budget"),
        ({"--max-new-tokens": "0"}, "max_new_tokens is 0"),
        ({"--max-new-tokens": "5000"}, "max_seq_len is 512"),
        ({"--temperature": "-1"}, "temperature is -1.0"),
        ({"--seed": "-1"}, "seed is -1"),
        ({"--block-size": "99"}, "block_size"),
        ({"--topk": "9999"}, "topk"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_1(
    models: Path,
    cpu_library: native.Library,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, str],
    sentence: str,
) -> None:
    arguments = asked(models)
    given = dict(zip(arguments[::2], arguments[1::2], strict=True)) | change
    code, out, err = run(capsys, *[word for pair in given.items() for word in pair])
    assert (code, out) == (1, "")
    assert err.startswith("kdbench: ")
    assert sentence in err
    assert err.count("\n") == 1


def test_help_tells_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert "Exit codes: 0 done; 1 user error or bad input" in " ".join(out.split())


def test_a_target_without_its_drafter_decodes_plainly(
    models: Path, cpu_library: native.Library, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = ("--model", str(models / "target"))
    assert run(capsys, *asked(models, *alone, "--mode", "ar"))[0] == 0
    code, _, err = run(capsys, *asked(models, *alone))
    assert (code, "needs a drafter" in err) == (1, True)


def test_without_the_shipped_model_one_is_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from kdbench import models

    monkeypatch.setattr(models, "__file__", str(tmp_path / "__init__.py"))
    code, _, err = run(capsys, "--prompt", "x")
    assert code == 1
    assert "the shipped model is not there" in err
    assert "--model" in err
