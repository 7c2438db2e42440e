# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: arrays as they were written, and one message that names every tensor that is not as it should be."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from model_files import change_config, small_drafter, small_target

from kdbench.errors import BackendUnavailable, ModelError
from kdbench.models.checkpoint import load_drafter, load_target, target_shapes
from kdbench.models.config import TargetConfig
from kdbench.models.random_checkpoint import MIXTURE, random_tensor, write_target
from kdbench.models.safetensors_file import read_file, write_file

pytest.importorskip("safetensors")
NORM = "model.norm.weight"


def rewritten(directory, change):
    """The weights of a directory, changed by ``change`` in place."""
    tensors = {name: np.array(array) for name, (_, array) in read_file(directory / "model.safetensors").items()}
    change(tensors)
    write_file(directory / "model.safetensors", tensors)


def test_tensors_come_as_they_were_written(tmp_path):
    checkpoint = load_target(small_target(tmp_path, **MIXTURE))
    assert set(checkpoint.tensors) == set(target_shapes(checkpoint.config))
    for name, array in checkpoint.tensors.items():
        assert np.array_equal(array, random_tensor(name, array.shape, 0))
        assert array.dtype == (np.float32 if name.endswith("correction_bias") else np.uint16)
        assert array.flags.c_contiguous
        assert array.flags.aligned


def test_no_torch_and_no_ml_dtypes_are_needed(tmp_path, monkeypatch):
    small_target(tmp_path)
    for module in ("torch", "ml_dtypes"):
        monkeypatch.setitem(sys.modules, module, None)
    assert load_target(tmp_path).num_parameters > 0


def test_without_the_library_the_message_says_what_to_install(tmp_path, monkeypatch):
    small_target(tmp_path)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(BackendUnavailable, match=r"pip install kdbench\[decode\]"):
        load_target(tmp_path)


def test_the_tiny_shape_is_what_ships(tmp_path):
    target = load_target(write_target(tmp_path))
    assert target.num_parameters == 8_100_480
    assert len(target.tensors) == 75


def test_torch_reads_what_we_write(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    small_target(tmp_path)
    theirs = load_file(tmp_path / "model.safetensors")
    for name, array in load_target(tmp_path).tensors.items():
        assert theirs[name].dtype == torch.bfloat16
        assert np.array_equal(theirs[name].view(torch.int16).numpy().view(np.uint16), array)


def test_we_read_what_torch_writes_in_shards(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    small_target(tmp_path)
    tensors = {
        name: torch.from_numpy(np.array(array).view(np.int16)).view(torch.bfloat16)
        for name, array in load_target(tmp_path).tensors.items()
    }
    wanted = {name: np.array(array) for name, array in load_target(tmp_path).tensors.items()}
    names = sorted(tensors)
    (tmp_path / "model.safetensors").unlink()
    weight_map = {}
    for shard in range(2):
        file = f"model-{shard + 1:05}-of-00002.safetensors"
        save_file({name: tensors[name] for name in names[shard::2]}, tmp_path / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names[shard::2], file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    found = load_target(tmp_path).tensors
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match="lacks model-00002-of-00002"):
        load_target(tmp_path)


def test_a_missing_tensor_is_named(tmp_path):
    rewritten(small_target(tmp_path), lambda tensors: tensors.pop(NORM))
    with pytest.raises(ModelError, match=f"tensors missing: {NORM}$"):
        load_target(tmp_path)


def test_an_extra_tensor_is_named(tmp_path):
    rewritten(small_target(tmp_path), lambda tensors: tensors.update(odd=np.zeros(3, np.float32)))
    with pytest.raises(ModelError, match=r"tensors not of this architecture: odd$"):
        load_target(tmp_path)


def test_a_shape_is_told_with_the_wanted_one(tmp_path):
    rewritten(small_target(tmp_path), lambda tensors: tensors.update({NORM: np.zeros((64, 1), np.uint16)}))
    with pytest.raises(ModelError, match=rf"of another shape: {NORM} is \[64, 1\], wanted \[64\]$"):
        load_target(tmp_path)


def test_a_dtype_is_told_with_the_wanted_one(tmp_path):
    rewritten(small_target(tmp_path), lambda tensors: tensors.update({NORM: np.zeros(64, np.float32)}))
    with pytest.raises(ModelError, match=f"of another dtype: {NORM} is F32, wanted BF16$"):
        load_target(tmp_path)


def test_many_faults_make_one_message(tmp_path):
    def change(tensors):
        for name in [name for name in tensors if "layers.1." in name]:
            del tensors[name]
        tensors["odd"] = np.zeros(3, np.float32)

    rewritten(small_target(tmp_path), change)
    with pytest.raises(ModelError) as refusal:
        load_target(tmp_path)
    assert "and 6 more; not of this architecture: odd" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_layers_for_multi_token_prediction_are_passed_over(tmp_path):
    name = "model.layers.3.enorm.weight"
    rewritten(small_target(tmp_path), lambda tensors: tensors.update({name: np.zeros(64, np.uint16)}))
    with pytest.raises(ModelError, match=name):
        load_target(tmp_path)
    change_config(tmp_path, num_nextn_predict_layers=1)
    assert name not in load_target(tmp_path).tensors


def test_a_correction_bias_in_bf16_is_widened(tmp_path):
    name = "model.layers.1.mlp.gate.e_score_correction_bias"

    def change(tensors):
        tensors[name] = (tensors[name].view(np.uint32) >> 16).astype(np.uint16)

    rewritten(small_target(tmp_path, **MIXTURE), change)
    array = load_target(tmp_path).tensors[name]
    assert array.dtype == np.float32
    np.testing.assert_allclose(array, random_tensor(name, array.shape, 0), rtol=0.01)


@pytest.mark.parametrize("damage", [b"", b"\x08", b"\xff" * 64, None])
def test_a_damaged_file_is_refused(tmp_path, damage):
    path = small_target(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] if damage is None else damage)
    with pytest.raises(ModelError, match=r"model\.safetensors is no readable safetensors file"):
        load_target(tmp_path)


def test_no_weights_at_all(tmp_path):
    (small_target(tmp_path) / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="has neither"):
        load_target(tmp_path)


@pytest.mark.parametrize("index", ["[]", '{"weight_map": {"a": "../model.safetensors"}}', '{"weight_map": {"a": 3}}'])
def test_an_odd_index_is_refused(tmp_path, index):
    (small_target(tmp_path) / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelError, match="index"):
        load_target(tmp_path)


def test_a_drafter_of_the_right_layout(tmp_path):
    checkpoint = load_drafter(small_drafter(tmp_path))
    assert checkpoint.tensors["fc.weight"].shape == (64, 128)
    assert checkpoint.tensors["layers.1.self_attn.k_proj.weight"].shape == (48, 64)
    assert not any("embed" in name or "lm_head" in name for name in checkpoint.tensors)


def test_random_weights_depend_on_seed_and_name_only(tmp_path):
    one, two = load_target(small_target(tmp_path / "1")), load_target(small_target(tmp_path / "2", num_hidden_layers=2))
    other = load_target(small_target(tmp_path / "3", seed=5))
    assert all(np.array_equal(array, one.tensors[name]) for name, array in two.tensors.items())
    assert not np.array_equal(other.tensors[NORM], one.tensors[NORM])
    assert isinstance(one.config, TargetConfig)
