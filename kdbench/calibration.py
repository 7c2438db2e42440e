# SPDX-License-Identifier: Apache-2.0
"""What this GPU gives: a device copy and a bf16 matrix product, timed, as a record for ``kdbench.ceilings``.

A call takes a millisecond or more, against which the 1-2 us of an event pair are nothing: each stands between two
events of its own, and no graph is needed. A copy that is captured as a memcpy node even runs slower than one that is
launched. Values are random: zeros draw less power and run faster. The product's ceiling is its rate over the first
0.1 s from idle, the median of several bursts. The record also holds that of the first 0.03 s, when clocks are highest,
and that after a second, when the power limit holds them down: long compute-bound figures are to be read beside it.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from kdbench import __version__, ceilings, counter_bits, machine, provenance
from kdbench.errors import BackendUnavailable, KdbenchError
from kdbench.gpu_probe import model
from kdbench.timing import MeasuringError

_COPY_BYTES = 2 << 30  # of each buffer: 4 GiB are read and written
_COPIES = 20
_SIZE = 8192  # of the square matrices
_CHECKED = 64  # rows and columns that are compared
_FLOPS = 2 * _SIZE**3
# The power limit acts after some hundredths of a second, now sooner, now later: single bursts differ by some per cent.
_BURSTS = 5
_BURST_S = 0.1
_WINDOWS = {"fresh": 0.03, "burst": _BURST_S}
_SUSTAINED_S = (1.0, 1.3)
_IDLE_S = 0.4
_EXPONENT = 0x3E00  # +-[0.125, 0.5): sums of 8192 products stay small


def measure() -> dict[str, Any]:
    """The record of this machine's GPU, of schema ``kdbench.ceilings.SCHEMA``; takes a few seconds.

    A rate that cannot be measured is null, and its reason is in ``absent``.

    Raises:
        BackendUnavailable: there is no GPU, or no cupy.
        MeasuringError: a rate is above the datasheet's.
    """
    gpu = model()
    if gpu is None:
        raise BackendUnavailable("no GPU answers: ceilings are measured on the machine that has it")
    try:
        import cupy
    except ImportError as error:
        raise BackendUnavailable(f"cupy is needed to measure ceilings: {error}") from error
    before = machine.gpu_state()
    absent: dict[str, str] = {}
    copy = _guarded("copy", _copy, absent)
    cupy.get_default_memory_pool().free_all_blocks()
    product = _guarded("matmul", _product, absent)
    record = {
        "schema": ceilings.SCHEMA,
        "machine": machine.identity()["machine"],
        "gpu": gpu,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "bytes_per_s": copy.get("bytes_per_s"),
        "flops_per_s": product.get("burst_flops_per_s"),
        "copy": copy,
        "matmul": product,
        "absent": absent,
        "harness": __version__,
        "gpu_before": before,
        "gpu_after": machine.gpu_state(),
        "covariates": machine.covariates(),
    }
    _refuse_impossible(record)
    return record


def save(record: dict[str, Any], results_dir: Path) -> Path:
    """Append ``record`` to the ceilings of its machine below ``results_dir``; returns the file.

    Raises:
        KdbenchError: the file cannot be written.
    """
    path = results_dir / str(record["machine"]) / ceilings.FILE
    try:
        provenance.append(path, record)
    except OSError as error:
        raise KdbenchError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def _refuse_impossible(record: dict[str, Any]) -> None:
    sheet = ceilings.DATASHEET.get(record["gpu"])
    for key in ("bytes_per_s", "flops_per_s"):
        found, peak = record[key], getattr(sheet, key, math.inf)
        if found is not None and not 0 < found <= peak:
            raise MeasuringError(f"{key} of {record['gpu']} came out as {found:.4g}, and its datasheet has {peak:.4g}")


def _guarded(name: str, probe: Callable[[], dict[str, Any]], absent: dict[str, str]) -> dict[str, Any]:
    try:
        return probe()
    except KdbenchError:
        raise
    except Exception as error:  # no cuBLAS, too little memory: the other rate is still worth having
        absent[name] = f"{type(error).__name__}: {error}"
        return {}


def _copy() -> dict[str, Any]:
    """Device to device, bytes read and written."""
    import cupy

    free = int(cupy.cuda.runtime.memGetInfo()[0])
    size = min(_COPY_BYTES, free // 4) & ~0xFFF
    source = counter_bits.words(1, 0, size // 8, cupy)
    target = cupy.zeros_like(source)
    stream = cupy.cuda.get_current_stream()
    times = _timed(lambda: target.data.copy_from_device_async(source.data, size, stream), _COPIES + 3)[3:]
    if not bool((source == target).all()):
        raise MeasuringError("the copy is not what was copied")
    return {"bytes": 2 * size, "samples_s": times, "bytes_per_s": 2 * size / median(times)}


def _product() -> dict[str, Any]:
    """bf16 times bf16, summed in f32, by cuBLAS."""
    import cupy

    left, right = (counter_bits.bf16_words(seed, _EXPONENT, (_SIZE, _SIZE), cupy) for seed in (2, 3))
    out = cupy.zeros((_SIZE, _SIZE), cupy.uint16)
    multiply = _gemm(left, right, out)
    pilot = median(_timed(multiply, 5)[1:])
    _check_product(left, right, out)
    bursts = []
    for _ in range(_BURSTS):
        time.sleep(_IDLE_S)
        bursts.append(_timed(multiply, math.ceil(1.5 * _BURST_S / pilot)))
    time.sleep(_IDLE_S)
    times = _timed(multiply, math.ceil(_SUSTAINED_S[1] / pilot))
    ends = itertools.accumulate(times)
    sustained = [t for t, end in zip(times, ends, strict=True) if end >= _SUSTAINED_S[0]] or times[-1:]
    rates = {f"{name}_flops_per_s": [_rate(burst, window) for burst in bursts] for name, window in _WINDOWS.items()}
    return {
        "size": _SIZE,
        **{key: median(values) for key, values in rates.items()},
        "sustained_flops_per_s": _FLOPS / median(sustained),
        "bursts": rates,
        "samples_s": bursts[0],
    }


def _rate(times: Sequence[float], window: float) -> float:
    """FLOPs a second of the products that end within ``window`` seconds, at least one."""
    count = max(1, sum(end <= window for end in itertools.accumulate(times)))
    return _FLOPS * count / sum(times[:count])


def _gemm(left: Any, right: Any, out: Any) -> Callable[[], None]:
    """out = left @ right of square row-major bf16 matrices, which to cuBLAS is the product of the transposes."""
    import cupy
    import numpy as np
    from cupy_backends.cuda.libs import cublas

    bf16, f32_sums, default = 14, 68, -1  # CUDA_R_16BF, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT
    handle = cupy.cuda.device.get_cublas_handle()
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    n = len(left)

    def multiply() -> None:
        cublas.gemmEx(
            handle, cublas.CUBLAS_OP_N, cublas.CUBLAS_OP_N, n, n, n, one.ctypes.data,
            right.data.ptr, bf16, n, left.data.ptr, bf16, n, zero.ctypes.data, out.data.ptr, bf16, n,
            f32_sums, default,
        )  # fmt: skip

    return multiply


def _check_product(left: Any, right: Any, out: Any) -> None:
    """A corner against float64: a product that was not computed has no rate."""
    import numpy as np

    def wide(words: Any) -> Any:
        return (words.get().astype(np.uint32) << 16).view(np.float32).astype(np.float64)

    wanted, got = wide(left[-_CHECKED:]) @ wide(right[:, -_CHECKED:]), wide(out[-_CHECKED:, -_CHECKED:])
    error = float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))
    if not error < 5e-3:
        raise MeasuringError(f"the matrix product is off by {error:.2e} of its norm")


def _timed(launch: Callable[[], None], count: int) -> list[float]:
    """Seconds of each of ``count`` launches in a row, queued without a wait between them."""
    import cupy

    pairs = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in range(count)]
    for start, stop in pairs:
        start.record()
        launch()
        stop.record()
    pairs[-1][1].synchronize()
    return [float(cupy.cuda.get_elapsed_time(start, stop)) * 1e-3 for start, stop in pairs]
