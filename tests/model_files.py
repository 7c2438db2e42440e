# SPDX-License-Identifier: Apache-2.0
"""Small random models and the shipped ones, for the tests of kdbench.models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kdbench.models
from kdbench.models import random_checkpoint

SHIPPED = Path(kdbench.models.__file__).parent / "tiny"
# Widths that no two axes share, so that a mixed-up axis is a wrong shape.
SMALL_TARGET: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "kv_lora_rank": 48,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 20,
}
SMALL_DRAFTER: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 64,
    "intermediate_size": 80,
    "head_dim": 24,
    "num_target_layers": 3,
    "dflash_config": {"mask_token_id": 2, "target_layer_ids": [0, 2]},
}


def small_target(directory: Path, seed: int = 0, **changes: Any) -> Path:
    return random_checkpoint.write_target(directory, seed, **(SMALL_TARGET | changes))


def small_drafter(directory: Path, seed: int = 1, **changes: Any) -> Path:
    return random_checkpoint.write_drafter(directory, seed, **(SMALL_DRAFTER | changes))


def change_config(directory: Path, **changes: Any) -> None:
    """Set fields of a config.json; the value DROP leaves one out."""
    path = directory / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not DROP}))


class _Drop:
    pass


DROP = _Drop()
