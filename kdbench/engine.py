# SPDX-License-Identifier: Apache-2.0
"""The native decode engine: a target, maybe a drafter, and slots for requests (kdtree/engine.h).

``Engine`` is the bare machine: requests are admitted to slots, rounds are run for all slots at once, progress is read.
``kdbench.decode`` makes a loop of it. Types of the requests and answers stand in ``kdbench.engine_types``.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from kdbench import blas, engine_params, native
from kdbench.abi import DTYPE_BF16, DTYPE_F32, MAX_TREE_BUDGET, RequestStatus, Status
from kdbench.engine_abi import FUNCTIONS, LATER, EngineParams, ProgressParams, RoundClockParams, Stage
from kdbench.engine_types import EngineFull, Profile, Progress, Request, RoundClock, Rounds
from kdbench.errors import BackendUnavailable, InvalidArgument, KernelError

if TYPE_CHECKING:
    from kdbench.models.config import DrafterConfig, TargetConfig

_DTYPES = {"f32": DTYPE_F32, "bf16": DTYPE_BF16}
_INFO_BYTES = 1 << 16


class Engine:
    """A loaded model with its caches and ``max_batch`` slots.

    One thread at a time may use an engine. Rounds on CUDA are enqueued: ``run`` returns before they are done, and
    ``progress`` tells how far they are.

    Args:
        target: config of the target model.
        drafter: config of the drafter; None allows the mode "ar" only.
        tensors: arrays by Hugging Face name, the drafter's with "drafter." before it; uint16 holds bf16. None: random
            weights of ``random_seed``, made where they are used.
        backend: "cpu" or "cuda".
        dtype: of weights and activations, "f32" or "bf16"; by default f32 on the CPU and bf16 with CUDA. Latents in
            the cache are bf16 in any case.
        max_batch: slots.
        max_seq_len: tokens that a request may have, prompt and output together.
        max_tree_budget: of any round.
        page_size, num_pages: of the cache; by default as many as all slots need at their longest.
        prefill_chunk: tokens that a forward over a prompt takes at once.
        blas_library: file of the GEMM library; by default the one that ``kdbench.blas`` finds.
        library: a library other than the one that ``kdbench.native`` finds.

    Raises:
        BackendUnavailable: no library, no GPU, no BLAS, or a library from before the engine.
        InvalidArgument: a size is out of range, or a tensor is missing, left over or of a wrong shape.
        KernelError: the engine could not be made, e.g. for want of memory.
    """

    def __init__(
        self,
        target: TargetConfig,
        drafter: DrafterConfig | None = None,
        tensors: Mapping[str, np.ndarray[Any, Any]] | None = None,
        *,
        backend: str = "cpu",
        dtype: str | None = None,
        max_batch: int = 1,
        max_seq_len: int = 2048,
        max_tree_budget: int = 256,
        page_size: int = 64,
        num_pages: int | None = None,
        prefill_chunk: int = 64,
        blas_library: str | os.PathLike[str] | None = None,
        random_seed: int = 0,
        library: native.Library | None = None,
    ) -> None:
        self._handle = ctypes.c_void_p()
        self.target, self.drafter = target, drafter
        self.library = library or _library(backend)
        self.backend = self.library.backend
        self.dtype = dtype or ("f32" if self.backend == "cpu" else "bf16")
        if self.dtype not in _DTYPES:
            raise InvalidArgument(f"dtype is {dtype!r}, and {' or '.join(_DTYPES)} is expected")
        self._functions = {
            symbol: self.library.entry(symbol, types) for symbol, types in FUNCTIONS.items() if symbol not in LATER
        }
        self.max_batch = engine_params.whole("max_batch", max_batch, 1)
        self.max_seq_len = engine_params.whole("max_seq_len", max_seq_len, 1)
        self.max_tree_budget = engine_params.whole("max_tree_budget", max_tree_budget, 1, MAX_TREE_BUDGET)
        page_size = engine_params.whole("page_size", page_size, 1)
        if num_pages is None:
            num_pages = self.max_batch * -(-(self.max_seq_len + self.max_tree_budget + 1) // page_size)
        found = Path(blas_library) if blas_library is not None else blas.find(self.backend)
        keep: list[Any] = []
        params = EngineParams(
            target=engine_params.target(target, keep),
            drafter=engine_params.drafter(drafter, keep) if drafter else None,
            tensors=engine_params.tensors(tensors, keep) if tensors is not None else None,
            num_tensors=len(tensors or ()),
            dtype=_DTYPES[self.dtype],
            max_batch=self.max_batch,
            max_seq_len=self.max_seq_len,
            max_tree_budget=self.max_tree_budget,
            page_size=page_size,
            num_pages=engine_params.whole("num_pages", num_pages, 1),
            prefill_chunk=engine_params.whole("prefill_chunk", prefill_chunk, 1, MAX_TREE_BUDGET + 1),
            blas_library=os.fsencode(found) if found else None,
            random_seed=engine_params.whole("random_seed", random_seed, 0, 2**64 - 1),
        )
        try:
            self._call("kdt_engine_create", ctypes.byref(params), ctypes.byref(self._handle))
        except KernelError as error:
            if error.status == Status.NO_DEVICE:
                raise BackendUnavailable(str(error)) from error
            if found is None and "blas" in str(error).lower():
                raise BackendUnavailable(f"{error}; pip install 'kdbench[decode]' brings one for the CPU") from error
            raise
        self._capacity = [0] * self.max_batch
        self._asked = self._done = 0

    @classmethod
    def from_directory(
        cls, target: str | os.PathLike[str], drafter: str | os.PathLike[str] | None = None, **options: Any
    ) -> Engine:
        """An engine of the Hugging Face directories of a target and, for drafting, a DFlash drafter.

        Args:
            target, drafter: directories with config.json and safetensors.
            options: as of the class.

        Raises:
            ModelError: a file is missing, or a config or tensor is not what it should be.
        """
        from kdbench.models.checkpoint import load_drafter, load_target
        from kdbench.models.config import DrafterConfig, TargetConfig

        base = TargetConfig.from_directory(Path(target))
        draft = DrafterConfig.from_directory(Path(drafter)) if drafter is not None else None
        tensors = dict(load_target(Path(target)).tensors)
        if draft is not None and drafter is not None:
            draft.check_fits(base)
            tensors |= {f"drafter.{name}": array for name, array in load_drafter(Path(drafter)).tensors.items()}
        return cls(base, draft, tensors, **options)

    def admit(self, request: Request) -> int:
        """Run the prompt of a request and draw its first token; returns its slot.

        Raises:
            EngineFull: no slot or too few pages are free now.
            InvalidArgument: the request can never fit, or is wrong.
        """
        keep: list[Any] = []
        params = engine_params.request(request, keep)
        slot = ctypes.c_int32(-1)
        try:
            self._call("kdt_engine_admit", self._open(), ctypes.byref(params), ctypes.byref(slot))
        except KernelError as error:
            if error.status == Status.UNSUPPORTED:
                raise EngineFull(self.library.last_error()) from error
            raise
        self._capacity[slot.value] = request.max_new_tokens
        return slot.value

    def run(self, rounds: Rounds, count: int = 1, *, profile: Profile = Profile.NONE) -> None:
        """Run ``count`` rounds for all slots, with time stamps of the device where ``profile`` wants them."""
        params = engine_params.rounds(rounds, engine_params.whole("count", count, 1), profile)
        self._call("kdt_engine_run", self._open(), ctypes.byref(params))
        self._asked += count

    @property
    def in_flight(self) -> int:
        """Rounds asked for that were not done when ``progress`` last looked."""
        return self._asked - self._done

    def progress(self, slot: int, first: int = 0, *, wait: bool = False) -> Progress:
        """What is known of a slot now, or with ``wait`` after all rounds asked for; its tokens from ``first`` on."""
        self._check_slot(slot)
        answer = ProgressParams()
        tokens = np.empty(max(0, self._capacity[slot] - first), np.int32)
        self._call(
            "kdt_engine_progress_of",
            self._open(),
            slot,
            int(wait),
            ctypes.byref(answer),
            tokens.ctypes.data if tokens.size else None,
            first,
            tokens.size,
        )
        self._done = answer.rounds_done
        return Progress(
            tokens=tuple(tokens[: max(0, answer.num_tokens - first)].tolist()),
            num_tokens=answer.num_tokens,
            finished=bool(answer.finished),
            rounds=answer.rounds,
            rounds_done=answer.rounds_done,
            accepted=answer.accepted,
            status=RequestStatus(answer.status),
            histogram=tuple(answer.histogram),
        )

    def release(self, slot: int) -> None:
        """Free a slot and its pages; waits for rounds under way."""
        self._check_slot(slot)
        self._call("kdt_engine_release", self._open(), slot)

    def stage_seconds(self) -> tuple[dict[str, float], int]:
        """Seconds of each stage over the rounds with ``Profile.STAGES`` since the last call, and how many these were.

        Waits for the rounds under way, as ``round_clock`` does.
        """
        seconds, rounds = (ctypes.c_double * len(Stage))(), ctypes.c_int64()
        self._call("kdt_engine_stage_seconds", self._open(), seconds, ctypes.byref(rounds))
        return {stage.name.lower(): seconds[stage] for stage in Stage}, rounds.value

    def round_clock(self) -> RoundClock:
        """What the time stamps have come to since the last call.

        Raises:
            BackendUnavailable: a library from before it.
        """
        answer = RoundClockParams()
        symbol = "kdt_engine_round_clock"
        if symbol not in self._functions:
            self._functions[symbol] = self.library.entry(symbol, FUNCTIONS[symbol])
        self._call(symbol, self._open(), ctypes.byref(answer))
        return RoundClock(**{name: getattr(answer, name) for name in RoundClock.__dataclass_fields__})

    def logits(self, slot: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """f32[rows, vocab_size] of the last prefill's last token, or of a round's verify rows."""
        self._check_slot(slot)
        room = np.empty((self.max_tree_budget + 1, self.target.vocab_size), np.float32)
        rows = ctypes.c_int32()
        self._call("kdt_engine_logits", self._open(), slot, room.ctypes.data, room.size, ctypes.byref(rows))
        return room[: rows.value]

    def info(self) -> dict[str, Any]:
        """What the engine says of itself: bytes of weights, caches and scratch, pages and slots in use, the BLAS."""
        text = ctypes.create_string_buffer(_INFO_BYTES)
        self._call("kdt_engine_info", self._open(), text, _INFO_BYTES)
        found: dict[str, Any] = json.loads(text.value)
        return found

    def close(self) -> None:
        """Give back all memory; the engine cannot be used afterwards."""
        if self._handle:
            self._functions["kdt_engine_destroy"](self._handle)
            self._handle = ctypes.c_void_p()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    def _open(self) -> ctypes.c_void_p:
        if not self._handle:
            raise InvalidArgument("the engine is closed")
        return self._handle

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self.max_batch:
            raise InvalidArgument(f"slot is {slot}, outside 0 to {self.max_batch - 1}")

    def _call(self, symbol: str, *arguments: Any) -> None:
        status = self._functions[symbol](*arguments)
        if status == Status.INVALID_ARGUMENT:
            raise InvalidArgument(self.library.last_error())
        self.library.check(symbol, status)


def _library(backend: str) -> native.Library:
    if reason := native.available(backend):
        raise BackendUnavailable(reason)
    return native.load(backend)
