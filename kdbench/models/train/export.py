# SPDX-License-Identifier: Apache-2.0
"""Writes trained models as Hugging Face directories, with a model card and a record of how they were made."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from kdbench.models.safetensors_file import write_file
from kdbench.models.tokenizer import BEGIN, END, TextTokenizer

_CARD = """---
license: apache-2.0
library_name: transformers
tags: [{tag}, speculative-decoding]
---
# {title}

{what}

Made by `python -m kdbench.models.train` of kdbench; training.json beside this file has the recipe, the losses and the
hashes. The training text is the Python {python} standard library's sources (without tests, installed packages and code
page tables), © Python Software Foundation, under the
[PSF licence](https://docs.python.org/3/license.html); the weights are Apache-2.0 as kdbench is.
{figures}
"""


def write_model(directory: Path, config: dict[str, Any], model: nn.Module) -> None:
    """config.json and model.safetensors, weights as bf16."""
    directory.mkdir(parents=True, exist_ok=True)
    _json(directory / "config.json", config)
    weights = {name: _bf16_words(value) for name, value in model.state_dict().items()}
    write_file(directory / "model.safetensors", weights)


def write_tokenizer(directory: Path, tokenizer: TextTokenizer, longest: int) -> None:
    """The files that transformers and SGLang read for a tokenizer, and the generation's defaults."""
    tokenizer.backend.save(str(directory / "tokenizer.json"))
    _json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BEGIN,
            "eos_token": END,
            "model_max_length": longest,
            "clean_up_tokenization_spaces": False,
        },
    )
    begin, end = (tokenizer.backend.token_to_id(name) for name in (BEGIN, END))
    _json(directory / "generation_config.json", {"bos_token_id": begin, "eos_token_id": end})


def write_record(directory: Path, record: dict[str, Any], *, title: str, tag: str, what: str, figures: str) -> None:
    """training.json, which gets the hash of every other file, and README.md."""
    card = _CARD.format(title=title, tag=tag, what=what, figures=figures, python=record["python"])
    (directory / "README.md").write_text(card, encoding="utf-8")
    names = sorted(path.name for path in directory.iterdir() if path.is_file() and path.name != "training.json")
    hashes = {name: hashlib.sha256((directory / name).read_bytes()).hexdigest() for name in names}
    _json(directory / "training.json", record | {"sha256": hashes})


def _bf16_words(value: torch.Tensor) -> np.ndarray[Any, Any]:
    words: np.ndarray[Any, Any] = value.detach().to(torch.bfloat16).cpu().contiguous().view(torch.int16).numpy()
    return words.view(np.uint16)


def _json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
