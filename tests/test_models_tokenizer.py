# SPDX-License-Identifier: Apache-2.0

"""Text to tokens and back, and streams that never show half a character."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdbench.errors import BackendUnavailable, InvalidArgument, ModelError

pytest.importorskip("tokenizers")

from kdbench.models.tokenizer import SPECIAL_TOKENS, TextTokenizer
from kdbench.models.train.corpus import token_stream, train_tokenizer

LEARNT = ["def hello(self):\n    return 'wörld — 日本語 🙂'\n", "for each in range(10):\n    print(each)\n"] * 3


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return train_tokenizer(LEARNT, 290)


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_any_text_comes_back(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.lists(st.integers(0, 289), max_size=60), st.integers(1, 4))
@settings(max_examples=300, deadline=None)
def test_a_stream_of_any_tokens_adds_up_to_the_text(tokenizer, ids, step):
    stream = tokenizer.stream()
    pieces = [stream.push(ids[start : start + step]) for start in range(0, len(ids), step)]
    assert "".join(pieces) + stream.finish() == tokenizer.decode(ids)


@given(st.text(alphabet="aé日🙂\N{REPLACEMENT CHARACTER} \n", max_size=30))
@settings(max_examples=200, deadline=None)
def test_a_stream_never_shows_half_a_character(tokenizer, text):
    stream, shown = tokenizer.stream(), ""
    for token in tokenizer.encode(text):
        shown += stream.push([token])
        assert text.startswith(shown)
    assert shown + stream.finish() == text


def test_a_character_of_four_tokens_comes_at_its_last():
    tokenizer = train_tokenizer(["a b\n"], 259)
    ids = tokenizer.encode("🙂")
    assert len(ids) == 4
    stream = tokenizer.stream()
    assert [stream.push([token]) for token in ids] == ["", "", "", "🙂"]


def test_special_tokens_have_the_first_ids_and_no_text(tokenizer):
    assert [tokenizer.backend.token_to_id(name) for name in SPECIAL_TOKENS] == [0, 1, 2]
    assert tokenizer.decode([0, *tokenizer.encode("x"), 1]) == "x"


def test_a_special_tokens_name_in_a_text_is_text(tokenizer):
    text = "a <|mask|> b <|end|>"
    assert not {0, 1, 2} & set(tokenizer.encode(text))
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_stream_of_texts_has_their_bounds(tokenizer):
    stream = token_stream(tokenizer, ["ab", "c"])
    assert [token for token in stream if token < 2] == [0, 1, 0, 1]
    assert tokenizer.decode(stream) == "abc"


def test_lone_surrogates_are_refused(tokenizer):
    with pytest.raises(InvalidArgument, match="lone surrogate at character 2"):
        tokenizer.encode("ab\ud800")


def test_files_that_are_missing_or_malformed(tmp_path, tokenizer, monkeypatch):
    with pytest.raises(ModelError, match=r"tokenizer\.json is missing"):
        TextTokenizer.from_directory(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json is no tokenizer"):
        TextTokenizer.from_directory(tmp_path)
    tokenizer.backend.save(str(tmp_path / "tokenizer.json"))
    assert TextTokenizer.from_directory(tmp_path).encode("hello") == tokenizer.encode("hello")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(BackendUnavailable, match=r"pip install kdbench\[decode\]"):
        TextTokenizer.from_directory(tmp_path)
