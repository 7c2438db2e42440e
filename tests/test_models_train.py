# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402 - what is optional is imported first, or the file is skipped
"""The training script's parts, at sizes of seconds: they learn, and their shortcuts give what the plain code gives."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from model_files import SMALL_DRAFTER, SMALL_TARGET, small_drafter, small_target

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
pytest.importorskip("tokenizers")

from kdbench.errors import ModelError
from kdbench.models.checkpoint import load_target
from kdbench.models.config import TargetConfig
from kdbench.models.random_checkpoint import TINY_TARGET
from kdbench.models.tokenizer import TextTokenizer
from kdbench.models.torch_decode import Request, TorchDecoder
from kdbench.models.torch_drafter import TorchDrafter
from kdbench.models.torch_target import TorchTarget
from kdbench.models.train import export
from kdbench.models.train.corpus import standard_library, train_tokenizer
from kdbench.models.train.drafter import DrafterPlan, Texts, drafted_hidden, train_drafter
from kdbench.models.train.evaluate import acceptance_lengths
from kdbench.models.train.generate import Continuer, features_of
from kdbench.models.train.target import TargetPlan, held_out_loss, train_target

# One thread: these matrices are small, and threads that wait for each other on a shared machine are slower.
torch.set_num_threads(1)

LAYERS = tuple(SMALL_DRAFTER["dflash_config"]["target_layer_ids"])


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> tuple[TorchTarget, TorchDrafter]:
    root = tmp_path_factory.mktemp("models")
    return TorchTarget.from_directory(small_target(root / "t")), TorchDrafter.from_directory(small_drafter(root / "d"))


@pytest.fixture(scope="module")
def spoken(models) -> Texts:
    """Greedy continuations by the random target."""
    prompts = torch.randint(61, (3, 6), generator=torch.Generator().manual_seed(2))
    tokens = Continuer(models[0]).extend(prompts, 34, torch.zeros(3), 0)
    return Texts(tokens, features_of(models[0], tokens, LAYERS), torch.full((3,), 6))


def test_the_standard_library_is_split_by_content(tmp_path):
    for number in range(300):
        (tmp_path / f"m{number}.py").write_text(f"value = {number}\n")
    for left_out in ("test", "site-packages", "encodings"):
        (tmp_path / left_out).mkdir()
        (tmp_path / left_out / "x.py").write_text("no = 1\n")
    (tmp_path / "latin.py").write_bytes(b"# \xe9\n")
    corpus = standard_library(tmp_path, 1)
    assert len(corpus.training) + len(corpus.held_out) == 300
    assert 1 <= len(corpus.held_out) <= 20
    assert list(corpus.training) == sorted(corpus.training)
    for name, text in corpus.held_out.items():
        assert int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) % 50 == 0
        (tmp_path / name).rename(tmp_path / f"other_{name}")
    again = standard_library(tmp_path, 1)
    assert sorted(again.held_out.values()) == sorted(corpus.held_out.values())
    assert again.digest != corpus.digest
    with pytest.raises(ModelError, match=r"bytes of Python sources; wanted 5000000 or more"):
        standard_library(tmp_path)


def test_continuations_are_the_plain_models(models, spoken):
    plain = TorchDecoder(models[0])
    for row in spoken.tokens.tolist():
        assert plain.generate(Request(row[:6], 34)).tokens == row[6:]


def test_drawn_continuations_differ_by_seed(models):
    prompts, hot = torch.ones(2, 4, dtype=torch.long), torch.tensor([0.0, 1.0])
    one, two = (Continuer(models[0]).extend(prompts, 12, hot, seed) for seed in (0, 1))
    assert one[0].tolist() == two[0].tolist()
    assert one[1].tolist() != two[1].tolist()


@pytest.mark.parametrize("block", [8, 4])
def test_many_blocks_in_one_forward_are_single_blocks(models, spoken, block):
    target, drafter = models
    anchors = torch.tensor([[6, 20, 7], [30, 31, 32], [6, 6, 25]])
    together = drafted_hidden(drafter, target, spoken.tokens, spoken.features, anchors, block)
    for row in range(3):
        for place, anchor in enumerate(anchors[row].tolist()):
            ids = torch.full((1, block), 2)
            ids[0, 0] = spoken.tokens[row, anchor]
            alone = drafter(
                target.model.embed_tokens(ids),
                torch.arange(anchor, anchor + block)[None],
                drafter.context(spoken.features[row : row + 1, :anchor]),
                torch.arange(anchor)[None],
            )
            torch.testing.assert_close(together[row, place], alone[0, 1:], rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def learnt(models, spoken) -> TorchDrafter:
    """A drafter that knows these few texts well, and not perfectly."""
    config = models[1].config
    plan = DrafterPlan(seconds=60, steps=60, texts=3, anchors=12, peak_rate=3e-3)
    drafter, log = train_drafter(config, models[0], spoken, plan, 0, lambda _: None)
    assert log[-1]["training_loss"] < 0.8 * log[0]["training_loss"]
    return drafter


def test_the_replay_is_what_decoding_accepts(models, spoken, learnt):
    decoder = TorchDecoder(models[0], learnt)
    for block, budgets in ((8, (8, 16)), (4, (8,))):
        replay = acceptance_lengths(learnt, models[0], spoken, budgets, block)
        for name, mode, budget in [("chain", "chain", 64), *((f"ddtree_{b}", "ddtree", b) for b in budgets)]:
            rounds = []
            for row in spoken.tokens.tolist():
                lengths = decoder.generate(Request(row[:6], 34, mode, budget, block)).acceptance_lengths
                # The replay looks at rounds whose whole block lies in the text.
                starts = 6 + np.cumsum([0, *lengths[:-1]])
                rounds += [length for length, start in zip(lengths, starts, strict=True) if start <= 40 - block]
            assert replay[name] == pytest.approx(np.mean(rounds))
    assert acceptance_lengths(learnt, models[0], spoken, (), 8)["chain"] > 1.3


def test_a_target_learns_and_keeps_its_best(tmp_path):
    config = TargetConfig.from_directory(small_target(tmp_path, num_hidden_layers=1))
    stream = torch.arange(6000) % 7 + 3
    plan = TargetPlan(seconds=60, epochs=10, step_tokens=512, window=64, long_window=128)
    model, log = train_target(config, stream, stream[:300], plan, 0)
    losses = [entry["held_out_loss"] for entry in log[:-1]]
    assert losses[-1] < 0.5 * losses[0]
    assert log[-1]["held_out_loss_of_bf16_weights"] == pytest.approx(min(losses), abs=0.05)
    assert held_out_loss(model, stream[:300], 64) == pytest.approx(log[-1]["held_out_loss_of_bf16_weights"])
    for weight in model.parameters():
        assert torch.equal(weight, weight.to(torch.bfloat16).float())


def test_what_is_written_loads(tmp_path):
    changes = TINY_TARGET | SMALL_TARGET
    config = TargetConfig.from_directory(small_target(tmp_path / "random"))
    torch.manual_seed(0)
    model = TorchTarget(config)
    export.write_model(tmp_path, changes, model)
    tokenizer = train_tokenizer(["some text\n"], 259)
    export.write_tokenizer(tmp_path, tokenizer, 128)
    record = {"python": "3.12.1"}
    export.write_record(tmp_path, record, title="A", tag="t", what="It is.", figures="None.")
    again = TorchTarget.from_directory(tmp_path)
    for ours, theirs in zip(again.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs.to(torch.bfloat16).float())
    assert TextTokenizer.from_directory(tmp_path).encode("text") == tokenizer.encode("text")
    told = json.loads((tmp_path / "training.json").read_text())
    weights = (tmp_path / "model.safetensors").read_bytes()
    assert told["sha256"]["model.safetensors"] == hashlib.sha256(weights).hexdigest()
    assert "PSF licence" in (tmp_path / "README.md").read_text()
    assert load_target(tmp_path).num_parameters == sum(weight.numel() for weight in model.parameters())


@pytest.mark.slow
def test_a_rehearsal_leaves_a_pair_that_decodes(tmp_path):
    command = [sys.executable, "-m", "kdbench.models.train", "--out", str(tmp_path), "--rehearse", "--device", "cpu"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert "acceptance_length on 2 held-out prompts" in done.stdout
    decoder = TorchDecoder(
        TorchTarget.from_directory(tmp_path / "target"), TorchDrafter.from_directory(tmp_path / "drafter")
    )
    prompt = TextTokenizer.from_directory(tmp_path / "target").encode("def f(x):")
    assert decoder.generate(Request(prompt, 6, "ddtree")).tokens == decoder.generate(Request(prompt, 6)).tokens
    for part in ("target", "drafter"):
        told = json.loads((tmp_path / part / "training.json").read_text())
        assert set(told["sha256"]) == {path.name for path in (tmp_path / part).iterdir()} - {"training.json"}
        assert told["corpus"]["training_tokens"] > 10 * told["corpus"]["held_out_tokens"]
