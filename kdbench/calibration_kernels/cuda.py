# SPDX-License-Identifier: Apache-2.0
"""A GPU's calibration kernels: fma (SM clock), copy (device memory), l2_copy (L2) and empty (launch path).

They have a stopwatch of their own, a plain slope between two graphs: an edit of ``kdbench.gpu_clock`` must not move
what tells whether the machine moved.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kdbench.calibration_kernels import store

KERNELS = ("fma", "copy", "l2_copy", "empty")
_SOURCE = Path(__file__).with_name("kernels.cu")
_SAMPLES = 7
_THREADS = 256
_FMA_ROUNDS = 1500  # of 64: some 0.2 ms
_COPY_BYTES = 256 << 20  # of each buffer: more than any L2
_L2_BYTES = 8 << 20  # of each buffer, where a quarter of L2 holds both
_L2_PASSES = 32
# Launches of the two graphs of each kernel.
_GRAPHS = {"fma": (1, 5), "copy": (1, 6), "l2_copy": (1, 9), "empty": (50, 550)}
# From idle the clock takes some milliseconds to rise.
_WARM_UP_S = 0.03
_SETTLED = 0.003


class CudaKernels:
    """The kernels, loaded on the current device, with buffers and graphs of their own.

    Raises:
        ImportError: there is no cupy.
        BuildError: there is no kept code, and NVRTC cannot make it; what the device refuses is cupy's own error.
    """

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        device = cupy.cuda.Device()
        properties = cupy.cuda.runtime.getDeviceProperties(device.id)
        self._blocks = int(properties["multiProcessorCount"])
        self.code = store.keep("kernels.cubin", _SOURCE.read_bytes(), f"sm_{device.compute_capability}", _compile)
        self._module = cupy.RawModule(path=str(self.code.path))
        self._kernel = {name: self._module.get_function(f"kdb_{name}") for name in ("fill", *KERNELS)}
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._l2_words = min(_L2_BYTES, int(properties["l2CacheSize"]) // 8) // 16 // 1024 * 1024
        self._held: list[Any] = []
        self._graphs: dict[str, tuple[Any, Any]] = {}
        self._clocks = self._buffer(16)

    def probes(self) -> dict[str, Callable[[], list[float]]]:
        """Seconds a launch of each kernel, one value a sample."""
        return {name: self._probe(name) for name in KERNELS}

    def clock_mhz(self) -> float | None:
        """The SM clock that block 0 of the last fma saw."""
        import numpy as np

        words = np.empty(2, np.uint64)
        runtime = self._cupy.cuda.runtime
        runtime.memcpy(words.ctypes.data, self._clocks.ptr, words.nbytes, runtime.memcpyDeviceToHost)
        cycles, nanoseconds = (int(word) for word in words)
        return 1e3 * cycles / nanoseconds if nanoseconds else None

    def _probe(self, name: str) -> Callable[[], list[float]]:
        def times() -> list[float]:
            if name not in self._graphs:
                launch = getattr(self, f"_{name}")()
                with self._stream:
                    launch()  # whatever is loaded late is loaded before the capture
                fewer, more = _GRAPHS[name]
                self._graphs[name] = self._capture(launch, fewer), self._capture(launch, more)
            if name == "fma":
                self._warm_up()
            self._slope(name)
            return [self._slope(name) for _ in range(_SAMPLES)]

        return times

    def _warm_up(self) -> None:
        """Until neighbouring slopes agree, but no longer than the clock can need."""
        self._cupy.cuda.Device().synchronize()
        start, last = time.perf_counter(), self._slope("fma")
        while time.perf_counter() - start < _WARM_UP_S:
            now = self._slope("fma")
            if abs(now - last) <= _SETTLED * last and time.perf_counter() - start > _WARM_UP_S / 3:
                return
            last = now

    def _fma(self) -> Callable[[], None]:
        out = self._buffer(16)
        arguments = (out.ptr, self._clocks.ptr, _int32(_FMA_ROUNDS))
        return lambda: self._launch("fma", self._blocks, arguments)

    def _copy(self) -> Callable[[], None]:
        free, _ = self._cupy.cuda.runtime.memGetInfo()
        if free < 8 * _COPY_BYTES:
            raise RuntimeError(f"only {free >> 20} MiB of device memory are free")
        source, target = self._filled(_COPY_BYTES), self._filled(_COPY_BYTES)
        words = _COPY_BYTES // 16
        # A power of two, so that a round of all threads divides the buffer.
        blocks = 1 << (8 * self._blocks).bit_length() - 1
        arguments = (source.ptr, target.ptr, _uint64(words))
        return lambda: self._launch("copy", blocks, arguments)

    def _l2_copy(self) -> Callable[[], None]:
        words = self._l2_words
        source, target = self._filled(16 * words), self._filled(16 * words)
        arguments = (source.ptr, target.ptr, _uint64(words), _int32(_L2_PASSES))
        return lambda: self._launch("l2_copy", 8 * self._blocks, arguments)

    def _empty(self) -> Callable[[], None]:
        return lambda: self._launch("empty", 1, ())

    def _launch(self, name: str, blocks: int, arguments: tuple[Any, ...]) -> None:
        self._kernel[name]((blocks,), (_THREADS,), arguments)

    def _buffer(self, size: int) -> Any:
        """Device memory of its own, outside the pool that workloads take theirs from."""
        held = self._cupy.cuda.Memory(size)
        self._held.append(held)
        return held

    def _filled(self, size: int) -> Any:
        held = self._buffer(size)
        with self._stream:
            self._launch("fill", 8 * self._blocks, (held.ptr, _uint64(size // 16)))
        return held

    def _capture(self, launch: Callable[[], None], nodes: int) -> Any:
        self._stream.synchronize()
        with self._stream:
            self._stream.begin_capture()
            try:
                for _ in range(nodes):
                    launch()
            finally:
                graph = self._stream.end_capture()
        graph.upload(self._stream)
        return graph

    def _slope(self, name: str) -> float:
        events = [(self._cupy.cuda.Event(), self._cupy.cuda.Event()) for _ in range(2)]
        for graph, (start, stop) in zip(self._graphs[name], events, strict=True):
            start.record(self._stream)
            graph.launch(self._stream)
            stop.record(self._stream)
        events[-1][1].synchronize()
        short, long = (self._cupy.cuda.get_elapsed_time(start, stop) for start, stop in events)
        fewer, more = _GRAPHS[name]
        return float(long - short) * 1e-3 / (more - fewer)


def _compile() -> tuple[bytes, str]:
    """Machine code for the current device and nothing else: PTX would be compiled again by the next driver."""
    import cupy
    from cupy.cuda import nvrtc

    arch = f"sm_{cupy.cuda.Device().compute_capability}"
    return compile_for(arch), f"nvrtc {'.'.join(map(str, nvrtc.getVersion()))} -arch={arch}"


def compile_for(arch: str) -> bytes:
    """The cubin of the kernels for ``arch``, e.g. "sm_90"; needs NVRTC, and no GPU.

    Raises:
        RuntimeError: NVRTC refuses.
    """
    from cupy.cuda import nvrtc

    program = nvrtc.createProgram(_SOURCE.read_text("utf-8"), "kernels.cu", (), ())
    try:
        nvrtc.compileProgram(program, (f"-arch={arch}", "-std=c++17"))
        return _whole(bytes(nvrtc.getCUBIN(program)))
    except nvrtc.NVRTCError as error:
        raise RuntimeError(f"NVRTC fails: {error}: {nvrtc.getProgramLog(program)[:200]}") from error
    finally:
        nvrtc.destroyProgram(program)


def _whole(cubin: bytes) -> bytes:
    """cupy cuts the last byte off, a zero, as it does with text; in a file it has to be there."""
    programs, sections = struct.unpack_from("<QQ", cubin, 32)
    sizes = struct.unpack_from("<HHHH", cubin, 54)
    end = max(programs + sizes[0] * sizes[1], sections + sizes[2] * sizes[3])
    return cubin.ljust(end, b"\0") if end - len(cubin) == 1 else cubin


def _int32(value: int) -> Any:
    import numpy as np

    return np.int32(value)


def _uint64(value: int) -> Any:
    import numpy as np

    return np.uint64(value)
