# SPDX-License-Identifier: Apache-2.0

"""The shipped pair: the files that were trained, loadable by others, and a drafter worth its forward."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
from model_files import SHIPPED

pytest.importorskip("safetensors")
pytest.importorskip("tokenizers")

from kdbench.models.checkpoint import load_drafter, load_target
from kdbench.models.random_checkpoint import TINY_DRAFTER, TINY_TARGET
from kdbench.models.tokenizer import SPECIAL_TOKENS, TextTokenizer

# Python that is in no standard library.
PROMPTS = (
    "def fibonacci(n):\n    ",
    "class Queue:\n    def __init__(self, maxsize=0):\n        self.items = []\n\n    def put(self, item):\n        ",
    "import os\nimport sys\n\ndef main(argv=None):\n    if argv is None:\n        ",
    "    for name, value in sorted(self.headers.items()):\n        if not isinstance(value, str):\n            raise ",
    "# Read the file and count how many lines of it are\n",
    "    def test_empty(self):\n        self.assertEqual(",
)


@pytest.mark.parametrize("part", ["target", "drafter"])
def test_the_files_are_those_that_were_trained(part):
    told = json.loads((SHIPPED / part / "training.json").read_text())["sha256"]
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (SHIPPED / part).iterdir()
        if path.name != "training.json"
    }
    assert found == told


def test_they_are_small():
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file()) <= 20_000_000


def test_configs_and_weights_are_sound():
    target, drafter = load_target(SHIPPED / "target"), load_drafter(SHIPPED / "drafter")
    drafter.config.check_fits(target.config)
    assert json.loads((SHIPPED / "target" / "config.json").read_text()) == TINY_TARGET
    assert json.loads((SHIPPED / "drafter" / "config.json").read_text()) == TINY_DRAFTER
    for array in (*target.tensors.values(), *drafter.tensors.values()):
        # No infinity and no NaN: the exponent is never full.
        assert ((array & 0x7F80) != 0x7F80).all()


def test_the_tokenizer_fits_the_models():
    tokenizer = TextTokenizer.from_directory(SHIPPED / "target")
    config = load_target(SHIPPED / "target").config
    assert tokenizer.vocab_size == config.vocab_size == 1024
    assert [tokenizer.backend.token_to_id(name) for name in SPECIAL_TOKENS] == [0, 1, 2]
    assert config.eos_token_ids == (1,)
    assert load_drafter(SHIPPED / "drafter").config.mask_token_id == 2
    for prompt in (*PROMPTS, "naïve 日本語 🙂\x00\r\n\t"):
        assert tokenizer.decode(tokenizer.encode(prompt)) == prompt
        assert 2 not in tokenizer.encode(prompt)


def test_transformers_loads_them_and_says_the_same():
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from kdbench.models.torch_target import TorchTarget

    theirs = transformers.AutoModelForCausalLM.from_pretrained(SHIPPED / "target", dtype=torch.float32).eval()
    assert type(theirs).__name__ == "DeepseekV3ForCausalLM"
    their_tokenizer = transformers.AutoTokenizer.from_pretrained(SHIPPED / "target")
    tokenizer, ours = TextTokenizer.from_directory(SHIPPED / "target"), TorchTarget.from_directory(SHIPPED / "target")
    for prompt in PROMPTS:
        ids = tokenizer.encode(prompt)
        assert their_tokenizer.encode(prompt, add_special_tokens=False) == ids
        assert their_tokenizer.decode(ids) == prompt
        with torch.no_grad():
            wanted = theirs(torch.tensor([ids])).logits[0]
            found = ours.lm_head(ours(torch.tensor([ids])).hidden)[0]
        assert torch.equal(found.argmax(-1), wanted.argmax(-1))
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


@pytest.fixture(scope="module")
def generations():
    """Per mode, one greedy generation a prompt."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    from kdbench.models.torch_decode import Request, TorchDecoder
    from kdbench.models.torch_drafter import TorchDrafter
    from kdbench.models.torch_target import TorchTarget

    decoder = TorchDecoder(
        TorchTarget.from_directory(SHIPPED / "target"), TorchDrafter.from_directory(SHIPPED / "drafter")
    )
    tokenizer = TextTokenizer.from_directory(SHIPPED / "target")
    modes = {"ar": {}, "chain": {"mode": "chain"}, "ddtree": {"mode": "ddtree", "tree_budget": 64}}
    return {
        name: [decoder.generate(Request(tokenizer.encode(prompt), 40, **how)) for prompt in PROMPTS]
        for name, how in modes.items()
    }


def test_speculation_says_what_plain_decoding_says(generations):
    plain = [generation.tokens for generation in generations["ar"]]
    assert [generation.tokens for generation in generations["chain"]] == plain
    assert [generation.tokens for generation in generations["ddtree"]] == plain


def test_the_drafter_pays(generations):
    def mean(mode: str) -> float:
        return float(np.mean([length for one in generations[mode] for length in one.acceptance_lengths]))

    assert mean("chain") >= 2
    assert mean("ddtree") >= 1.15 * mean("chain")


def test_the_record_has_what_the_pair_was_made_for():
    told = json.loads((SHIPPED / "drafter" / "training.json").read_text())["acceptance_length"]
    assert told["held_out_prompts"] >= 200
    lengths = told["greedy"]["block_8"]
    assert lengths["chain"] >= 2.5
    assert lengths["ddtree_64"] >= 1.25 * lengths["chain"]
