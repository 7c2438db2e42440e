# SPDX-License-Identifier: Apache-2.0
"""Array protocols, shapes with symbols, streams and bf16; device arrays are stood in for by their interface."""

from __future__ import annotations

import numpy as np
import pytest
from array_owners import Interfaced, Lent, OnDevice

from kdbench import arrays
from kdbench.errors import InvalidArgument
from kdbench.shapes import Shapes


class TestViews:
    @pytest.mark.parametrize("wrap", [lambda a: a, Lent, Interfaced], ids=["numpy", "dlpack", "array interface"])
    def test_host_arrays_are_not_copied(self, wrap):
        array = np.arange(6, dtype=np.int32).reshape(2, 3)
        seen = arrays.view("x", wrap(array))
        assert (seen.pointer, seen.shape, seen.dtype, seen.device) == (array.ctypes.data, (2, 3), "int32", "cpu")
        assert seen.contiguous
        assert seen.on_host
        assert np.array_equal(arrays.to_numpy(wrap(array)), array)

    def test_read_only_byte_swapped_strided_and_misaligned(self):
        array = np.zeros((4, 4), np.float32)
        array.flags.writeable = False
        assert not arrays.view("x", array).writable
        assert arrays.view("x", np.zeros(2, ">f4")).dtype == "byte-swapped float32"
        assert not arrays.view("x", array.T[:, 1:]).contiguous
        assert not arrays.view("x", np.zeros(9, np.uint8)[1:].view(np.float32)).contiguous

    def test_torch_tensors_are_not_copied(self):
        torch = pytest.importorskip("torch")
        tensor = torch.arange(6, dtype=torch.float32).reshape(2, 3)
        seen = arrays.view("x", tensor)
        assert (seen.pointer, seen.shape, seen.dtype, seen.device) == (tensor.data_ptr(), (2, 3), "float32", "cpu")
        assert seen.framework == "torch"
        assert not arrays.view("x", tensor.T).contiguous
        half = torch.tensor([1.0, -2.0], dtype=torch.bfloat16)
        assert arrays.view("x", half).dtype == "bfloat16"
        assert arrays.to_numpy(half).tolist() == [0x3F80, 0xC000]
        with pytest.raises(InvalidArgument, match="x is on the Torch device meta"):
            arrays.view("x", torch.zeros(2, device="meta"))

    @pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:The PyTorch API of nested")
    def test_torch_tensors_without_plain_memory_are_refused(self):
        torch = pytest.importorskip("torch")
        for tensor, layout in (
            (torch.eye(3).to_sparse(), "sparse_coo"),
            (torch.eye(3).to_sparse_csr(), "sparse_csr"),
            (torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]), "nested"),
        ):
            with pytest.raises(InvalidArgument, match=f"^x is a {layout} Torch tensor, and a dense one is expected$"):
                arrays.view("x", tensor)
        with pytest.raises(InvalidArgument, match=r"^x is a UntypedStorage, not a Torch tensor$"):
            arrays.view("x", torch.zeros(1).untyped_storage())

    def test_a_lazy_sign_of_torch_is_refused(self):
        torch = pytest.importorskip("torch")

        class Subclass(torch.Tensor):
            pass

        negative = torch._neg_view(torch.arange(5.0))
        for tensor in (negative, negative.as_subclass(Subclass), torch.zeros(2, dtype=torch.complex64).conj().imag):
            with pytest.raises(InvalidArgument, match=r"^x is a lazily .* Torch view: pass x\.resolve_neg\(\)$"):
                arrays.view("x", tensor)
        with pytest.raises(InvalidArgument, match=r"^x is a lazily .* Torch view: pass x\.resolve_conj\(\)$"):
            arrays.view("x", torch.zeros(2, dtype=torch.complex64).conj())
        assert arrays.to_numpy(negative.resolve_neg()).tolist() == [0, -1, -2, -3, -4]
        assert arrays.view("x", torch.zeros(2).as_subclass(Subclass)).framework == "torch"

    def test_device_arrays(self):
        seen = arrays.view("x", OnDevice())
        assert (seen.pointer, seen.shape, seen.dtype, seen.device) == (0x7000, (2, 3), "float32", "cuda:1")
        assert seen.framework == "cupy"
        assert seen.contiguous
        assert seen.writable
        assert arrays.view("x", OnDevice(strides=(12, 4))).contiguous
        assert not arrays.view("x", OnDevice(strides=(16, 4))).contiguous
        assert not arrays.view("x", OnDevice(read_only=True)).writable

    def test_what_is_no_array(self):
        with pytest.raises(InvalidArgument, match="x is a list, not a NumPy, CuPy or Torch array"):
            arrays.view("x", [1, 2])
        with pytest.raises(InvalidArgument, match="x is a Lent, not a NumPy"):
            arrays.view("x", Lent(np.zeros(1), device=(4, 0)))
        with pytest.raises(InvalidArgument, match="x cannot be read through DLPack"):
            arrays.view("x", Lent(np.array([None]), device=(1, 0)))


class TestShapes:
    def test_symbols_are_bound_and_shared(self):
        shapes = Shapes()
        shapes.take("a", np.zeros((2, 3), np.float32), ("B", "D"), "float32")
        shapes.take("b", np.zeros((2, 3, 4), np.int32), ("B", "D", 4), "int32")
        assert (shapes["B"], shapes["D"]) == (2, 3)
        assert shapes.sizes == {"B": 2, "D": 3}

    @pytest.mark.parametrize(
        ("array", "shape", "sentence"),
        [
            (np.zeros((2, 3, 1), np.float32), ("B", "D"), r"^x has shape \[2, 3, 1\], and \[B, D\] is expected$"),
            (
                np.zeros((2, 4), np.float32),
                ("B", "D"),
                r"^x has shape \[2, 4\], and \[B, D\] is expected with D = 3 from first$",
            ),
            (np.zeros((2, 5), np.float32), ("B", 6), r"^x has shape \[2, 5\], and \[B, 6\] is expected$"),
            (np.zeros((2, 3), np.float64), ("B", "D"), "^x has dtype float64, and float32 is expected$"),
            (np.zeros((2, 3), ">f4"), ("B", "D"), "^x has dtype byte-swapped float32, and float32 is expected$"),
            (np.zeros((3, 2), np.float32).T, ("B", "D"), "^x is not contiguous in row-major order"),
            (OnDevice(), ("B", "D"), "^x is on cuda:1, but first is on cpu$"),
            ("text", ("B", "D"), "^x is a str, not a NumPy, CuPy or Torch array$"),
        ],
    )
    def test_a_mismatch_is_one_sentence(self, array, shape, sentence):
        shapes = Shapes()
        shapes.take("first", np.zeros((2, 3), np.int32), ("B", "D"), "int32")
        with pytest.raises(InvalidArgument, match=sentence):
            shapes.take("x", array, shape, "float32")

    def test_several_dtypes_and_outputs(self):
        shapes = Shapes()
        with pytest.raises(InvalidArgument, match="x has dtype int8, and bfloat16 or uint16 is expected"):
            shapes.take("x", np.zeros(2, np.int8), ("B",), arrays.BF16)
        array = np.zeros(2, np.uint16)
        array.flags.writeable = False
        shapes.take("x", array, ("B",), arrays.BF16)
        with pytest.raises(InvalidArgument, match="x is read-only, and the call writes to it"):
            shapes.take("x", array, ("B",), arrays.BF16, write=True)

    def test_two_devices(self):
        shapes = Shapes()
        shapes.take("first", OnDevice(device=0), ("B", "D"), "float32")
        with pytest.raises(InvalidArgument, match="x is on cuda:1, but first is on cuda:0"):
            shapes.take("x", OnDevice(device=1), ("B", "D"), "float32")


class TestStreams:
    device = arrays.view("x", OnDevice())
    host = arrays.view("x", np.zeros(1))

    def test_every_kind_of_stream(self):
        class CupyStream:
            ptr = 7

        class TorchStream:
            cuda_stream = 8

        class Protocol:
            def __cuda_stream__(self):
                return 0, 9

        handles = [arrays.stream_pointer(s, self.device) for s in (5, CupyStream(), TorchStream(), Protocol())]
        assert handles == [5, 7, 8, 9]
        assert arrays.stream_pointer(CupyStream(), self.host) == 0
        assert arrays.stream_pointer(None, self.host) == 0

    @pytest.mark.parametrize("stream", ["main", 1.5, object()])
    def test_what_is_no_stream(self, stream):
        with pytest.raises(InvalidArgument, match="stream must be None, an integer handle"):
            arrays.stream_pointer(stream, self.host)


class TestAllocation:
    def test_results_are_of_the_same_kind(self):
        made = arrays.empty(arrays.view("x", np.zeros(1)), (2, 3), "int32")
        assert isinstance(made, np.ndarray)
        assert (made.shape, made.dtype) == ((2, 3), np.int32)

    def test_torch(self):
        torch = pytest.importorskip("torch")
        like = arrays.view("x", torch.zeros(1))
        for name in ("int32", "float32", "uint64", "bfloat16", "uint8"):
            made = arrays.empty(like, (2, 3), name)
            assert made.dtype == getattr(torch, name)
            assert made.shape == (2, 3)

    def test_ml_dtypes(self):
        ml_dtypes = pytest.importorskip("ml_dtypes")
        like = arrays.view("x", np.zeros(1, ml_dtypes.bfloat16))
        assert like.dtype == "bfloat16"
        assert arrays.empty(like, (2,), "bfloat16").dtype == ml_dtypes.bfloat16

    def test_scratch_is_aligned(self):
        for nbytes in (1, 1000):
            block, address = arrays.scratch(arrays.view("x", np.zeros(1)), nbytes)
            assert address % 256 == 0
            begin = block.ctypes.data
            assert begin <= address
            assert address + nbytes <= begin + block.nbytes


class TestBf16:
    def test_every_pattern_survives(self):
        bits = np.arange(2**16, dtype=np.uint16)
        values = arrays.bf16_to_f32(bits)
        back = arrays.f32_to_bf16(values)
        nan = np.isnan(values)
        assert np.array_equal(back[~nan], bits[~nan])
        assert np.isnan(arrays.bf16_to_f32(back[nan])).all()

    def test_rounding_is_to_nearest_even(self):
        values = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, 3.4e38, -np.inf, 1e-45], np.float32)
        assert arrays.f32_to_bf16(values).tolist() == [0x3F80, 0x3F82, 0x3F81, 0x7F80, 0xFF80, 0]

    def test_it_rounds_as_ml_dtypes_does(self):
        ml_dtypes = pytest.importorskip("ml_dtypes")
        values = np.random.default_rng(21).integers(0, 2**32, 100_000, np.uint32).view(np.float32)
        values = values[~np.isnan(values)]
        expected = values.astype(ml_dtypes.bfloat16)
        assert np.array_equal(arrays.f32_to_bf16(values), expected.view(np.uint16))
        assert np.array_equal(arrays.bf16_to_f32(expected), expected.astype(np.float32))

    def test_a_scalar_stays_a_scalar(self):
        assert arrays.f32_to_bf16(np.float32(1.0)).shape == ()
        assert arrays.bf16_to_f32(np.uint16(0x3F80)) == 1.0


@pytest.mark.gpu
class TestOnTheGpu:
    def test_cupy(self):
        import cupy

        array = cupy.arange(6, dtype=cupy.float32).reshape(2, 3)
        seen = arrays.view("x", array)
        assert (seen.pointer, seen.device, seen.framework) == (array.data.ptr, "cuda:0", "cupy")
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            assert arrays.stream_pointer(None, seen) == stream.ptr
        made = arrays.empty(seen, (4,), "uint16", stream.ptr)
        assert isinstance(made, cupy.ndarray)
        assert arrays.to_numpy(array).tolist() == [[0, 1, 2], [3, 4, 5]]
        lent = arrays.view("x", Lent(array))
        assert lent.pointer == array.data.ptr

    def test_torch(self):
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("this Torch is built without CUDA")
        tensor = torch.ones(2, 3, device="cuda", dtype=torch.bfloat16)
        seen = arrays.view("x", tensor)
        assert (seen.pointer, seen.device, seen.dtype) == (tensor.data_ptr(), "cuda:0", "bfloat16")
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            assert arrays.stream_pointer(None, seen) == stream.cuda_stream
        assert arrays.empty(seen, (4,), "int32", stream.cuda_stream).device == tensor.device
        assert arrays.to_numpy(tensor).tolist() == [[0x3F80] * 3] * 2
