# SPDX-License-Identifier: Apache-2.0
"""What the decode loop is measured on. Append-only: a name is a series of results, and means the same for good.

A workload decodes ``ROUNDS`` rounds for every slot, from prompts of which each sample takes others. All slots are busy
in every round, so that a round's time is that of its batch. The workloads kimi-* have Kimi K2's widths, random weights
and *simulated* acceptance, as their names say: their times are real, their acceptance is an assumption.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from kdbench.engine_types import Rounds
from kdbench.errors import KdbenchError

# The name under which --kernel selects these series.
KERNEL = "decode"
ROUNDS = 16
SAMPLES = 6
# A tree's block: that of the shipped drafter, and of Kimi's.
BLOCK_SIZE = 8
# Emitted at most by ROUNDS rounds, and the prefill's token.
NEW_TOKENS = ROUNDS * BLOCK_SIZE + 1

_SUITE = "bench_decode"
# What is measured of a workload -> asv's name of it.
SERIES = MappingProxyType(
    {
        "tpot": f"{_SUITE}.Decode.decode_tpot",
        "acceptance_length": f"{_SUITE}.DecodeAcceptance.track_acceptance_length",
        "output_tok_s": f"{_SUITE}.DecodeThroughput.track_output_tok_s",
        "loop_ratio": f"{_SUITE}.DecodeLoopCost.track_loop_ratio",
    }
)


@dataclass(frozen=True)
class DecodeWorkload:
    """One frozen workload.

    Attributes:
        name: e.g. "tiny-ddtree-b64-n4": model, mode, tree_budget, batch; "-sim75" where each drafted position is right
            with probability 0.75.
        model: "tiny" (shipped), "kimi-dense" or "kimi-moe" (random weights).
        batch: slots, all busy.
        prompt_length: tokens of a prompt; 0 for the frozen prompts of the shipped model, which differ in length.
        backends: where it is measured.
        tags: "quick" marks those of ``make bench``, "peak" those of tens of gigabytes.
    """

    name: str
    model: str
    mode: str
    tree_budget: int
    batch: int
    prompt_length: int
    backends: tuple[str, ...]
    tags: frozenset[str]
    simulated_accept: float = 0.0

    @property
    def rounds(self) -> Rounds:
        """How its rounds are run."""
        return Rounds(self.mode, max(1, self.tree_budget), simulated_accept=self.simulated_accept)

    @property
    def speculative(self) -> bool:
        """True where a drafter proposes."""
        return self.mode != "ar"

    @property
    def simulated(self) -> bool:
        """True where acceptance is an assumption."""
        return self.simulated_accept > 0

    def metadata(self) -> dict[str, Any]:
        """What benchmarks.json says of it."""
        return {
            "model": self.model,
            "mode": self.mode,
            "tree_budget": self.tree_budget,
            "batch": self.batch,
            "rounds": ROUNDS,
            "backends": list(self.backends),
            "simulated": self.simulated,
        }


def _named(model: str, mode: str, budget: int, batch: int, simulated: float = 0.0) -> str:
    tree = f"-b{budget}" if mode == "ddtree" else ""
    return f"{model}-{mode}{tree}-n{batch}" + (f"-sim{round(100 * simulated)}" if simulated else "")


def _tiny(mode: str, budget: int, batch: int, cpu: bool, quick: bool = False) -> DecodeWorkload:
    backends = ("cpu", "cuda") if cpu else ("cuda",)
    tags = frozenset({"quick"} if quick else ())
    return DecodeWorkload(_named("tiny", mode, budget, batch), "tiny", mode, budget, batch, 0, backends, tags)


def _kimi(model: str, mode: str, budget: int, batch: int) -> DecodeWorkload:
    simulated = 0.0 if mode == "ar" else 0.75
    name = _named(model, mode, budget, batch, simulated)
    tags = frozenset({"peak"} if model == "kimi-moe" else ())
    return DecodeWorkload(name, model, mode, budget, batch, 512, ("cuda",), tags, simulated)


_ALL = (
    _tiny("ar", 0, 1, cpu=True, quick=True),
    _tiny("chain", 0, 1, cpu=True),
    _tiny("ddtree", 8, 1, cpu=True, quick=True),
    _tiny("ddtree", 16, 1, cpu=True),
    _tiny("ddtree", 64, 1, cpu=True),
    _tiny("ddtree", 256, 1, cpu=False),
    _tiny("ar", 0, 4, cpu=True),
    _tiny("chain", 0, 4, cpu=True),
    _tiny("ddtree", 8, 4, cpu=True),
    _tiny("ddtree", 16, 4, cpu=False),
    _tiny("ddtree", 64, 4, cpu=False),
    _tiny("ddtree", 256, 4, cpu=False),
    _tiny("ar", 0, 16, cpu=True),
    _tiny("chain", 0, 16, cpu=False),
    _tiny("ddtree", 8, 16, cpu=False),
    _tiny("ddtree", 16, 16, cpu=False),
    _tiny("ddtree", 64, 16, cpu=False),
    _tiny("ddtree", 256, 16, cpu=False),
    *(
        _kimi(model, mode, budget, batch)
        for model in ("kimi-dense", "kimi-moe")
        for batch in (1, 4, 16)
        for mode, budget in (("ar", 0), ("chain", 0), ("ddtree", 16), ("ddtree", 64), ("ddtree", 256))
    ),
)
REGISTRY: Mapping[str, DecodeWorkload] = MappingProxyType({workload.name: workload for workload in _ALL})
if len(REGISTRY) != len(_ALL):
    raise AssertionError("two workloads have one name")


def get(name: str) -> DecodeWorkload:
    """The workload of that name."""
    try:
        return REGISTRY[name]
    except KeyError:
        raise KdbenchError(f"there is no workload {name!r}; decoding has {', '.join(REGISTRY)}") from None


def names(backend: str | None = None, tag: str | None = None, *, speculative: bool = False) -> list[str]:
    """Names in their fixed order, those of ``backend``, with ``tag`` and with a drafter only."""
    return [
        workload.name
        for workload in REGISTRY.values()
        if (backend is None or backend in workload.backends)
        and (tag is None or tag in workload.tags)
        and (workload.speculative or not speculative)
    ]


def series(backends: Iterable[str], tag: str | None = None) -> list[str]:
    """asv's names of the series on ``backends``; with a tag only tpot and acceptance_length, which give the others."""
    found = []
    for backend in backends:
        for what, benchmark in SERIES.items():
            if (tag is not None and what not in ("tpot", "acceptance_length")) or (
                what == "loop_ratio" and backend != "cuda"
            ):
                continue
            chosen = names(backend, tag, speculative=what == "acceptance_length")
            found += [f"{benchmark}({name!r}, {backend!r})" for name in chosen]
    return found
