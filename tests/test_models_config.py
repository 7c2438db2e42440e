# SPDX-License-Identifier: Apache-2.0
"""Configs: what they say is read, what is odd is refused with one sentence, YaRN is transformers' YaRN."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from model_files import DROP, change_config, small_drafter, small_target

from kdbench.errors import ModelError
from kdbench.models import random_checkpoint
from kdbench.models.config import DrafterConfig, TargetConfig
from kdbench.models.random_checkpoint import MIXTURE, YARN
from kdbench.models.rope import Rope, Yarn


def test_a_target_says_what_its_file_says(tmp_path):
    config = TargetConfig.from_directory(small_target(tmp_path, **MIXTURE))
    assert (config.hidden_size, config.kv_lora_rank, config.qk_head_dim) == (64, 48, 40)
    assert config.mixture is not None
    assert config.mixture.topk_group == 2
    assert [config.is_dense(layer) for layer in range(3)] == [True, False, False]
    assert config.eos_token_ids == (1,)
    assert config.softmax_scale == pytest.approx(40**-0.5)


def test_layers_are_dense_where_the_mixture_would_begin_behind_the_last(tmp_path):
    config = TargetConfig.from_directory(small_target(tmp_path, **(MIXTURE | {"first_k_dense_replace": 3})))
    assert config.mixture is None
    assert all(config.is_dense(layer) for layer in range(3))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model_type": "llama"}, 'model_type is "llama"; wanted "deepseek_v3" or "kimi_k2"'),
        ({"hidden_size": DROP}, "hidden_size is missing; wanted an integer >= 1"),
        ({"hidden_size": "64"}, 'hidden_size is "64"; wanted an integer >= 1'),
        ({"hidden_size": True}, "hidden_size is true; wanted an integer >= 1"),
        ({"hidden_size": 0}, "hidden_size is 0; wanted an integer >= 1"),
        ({"num_hidden_layers": 2.0}, "num_hidden_layers is 2.0; wanted an integer >= 1"),
        ({"qk_rope_head_dim": 15}, "qk_rope_head_dim is 15; wanted an even integer"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0; wanted a number > 0"),
        ({"rms_norm_eps": math.inf}, "rms_norm_eps is Infinity"),
        ({"rms_norm_eps": 10**400}, "wanted a number > 0"),
        ({"rope_theta": -1}, "rope_theta is -1; wanted a number > 1"),
        ({"hidden_act": "gelu"}, 'hidden_act is "gelu"; wanted "silu"'),
        ({"attention_bias": True}, "attention_bias is true; wanted false"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is true; wanted false"),
        ({"rope_interleave": False}, "rope_interleave is false; wanted true"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config is"),
        ({"eos_token_id": 61}, "eos_token_id is 61; wanted an integer of 0 to 60"),
        ({"eos_token_id": [1, 99]}, "eos_token_id is [1, 99]; wanted a list of integers of 0 to 60"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, 'type is "linear"; wanted "yarn" or "default"'),
        ({"rope_scaling": {"type": "yarn"}}, "factor is missing; wanted a number >= 1"),
        ({"rope_scaling": "yarn"}, 'rope_scaling is "yarn"; wanted an object'),
        (
            {"rope_scaling": YARN["rope_scaling"] | {"beta_fast": 1, "beta_slow": 32}},
            "beta_fast 1 is below beta_slow 32",
        ),
        (MIXTURE | {"scoring_func": "softmax"}, 'scoring_func is "softmax"; wanted "sigmoid"'),
        (MIXTURE | {"topk_method": "greedy"}, 'topk_method is "greedy"; wanted "noaux_tc"'),
        (MIXTURE | {"n_group": 3}, "n_group is 3; wanted a divisor of n_routed_experts 8"),
        (MIXTURE | {"n_group": 8}, "n_group is 8; wanted a divisor of n_routed_experts 8"),
        (MIXTURE | {"topk_group": 5}, "topk_group is 5; wanted an integer of 1 to 4"),
        (MIXTURE | {"num_experts_per_tok": 5}, "num_experts_per_tok is 5; wanted an integer of 1 to 4"),
        (MIXTURE | {"first_k_dense_replace": DROP}, "first_k_dense_replace is missing"),
        (MIXTURE | {"routed_scaling_factor": DROP}, "routed_scaling_factor is missing; wanted a number > 0"),
        (MIXTURE | {"n_shared_experts": DROP}, "n_shared_experts is missing"),
        (MIXTURE | {"norm_topk_prob": 1}, "norm_topk_prob is 1; wanted true or false"),
    ],
)
def test_a_bad_target_is_refused_by_name(tmp_path, changes, told):
    change_config(small_target(tmp_path), **changes)
    with pytest.raises(ModelError) as refusal:
        TargetConfig.from_directory(tmp_path)
    assert told in str(refusal.value)
    assert str(tmp_path / "config.json") in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"architectures": ["Qwen3ForCausalLM"]}, 'wanted ["DFlashDraftModel"]'),
        ({"block_size": DROP}, "block_size is missing"),
        ({"block_size": 1}, "block_size is 1; wanted an integer >= 2"),
        ({"dflash_config": DROP}, "dflash_config is missing; wanted an object"),
        (
            {"dflash_config": {"mask_token_id": 61, "target_layer_ids": [0]}},
            "mask_token_id is 61; wanted an integer of 0 to 60",
        ),
        (
            {"dflash_config": {"mask_token_id": 2, "target_layer_ids": [3]}},
            "target_layer_ids is [3]; wanted a list of integers of 0 to 2",
        ),
        ({"dflash_config": {"mask_token_id": 2, "target_layer_ids": []}}, "ascending layer numbers, one at least"),
        ({"dflash_config": {"mask_token_id": 2, "target_layer_ids": [2, 0]}}, "ascending layer numbers"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3; wanted a divisor of num_attention_heads 4"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types is"),
        ({"rope_scaling": YARN["rope_scaling"]}, "wanted no scaling"),
        ({"head_dim": 23}, "head_dim is 23; wanted an even integer"),
    ],
)
def test_a_bad_drafter_is_refused_by_name(tmp_path, changes, told):
    change_config(small_drafter(tmp_path), **changes)
    with pytest.raises(ModelError) as refusal:
        DrafterConfig.from_directory(tmp_path)
    assert told in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("field", ["hidden_size", "vocab_size", "num_hidden_layers"])
def test_a_drafter_of_another_target_is_refused(tmp_path, field):
    drafter = DrafterConfig.from_directory(small_drafter(tmp_path / "d"))
    other = TargetConfig.from_directory(small_target(tmp_path / "t", **{field: 62}))
    drafter.check_fits(TargetConfig.from_directory(small_target(tmp_path / "own")))
    with pytest.raises(ModelError, match=r"the drafter's .* and the target has 62; they must be equal"):
        drafter.check_fits(other)


@pytest.mark.parametrize(("content", "told"), [("{", "is no JSON"), ("[1]", "holds [1]; wanted an object")])
def test_a_file_that_is_no_object_is_refused(tmp_path, content, told):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError) as refusal:
        TargetConfig.from_directory(tmp_path)
    assert told in str(refusal.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"config\.json cannot be read: No such file"):
        TargetConfig.from_directory(tmp_path)


# The scales that DeepSeek-V3 and Kimi K2 are served with.
@pytest.mark.parametrize(("factor", "scale"), [(64, 0.1446796258), (40, 0.1352337788), (32, 0.1308608000)])
def test_softmax_scales_are_the_published_models(tmp_path, factor, scale):
    yarn = {"rope_scaling": YARN["rope_scaling"] | {"factor": factor}}
    config = TargetConfig.from_directory(random_checkpoint.write_target(tmp_path, num_hidden_layers=1, **yarn))
    assert config.softmax_scale == pytest.approx(scale, rel=1e-9)
    assert config.rope.cos_sin_scale == 1.0


@pytest.mark.parametrize("factor", [1, 4, 40])
@pytest.mark.parametrize("theta", [10000.0, 50000.0])
def test_yarn_is_transformers_yarn(factor, theta):
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": 4096, "mscale": 0.7}
    config = transformers.DeepseekV3Config(
        rope_parameters=scaling | {"mscale_all_dim": 0.5, "rope_theta": theta}, max_position_embeddings=4096 * factor
    )
    wanted, wanted_scale = ROPE_INIT_FUNCTIONS["yarn"](config)
    rope = Rope(theta, Yarn(float(factor), 4096, mscale=0.7, mscale_all_dim=0.5))
    np.testing.assert_allclose(rope.inv_freq(64), wanted.numpy(), rtol=1e-6)
    assert rope.cos_sin_scale == pytest.approx(wanted_scale)


def test_plain_frequencies_fall_by_powers_of_theta():
    assert Rope(10000.0).inv_freq(8).tolist() == [np.float32(10.0**-power) for power in range(4)]


def test_transformers_5_spelling_is_read(tmp_path):
    scaling = {key: value for key, value in YARN["rope_scaling"].items() if key != "type"}
    old = TargetConfig.from_directory(small_target(tmp_path / "old", **YARN)).rope
    new = small_target(tmp_path / "new", **YARN)
    change_config(
        new, rope_scaling=DROP, rope_theta=DROP, rope_parameters=scaling | {"rope_type": "yarn", "rope_theta": 10000}
    )
    assert TargetConfig.from_directory(new).rope == old
    assert json.loads((new / "config.json").read_text())["rope_parameters"]["factor"] == 40
