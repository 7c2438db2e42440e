# SPDX-License-Identifier: Apache-2.0
"""Trains tokenizer, target and drafter, and says how well they do: ``python -m kdbench.models.train --out DIR``.

The run is bounded by wall clock: the shipped models took five minutes of one NVIDIA H200. Seeds are fixed, but how many
steps fit into the seconds is the machine's, so a second run gives other weights of the same quality.
"""

from __future__ import annotations

import argparse
import dataclasses
import platform
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kdbench.models.config import DrafterConfig, TargetConfig
from kdbench.models.random_checkpoint import TINY_DRAFTER, TINY_TARGET, write_drafter, write_target
from kdbench.models.torch_drafter import TorchDrafter
from kdbench.models.torch_target import TorchTarget
from kdbench.models.train import export
from kdbench.models.train.corpus import standard_library, token_stream, train_tokenizer
from kdbench.models.train.drafter import DrafterPlan, Texts, train_drafter
from kdbench.models.train.evaluate import acceptance_lengths
from kdbench.models.train.generate import Continuer, features_of
from kdbench.models.train.target import TargetPlan, train_target

_BUDGETS = (8, 16, 64)
# Half of the texts are greedy, as the drafter is mostly used; the rest show it more of the language.
_TEMPERATURES = (0.0, 0.0, 0.0, 0.4, 0.7, 1.0)
_PROMPT_LENGTHS = (32, 128, 64, 224)


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(prog="python -m kdbench.models.train", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="writes OUT/target and OUT/drafter")
    parser.add_argument("--library", type=Path, help="Python sources to learn; default: the interpreter's own library")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=20260604)
    parser.add_argument("--total-seconds", type=float, default=290, help="the drafter gets what the others leave")
    parser.add_argument("--target-seconds", type=float, default=110)
    parser.add_argument("--generate-seconds", type=float, default=35)
    parser.add_argument("--evaluate-seconds", type=float, default=30, help="kept free for the evaluation")
    parser.add_argument("--evaluate-prompts", type=int, default=224)
    parser.add_argument("--rehearse", action="store_true", help="a few steps of everything, small, on any machine")
    args = parser.parse_args()
    if args.rehearse:
        args.total_seconds, args.target_seconds, args.generate_seconds, args.evaluate_seconds = 30.0, 5.0, 2.0, 5.0
        args.evaluate_prompts = 2
    _train(args)


def _train(args: argparse.Namespace) -> None:
    began = time.monotonic()
    torch.set_float32_matmul_precision("high")
    small = args.rehearse
    # The random writers put the configs in place, and what can be overwritten is there from the first second.
    target_dir, drafter_dir = write_target(args.out / "target"), write_drafter(args.out / "drafter")
    target_config = TargetConfig.from_directory(target_dir)
    drafter_config = DrafterConfig.from_directory(drafter_dir)

    corpus = standard_library(args.library)
    texts = list(corpus.training.values())
    tokenizer = train_tokenizer(texts, target_config.vocab_size)
    stream = torch.tensor(token_stream(tokenizer, texts), device=args.device)
    held_out = torch.tensor(token_stream(tokenizer, list(corpus.held_out.values())), device=args.device)
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "library": str(args.library) if args.library else "the interpreter's own",
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if args.device.startswith("cuda") else platform.processor() or "cpu",
        "seed": args.seed,
        "corpus": {
            "bytes": corpus.num_bytes,
            "training_files": len(corpus.training),
            "held_out_files": sorted(corpus.held_out),
            "sha256": corpus.digest,
            "training_tokens": len(stream),
            "held_out_tokens": len(held_out),
        },
    }
    _say(
        began,
        f"{corpus.num_bytes} bytes, {len(stream)} + {len(held_out)} tokens, held out: {len(corpus.held_out)} files",
    )

    if small:
        held_out = held_out[:1500]
    plan = TargetPlan(seconds=args.target_seconds, step_tokens=1024 if small else TargetPlan.step_tokens)
    target, log = train_target(target_config, stream, held_out, plan, args.seed)
    export.write_model(target_dir, TINY_TARGET, target)
    export.write_tokenizer(target_dir, tokenizer, target_config.max_position_embeddings)
    record = facts | {"plan": dataclasses.asdict(plan), "log": log}
    _write_target_record(target_dir, record)
    _say(began, "target written")

    continuer = Continuer(target)
    layers = drafter_config.target_layer_ids
    evaluated = _held_out_texts(continuer, target, held_out, args.evaluate_prompts, layers, 96 if small else 256)
    _say(began, f"sample: {tokenizer.decode(evaluated.tokens[0].tolist())!r}")
    spoken = _spoken_texts(continuer, target, stream, args, layers)
    del continuer
    _say(began, f"{len(spoken.tokens)} texts of {spoken.tokens.shape[1]} tokens for the drafter")

    left = args.total_seconds - args.evaluate_seconds - (time.monotonic() - began)
    drafter_plan = DrafterPlan(seconds=max(left, 5.0), texts=4 if small else DrafterPlan.texts)

    def save(drafter: TorchDrafter) -> None:
        export.write_model(drafter_dir, TINY_DRAFTER, drafter)

    drafter, drafter_log = train_drafter(drafter_config, target, spoken, drafter_plan, args.seed, save)
    save(drafter)
    _say(began, "drafter written")
    lengths = {
        f"block_{block}": acceptance_lengths(drafter, target, evaluated, _BUDGETS if block == 8 else (), block)
        for block in (drafter_config.block_size, drafter_plan.short_block)
    }
    record = facts | {
        "plan": dataclasses.asdict(drafter_plan),
        "texts": list(spoken.tokens.shape),
        "log": drafter_log,
        "acceptance_length": {"held_out_prompts": len(evaluated.tokens), "greedy": lengths},
    }
    _write_drafter_record(drafter_dir, record)
    _say(began, f"acceptance_length on {len(evaluated.tokens)} held-out prompts: {lengths}")


def _held_out_texts(
    continuer: Continuer, target: TorchTarget, held_out: Tensor, count: int, layers: tuple[int, ...], longest: int
) -> Texts:
    """Greedy continuations of prompts from files that the target never saw."""
    prompt, generator = 64, torch.Generator().manual_seed(1)
    starts = torch.randint(len(held_out) - prompt, (count, 1), generator=generator).to(held_out.device)
    prompts = held_out[starts + torch.arange(prompt, device=held_out.device)]
    tokens = continuer.extend(prompts, longest - prompt, torch.zeros(count, device=held_out.device), 1)
    first = torch.full((count,), prompt, device=held_out.device)
    return Texts(tokens, features_of(target, tokens, layers), first)


def _spoken_texts(
    continuer: Continuer, target: TorchTarget, stream: Tensor, args: argparse.Namespace, layers: tuple[int, ...]
) -> Texts:
    """The target's continuations of training prompts, batch after batch until their seconds are over."""
    began, device = time.monotonic(), stream.device
    rows, longest = (8, 96) if args.rehearse else (2048, 768)
    temperatures = torch.tensor(_TEMPERATURES, device=device).repeat(-(-rows // len(_TEMPERATURES)))[:rows]
    tokens: list[Tensor] = []
    first: list[Tensor] = []
    while not tokens or (time.monotonic() - began) * (1 + 1 / len(tokens)) < args.generate_seconds:
        number = len(tokens)
        prompt = 32 if args.rehearse else _PROMPT_LENGTHS[number % len(_PROMPT_LENGTHS)]
        generator = torch.Generator(str(device)).manual_seed(args.seed + number)
        starts = torch.randint(len(stream) - prompt, (rows, 1), device=device, generator=generator)
        prompts = stream[starts + torch.arange(prompt, device=device)]
        tokens.append(continuer.extend(prompts, longest - prompt, temperatures, args.seed + number))
        first.append(torch.full((rows,), prompt, device=device))
        if device.type == "cuda":
            torch.cuda.synchronize()
    together = torch.cat(tokens)
    return Texts(together, features_of(target, together, layers), torch.cat(first))


def _write_target_record(directory: Path, record: dict[str, Any]) -> None:
    loss = record["log"][-1]["held_out_loss_of_bf16_weights"]
    export.write_record(
        directory,
        record,
        title="kdbench tiny target",
        tag="deepseek_v3",
        what="A DeepSeek-V3 language model of 8 million parameters (MLA with the real latent width) that continues "
        "Python source. It exists to measure decode engines on real text, not to be useful.",
        figures=f"\nHeld-out loss: {loss:.3f} nats a token.",
    )


def _write_drafter_record(directory: Path, record: dict[str, Any]) -> None:
    lengths = record["acceptance_length"]["greedy"]["block_8"]
    export.write_record(
        directory,
        record,
        title="kdbench tiny DFlash drafter",
        tag="dflash",
        what="A DFlash block-diffusion drafter (arXiv 2602.06036) for kdbench's tiny target: blocks of 8 tokens.",
        figures="\nacceptance_length, greedy, held-out prompts, block of 8: "
        + ", ".join(f"{name} {value:.2f}" for name, value in lengths.items())
        + ".",
    )


def _say(began: float, text: str) -> None:
    print(f"[{time.monotonic() - began:6.1f} s] {text}", flush=True)


if __name__ == "__main__":
    main()
