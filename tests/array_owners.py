# SPDX-License-Identifier: Apache-2.0
"""Array owners that expose one protocol each; device memory is stood in for by its interface."""

from __future__ import annotations


class OnDevice:
    """An owner of __cuda_array_interface__, as Numba's; nothing dereferences its pointer."""

    def __init__(self, shape=(2, 3), typestr="<f4", strides=None, read_only=False, device=1, pointer=0x7000):
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": typestr,
            "data": (pointer, read_only),
            "strides": strides,
            "version": 3,
        }
        self.device = type("Device", (), {"id": device})()


class Lent:
    """An owner of nothing but DLPack."""

    def __init__(self, array, device=None):
        self._array = array
        self._device = device

    def __dlpack__(self, **kwargs):
        return self._array.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self._device or self._array.__dlpack_device__()


class Interfaced:
    """An owner of nothing but __array_interface__."""

    def __init__(self, array):
        self.__array_interface__ = array.__array_interface__
        self.keep = array
