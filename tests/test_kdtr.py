# SPDX-License-Identifier: Apache-2.0
"""KDTR containers: what is written is read, and whatever is not sound is refused."""

from __future__ import annotations

import gc
import os
import struct
import zlib

import numpy as np
import pytest

from kdbench import kdtr
from kdbench.errors import KdtrError

ARRAYS = {
    "f32": np.linspace(0, 1, 7, dtype=np.float32),
    "f64": np.array(np.pi),
    "i32": np.arange(-6, 6, dtype=np.int32).reshape(3, 4),
    "i64": np.arange(720, dtype=np.int64).reshape(1, 2, 3, 4, 5, 6),
    "u64": np.array([2**64 - 1], np.uint64),
    "u8": np.zeros((3, 0), np.uint8),
    "bf16": np.array([0x3F80, 0x7FC0], np.uint16),
    "ünïcode, 4 words": np.arange(5, dtype=np.uint32),
}


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "bundle.kdtr"
    kdtr.write(path, ARRAYS)
    back = kdtr.read(path)
    assert list(back) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert back[name].dtype == array.dtype
        assert np.array_equal(back[name], array)
        assert back[name].shape == array.shape
        assert not back[name].flags.writeable
        assert back[name].flags.aligned
    assert [p.name for p in tmp_path.iterdir()] == ["bundle.kdtr"]


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="no /proc to look into")
def test_read_arrays_are_a_map_that_outlives_the_file(tmp_path):
    path = tmp_path / "bundle.kdtr"
    kdtr.write(path, ARRAYS)
    back = kdtr.read(path)
    with open("/proc/self/maps") as maps:
        assert any(line.rstrip().endswith(str(path)) for line in maps)
    kdtr.write(path, {"f32": np.ones(7, np.float32)})
    path.unlink()
    last = back.pop("f32")
    del back
    gc.collect()
    assert np.array_equal(last, ARRAYS["f32"])
    with pytest.raises(ValueError, match="read-only"):
        last[0] = 5
    del last
    gc.collect()
    with open("/proc/self/maps") as maps:
        assert str(path) not in maps.read()
    links = (os.path.join("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd"))
    assert not any(str(path) in os.readlink(link) for link in links if os.path.islink(link))


def test_arrays_of_a_bytearray_are_writable_views_of_it():
    data = bytearray(kdtr.dumps({"x": np.array([1, 2], np.uint8)}))
    kdtr.loads(data)["x"][1] = 9
    assert data[192:194] == b"\x01\x09"
    assert not kdtr.loads(bytes(kdtr.dumps({"x": np.array([1, 2], np.uint8)})))["x"].flags.writeable


def test_the_layout_is_the_documented_one():
    data = kdtr.dumps({"a": np.array([1, 2, 3], np.int32), "b": np.array([7], np.uint8)})
    assert data[:4] == b"KDTR"
    assert struct.unpack_from("<III", data, 4) == (1, 2, zlib.crc32(data[64:320]))
    assert struct.unpack_from("<Q", data, 16) == (len(data),)
    assert struct.unpack_from("<I", data, 60) == (zlib.crc32(data[:60]),)
    name, dtype, ndim, *shape = struct.unpack_from("<48sII6Q", data, 64)
    assert (name.rstrip(b"\0"), dtype, ndim, shape) == (b"a", 3, 1, [3, 0, 0, 0, 0, 0])
    assert struct.unpack_from("<QQII", data, 64 + 104) == (320, 12, zlib.crc32(data[320:332]), 0)
    assert struct.unpack_from("<QQ", data, 192 + 104) == (384, 1)
    assert len(data) == 448


def test_an_empty_container_and_other_byte_orders():
    assert kdtr.loads(kdtr.dumps({})) == {}
    assert len(kdtr.dumps({})) == 64
    swapped = np.array([1.5, -2], ">f4")
    assert kdtr.loads(kdtr.dumps({"x": swapped}))["x"].tolist() == [1.5, -2]
    transposed = np.arange(6, dtype=np.int32).reshape(2, 3).T
    assert np.array_equal(kdtr.loads(kdtr.dumps({"x": transposed}))["x"], transposed)


def test_ml_dtypes_bfloat16_keeps_its_bits():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([[1.0, -0.5], [np.inf, 3.0]], ml_dtypes.bfloat16)
    assert np.array_equal(kdtr.loads(kdtr.dumps({"x": array}))["x"], array.view(np.uint16))


def test_every_flipped_byte_is_noticed():
    data = kdtr.dumps({"one": np.arange(20, dtype=np.uint8), "two": np.ones((2, 2), np.float32)})
    for position in range(len(data)):
        broken = bytearray(data)
        broken[position] ^= 0x41
        with pytest.raises(KdtrError):
            kdtr.loads(broken)


def test_every_cut_file_is_noticed():
    data = kdtr.dumps({"one": np.arange(20, dtype=np.uint8)})
    for size in range(len(data)):
        with pytest.raises(KdtrError):
            kdtr.loads(data[:size])
    with pytest.raises(KdtrError, match="speaks of 256 bytes, and the file has 320"):
        kdtr.loads(data + bytes(64))


def forged(**changes: int | bytes) -> bytes:
    """A container of one array int32[2, 3] with table fields or header fields replaced and all checksums put right."""
    payload = np.arange(6, dtype=np.int32).tobytes() + bytes(40)
    entry = {"name": b"x", "dtype": 3, "ndim": 2, "s0": 2, "s1": 3, "s2": 0, "offset": 192, "nbytes": 24, "zero": 0}
    header = {"magic": b"KDTR", "version": 1, "count": 1, "size": None, "reserved": 0, "tail": b""}
    for key, value in changes.items():
        (entry if key in entry else header)[key] = value
    crc = zlib.crc32(payload[: entry["nbytes"]])
    table = struct.pack(
        "<48sII6QQQII",
        entry["name"],
        entry["dtype"],
        entry["ndim"],
        entry["s0"],
        entry["s1"],
        entry["s2"],
        *(0, 0, 0),
        entry["offset"],
        entry["nbytes"],
        crc,
        entry["zero"],
    )
    body = table * min(header["count"], 2) + payload + header["tail"]
    size = 64 + len(body) if header["size"] is None else header["size"]
    start = struct.pack(
        "<4sIIIQ36s",
        header["magic"],
        header["version"],
        header["count"],
        zlib.crc32(table * min(header["count"], 2)),
        size,
        bytes([header["reserved"]]) + bytes(35),
    )
    return start + struct.pack("<I", zlib.crc32(start)) + body


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"magic": b"GGUF"}, "does not start with b'KDTR'"),
        ({"version": 2}, "version 2, and version 1 is read"),
        ({"size": 512}, "speaks of 512 bytes"),
        ({"reserved": 1}, "reserved header bytes"),
        ({"count": 9}, "table of 9 arrays does not fit"),
        ({"count": 2, "offset": 320}, "two arrays are called 'x'"),
        ({"name": b""}, "name of array 0 is empty"),
        ({"name": b"\xff\xfe"}, "not UTF-8"),
        ({"name": b"x\0y"}, "not padded with NUL"),
        ({"name": b"n" * 48}, "too long"),
        ({"dtype": 9}, "unknown dtype code 9"),
        ({"ndim": 7}, "malformed table entry: 7 dimensions"),
        ({"s2": 1}, "malformed table entry"),
        ({"zero": 1}, "malformed table entry"),
        ({"s1": 4}, r"24 bytes, which is not what shape \[2, 4\] needs"),
        ({"s0": 2**62, "s1": 2**62}, "which is not what shape"),
        ({"offset": 200}, "misaligned or outside"),
        ({"offset": 128}, "misaligned or outside"),
        ({"offset": 256}, "misaligned or outside"),
        ({"tail": bytes(64)}, "goes on after its last array"),
        ({"s0": 1, "nbytes": 12}, "goes on after its last array"),
    ],
)
def test_a_forged_file_is_refused_in_one_sentence(changes, sentence):
    with pytest.raises(KdtrError, match=sentence) as caught:
        kdtr.loads(forged(**changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "sizes", [{"s0": 2**63, "s1": 0}, {"s0": 0, "s1": 2**62}, {"ndim": 3, "s0": 2**32, "s1": 2**32, "s2": 0}]
)
def test_an_empty_array_of_impossible_sizes_is_refused(sizes):
    with pytest.raises(KdtrError, match=r"^array 'x' has shape \[.*\], which no array in memory can have$"):
        kdtr.loads(forged(**sizes, nbytes=0))


def test_an_empty_array_keeps_the_sizes_that_numpy_can_hold():
    shape = 0, 2**60, 1
    assert kdtr.loads(kdtr.dumps({"x": np.zeros(shape, np.int32)}))["x"].shape == shape


def test_the_forger_itself_writes_a_sound_file():
    assert kdtr.loads(forged())["x"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_overlapping_arrays_are_refused():
    data = bytearray(kdtr.dumps({"a": np.arange(32, dtype=np.int32), "b": np.arange(16, 32, dtype=np.int32)}))
    # Let b point into the second half of a, which holds the same values.
    struct.pack_into("<Q", data, 192 + 104, 320 + 64)
    del data[320 + 128 :]
    struct.pack_into("<I", data, 12, zlib.crc32(data[64:320]))
    struct.pack_into("<Q", data, 16, len(data))
    struct.pack_into("<I", data, 60, zlib.crc32(data[:60]))
    with pytest.raises(KdtrError, match="array 'b' overlaps"):
        kdtr.loads(data)


@pytest.mark.parametrize(
    ("name", "array", "sentence"),
    [
        ("", np.zeros(1, np.int32), "1 to 47 bytes"),
        ("ü" * 24, np.zeros(1, np.int32), "1 to 47 bytes"),
        ("a\0b", np.zeros(1, np.int32), "without NUL"),
        ("\ud800", np.zeros(1, np.int32), r"^array name '\\ud800' has no UTF-8 form$"),
        ("x", np.zeros(1, np.int16), "dtype int16"),
        ("x", np.zeros(1, bool), "dtype bool"),
        ("x", np.zeros((1,) * 7, np.int32), "7 dimensions"),
    ],
)
def test_what_the_format_cannot_hold_is_not_written(tmp_path, name, array, sentence):
    with pytest.raises(KdtrError, match=sentence):
        kdtr.write(tmp_path / "x.kdtr", {name: array})
    assert not list(tmp_path.iterdir())


def test_the_path_stands_in_the_message(tmp_path):
    path = tmp_path / "broken.kdtr"
    path.write_bytes(b"nothing")
    with pytest.raises(KdtrError, match=r"broken\.kdtr: a KDTR file has at least 64 bytes, and this one has 7"):
        kdtr.read(path)
    path.write_bytes(b"")
    with pytest.raises(KdtrError, match=r"broken\.kdtr: a KDTR file has at least 64 bytes, and this one has 0"):
        kdtr.read(path)
