# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402 - what is optional is imported first, or the file is skipped
"""The PyTorch models against others' code: transformers' DeepSeek-V3, and a drafter in NumPy loops."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from model_files import small_drafter, small_target

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from kdbench.arrays import bf16_to_f32
from kdbench.errors import InvalidArgument
from kdbench.models.checkpoint import load_drafter
from kdbench.models.config import MixtureConfig
from kdbench.models.random_checkpoint import MIXTURE, YARN
from kdbench.models.torch_drafter import TorchDrafter
from kdbench.models.torch_target import LatentCache, Router, TorchTarget

# One thread: these matrices are small, and threads that wait for each other on a shared machine are slower.
torch.set_num_threads(1)

KINDS = {
    "dense": {},
    "mixture": MIXTURE,
    "one group": MIXTURE | {"n_group": 1, "topk_group": 1, "norm_topk_prob": False},
    "no shared experts": MIXTURE | {"n_shared_experts": 2, "first_k_dense_replace": 0},
    "yarn": MIXTURE | YARN,
    "queries at once": {"q_lora_rank": None},
}


def logits(target, ids, **kwargs):
    with torch.no_grad():
        return target.lm_head(target(ids, **kwargs).hidden)


@pytest.mark.parametrize("kind", KINDS)
def test_the_target_is_transformers_deepseek_v3(tmp_path, kind):
    transformers = pytest.importorskip("transformers")
    small_target(tmp_path, **KINDS[kind])
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert type(theirs).__name__ == "DeepseekV3ForCausalLM"
    ours = TorchTarget.from_directory(tmp_path)
    ids = torch.randint(61, (2, 50), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = theirs(ids, output_hidden_states=True)
    torch.testing.assert_close(logits(ours, ids), wanted.logits, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        features = ours(ids, feature_layers=(0, 1)).features
    torch.testing.assert_close(features, torch.cat(wanted.hidden_states[1:3], -1), rtol=1e-4, atol=1e-4)


def test_a_cache_changes_nothing(tmp_path):
    target = TorchTarget.from_directory(small_target(tmp_path, **MIXTURE))
    ids = torch.arange(30)[None] * 7 % 61
    cache = LatentCache(3)
    parts = [logits(target, ids[:, start : start + 10], cache=cache) for start in range(0, 30, 10)]
    torch.testing.assert_close(torch.cat(parts, 1), logits(target, ids), rtol=1e-5, atol=1e-5)


def test_a_tree_row_is_its_own_branch(tmp_path):
    """Each node of a tree gives what its path alone gives, wherever it is stored."""
    target = TorchTarget.from_directory(small_target(tmp_path))
    prompt = torch.tensor([[5, 9, 11, 3]])
    parents, nodes = [-1, 0, 0, 1, 2, 3], torch.tensor([[7, 8, 9, 10, 11, 12]])
    visible = torch.zeros(6, 10, dtype=torch.bool)
    visible[:, :4] = True
    paths = []
    for node, parent in enumerate(parents):
        paths.append((paths[parent] if parent >= 0 else []) + [node])
        visible[node, [4 + seen for seen in paths[node]]] = True
    positions = torch.tensor([[3 + len(path) for path in paths]])
    cache = LatentCache(3)
    logits(target, prompt, cache=cache)
    tree = logits(target, nodes, positions=positions, visible=visible, cache=cache)
    for node, path in enumerate(paths):
        alone = logits(target, torch.cat((prompt, nodes[:, path]), 1))
        torch.testing.assert_close(tree[0, node], alone[0, -1], rtol=1e-5, atol=1e-5)
    cache.keep([0, 1, 2, 3, *(4 + node for node in paths[5])])
    after = logits(target, torch.tensor([[20]]), cache=cache)
    alone = logits(target, torch.cat((prompt, nodes[:, paths[5]], torch.tensor([[20]])), 1))
    torch.testing.assert_close(after[0, 0], alone[0, -1], rtol=1e-5, atol=1e-5)


def test_equal_scores_choose_the_lower_expert():
    config = MixtureConfig(8, 0, 3, 16, 4, 2, True, 1.0)
    ids, weights = Router(config, 4)(torch.ones(1, 4))
    assert ids.tolist() == [[0, 1, 2]]
    np.testing.assert_allclose(weights.detach().numpy(), [[1 / 3] * 3], rtol=1e-6)


def test_the_bias_chooses_and_does_not_weigh():
    router = Router(MixtureConfig(4, 0, 2, 16, 1, 1, False, 2.0), 4)
    router.e_score_correction_bias[:] = torch.tensor([0.0, 3.0, 0.0, 2.0])
    ids, weights = router(torch.ones(1, 4))
    assert ids.tolist() == [[1, 3]]
    assert weights.tolist() == [[1.0, 1.0]]


def test_more_tokens_than_positions_are_refused(tmp_path):
    target = TorchTarget.from_directory(small_target(tmp_path, max_position_embeddings=16))
    with pytest.raises(InvalidArgument, match="17 tokens; the model has positions for 16"):
        target(torch.zeros(1, 17, dtype=torch.long))


def test_bf16_weights_leave_frequencies_in_f32(tmp_path):
    target = TorchTarget.from_directory(small_target(tmp_path), torch.bfloat16)
    assert target.rotary.inv_freq.dtype == torch.float32
    assert target.lm_head.weight.dtype == torch.bfloat16
    wide = TorchTarget.from_directory(tmp_path)
    ids = torch.arange(12)[None]
    difference = (logits(target, ids).float() - logits(wide, ids)).abs().max() / logits(wide, ids).std()
    assert difference < 0.2


def slow_drafter(tensors, config, features, embedded, length):
    """DFlash row by row and head by head in float64: [Q, hidden] behind the last norm."""
    weights = {name: bf16_to_f32(array).astype(np.float64) for name, array in tensors.items()}
    size, shared = config.head_dim, config.num_attention_heads // config.num_key_value_heads

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + config.rms_norm_eps) * weights[name + ".weight"]

    def turned(x, position):
        out = x.copy()
        for pair in range(size // 2):
            angle = position * float(np.float32(config.rope.theta ** (-2 * pair / size)))
            a, b = x[pair], x[pair + size // 2]
            out[pair] = a * math.cos(angle) - b * math.sin(angle)
            out[pair + size // 2] = b * math.cos(angle) + a * math.sin(angle)
        return out

    context = norm(features @ weights["fc.weight"].T, "hidden_norm")
    x = embedded.copy()
    for layer in range(config.num_hidden_layers):
        at = f"layers.{layer}"
        normed = norm(x, f"{at}.input_layernorm")
        rows = np.concatenate([context, normed])
        q, k, v = (
            source @ weights[f"{at}.self_attn.{name}_proj.weight"].T
            for source, name in ((normed, "q"), (rows, "k"), (rows, "v"))
        )
        out = np.zeros((len(x), config.num_attention_heads * size))
        for head in range(config.num_attention_heads):
            mine, theirs = (
                slice(head * size, (head + 1) * size),
                slice(head // shared * size, (head // shared + 1) * size),
            )
            keys = [turned(norm(row[theirs], f"{at}.self_attn.k_norm"), position) for position, row in enumerate(k)]
            for i in range(len(x)):
                query = turned(norm(q[i, mine], f"{at}.self_attn.q_norm"), length + i)
                scores = np.array([query @ key for key in keys]) / math.sqrt(size)
                chances = np.exp(scores - scores.max())
                out[i, mine] = chances @ v[:, theirs] / chances.sum()
        x = x + out @ weights[f"{at}.self_attn.o_proj.weight"].T
        normed = norm(x, f"{at}.post_attention_layernorm")
        gate, up = (normed @ weights[f"{at}.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ weights[f"{at}.mlp.down_proj.weight"].T
    return norm(x, "norm")


@pytest.mark.parametrize(("length", "block"), [(9, 8), (1, 4), (0, 8)])
def test_the_drafter_is_a_slow_loop(tmp_path, length, block):
    drafter = TorchDrafter.from_directory(small_drafter(tmp_path))
    checkpoint = load_drafter(tmp_path)
    random = np.random.default_rng(length)
    features, embedded = random.standard_normal((length, 128)), random.standard_normal((block, 64))
    wanted = slow_drafter(checkpoint.tensors, checkpoint.config, features, embedded, length)
    with torch.no_grad():
        found = drafter(
            torch.tensor(embedded[None], dtype=torch.float32),
            torch.arange(length, length + block)[None],
            drafter.context(torch.tensor(features[None], dtype=torch.float32)),
            torch.arange(length)[None],
        )
    np.testing.assert_allclose(found[0].numpy(), wanted, rtol=2e-4, atol=2e-4)


def test_the_measuring_path_imports_no_torch():
    import subprocess
    import sys

    code = (
        "import sys; import kdbench, kdbench.workloads, kdbench.models.checkpoint, kdbench.models.tokenizer, "
        "kdbench.models.sampling, kdbench.models.random_checkpoint; print([m for m in sys.modules if m == 'torch'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert re.search(r"\[\]", done.stdout)
