# SPDX-License-Identifier: Apache-2.0
"""The ABI against its header, and libraries that are missing, old, foreign or fine."""

from __future__ import annotations

import ctypes
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from kdbench import abi, kernels, native
from kdbench.errors import BackendUnavailable, KernelError

HEADER = Path(__file__).parents[1] / "native" / "include" / "kdtree" / "kdtree.h"
needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

SOUND_LIBRARY = """
unsigned kdt_abi_version(void) { return ABI; }
const char* kdt_build_info(void) { return INFO; }
const char* kdt_last_error(void) { return ""; }
int kdt_tree_build(const void* p) { return 77; }
"""


def compiled(folder: Path, source: str, *flags: str, name: str = "libkdtree_cpu.so") -> Path:
    (folder / "library.c").write_text(source)
    path = folder / name
    subprocess.run(["cc", "-shared", "-fPIC", *flags, str(folder / "library.c"), "-o", str(path)], check=True)
    return path


def test_constants_are_those_of_the_header():
    text = HEADER.read_text()
    defines = dict(re.findall(r"#define KDT_(\w+) \(?(-?[\d.]+)f?\)?$", text, re.MULTILINE))
    assert len(defines) == 10
    assert {name: float(value) for name, value in defines.items()} == {name: getattr(abi, name) for name in defines}
    bits = {name: 1 << int(shift) for name, shift in re.findall(r"KDT_REQ_(\w+) = 1 << (\d+)", text)}
    assert bits == {flag.name: flag.value for flag in native.RequestStatus}
    returns = re.search(r"typedef enum kdt_status \{(.*?)\}", text, re.DOTALL)
    assert returns
    values = {name: int(value) for name, value in re.findall(r"KDT_(\w+) = (\d+)", returns[1])}
    assert values == {status.name: status.value for status in native.Status}
    modes = re.search(r"typedef enum kdt_mla_mode \{(.*?)\}", text, re.DOTALL)
    assert modes
    values = {name: int(value) for name, value in re.findall(r"KDT_MLA_(\w+) = (\d+)", modes[1])}
    assert values == {mode.name: mode.value for mode in native.MlaMode}
    assert f"KDT_F32 = {abi.DTYPE_F32}, KDT_BF16 = {abi.DTYPE_BF16}" in text


@needs_cc
def test_structs_are_laid_out_as_the_header_says(tmp_path):
    lines = ["#include <stdio.h>", f'#include "{HEADER}"', "int main(void) {"]
    structs = abi.PARAMS | {"kdt_verify_mla_cost": abi.VerifyMlaCosts}
    names = {symbol: f"{symbol}_params" for symbol in abi.PARAMS} | {"kdt_verify_mla_cost": "kdt_verify_mla_costs"}
    for symbol, params in structs.items():
        lines.append(f'printf("{symbol} size %zu\\n", sizeof({names[symbol]}));')
        lines += [
            f'printf("{symbol} {name} %zu\\n", offsetof({names[symbol]}, {name}));' for name, *_ in params._fields_
        ]
    (tmp_path / "layout.c").write_text("\n".join([*lines, "}"]))
    subprocess.run(["cc", "layout.c", "-o", "layout"], cwd=tmp_path, check=True)
    printed = subprocess.run([str(tmp_path / "layout")], capture_output=True, text=True, check=True).stdout
    expected = ""
    for symbol, params in structs.items():
        expected += f"{symbol} size {ctypes.sizeof(params)}\n"
        expected += "".join(f"{symbol} {name} {getattr(params, name).offset}\n" for name, *_ in params._fields_)
    assert printed == expected


def test_params_know_their_size_and_their_names():
    assert abi.TreeAcceptParams(batch=3).struct_size == ctypes.sizeof(abi.TreeAcceptParams)
    with pytest.raises(TypeError, match="TreeAcceptParams has no field 'batches'"):
        abi.TreeAcceptParams(batches=3)


def test_refused_means_an_error_bit():
    flags = native.RequestStatus
    assert not (flags.SHORT_TREE | flags.TRUNCATED | flags.SLOW_PATH).refused
    assert all(flags(1 << bit).refused for bit in range(8, 15))


def test_importing_kdbench_needs_numpy_only():
    blocked = "for name in ('torch', 'cupy', 'pandas', 'scipy', 'asv', 'ml_dtypes'): sys.modules[name] = None"
    code = f"import sys\n{blocked}\nimport kdbench, kdbench.kernels, kdbench.native, kdbench.reference, kdbench.kdtr"
    subprocess.run([sys.executable, "-c", code], check=True)


class TestSearch:
    def test_an_empty_folder(self, tmp_path, monkeypatch):
        monkeypatch.setenv("KDTREE_NATIVE_DIR", str(tmp_path))
        for backend in native.BACKENDS:
            reason = native.available(backend)
            assert reason == f"KDTREE_NATIVE_DIR is {tmp_path}, and there is no libkdtree_{backend}.so in it"

    def test_nothing_installed(self, monkeypatch):
        monkeypatch.delenv("KDTREE_NATIVE_DIR", raising=False)
        monkeypatch.setitem(sys.modules, "kdtree_native", None)
        monkeypatch.setattr(native.importlib.util, "find_spec", lambda name: None)
        with pytest.raises(BackendUnavailable, match=r"pip install \./native"):
            native.load("cpu")

    def test_the_installed_package(self, tmp_path, monkeypatch):
        package = tmp_path / "kdtree_native"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "libkdtree_cpu.so").write_text("")
        monkeypatch.delenv("KDTREE_NATIVE_DIR", raising=False)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "kdtree_native", raising=False)
        assert native.library_path("cpu") == package / "libkdtree_cpu.so"
        assert "was built without libkdtree_cuda.so" in str(native.available("cuda"))

    def test_an_unknown_backend(self):
        assert native.available("metal") == "there is no backend 'metal': choose one of cpu, cuda"


class TestForeignLibraries:
    def test_no_library_at_all(self, tmp_path):
        (tmp_path / "libkdtree_cpu.so").write_text("not ELF")
        with pytest.raises(BackendUnavailable, match="cannot be loaded"):
            native.load_file(tmp_path / "libkdtree_cpu.so", "cpu")

    @needs_cc
    @pytest.mark.parametrize(
        ("source", "version", "info", "sentence"),
        [
            ("int x;", 1, "", "has no kdt_abi_version"),
            (SOUND_LIBRARY, 0, "{}", "has ABI 0, and this kdbench reads 1 to 1"),
            (SOUND_LIBRARY, 2, "{}", "has ABI 2"),
            (SOUND_LIBRARY, 1, "{", "build info that is not JSON"),
            (SOUND_LIBRARY, 1, '{\\"backend\\": \\"cuda\\"}', "is a cuda library, not a cpu one"),
        ],
    )
    def test_a_library_that_is_not_ours(self, tmp_path, source, version, info, sentence):
        path = compiled(tmp_path, source, f"-DABI={version}", f'-DINFO="{info}"')
        with pytest.raises(BackendUnavailable, match=sentence):
            native.load_file(path, "cpu")

    @needs_cc
    def test_an_older_library_names_what_it_lacks(self, tmp_path):
        info = '{\\"backend\\": \\"cpu\\"}'
        library = native.load_file(compiled(tmp_path, SOUND_LIBRARY, "-DABI=1", f'-DINFO="{info}"'), "cpu")
        with pytest.raises(BackendUnavailable, match="has no kdt_draft_topk: an older build"):
            library.function("kdt_draft_topk")
        logits = np.zeros((1, 4), np.float32)
        with pytest.raises(BackendUnavailable, match="has no kdt_draft_topk_workspace_size"):
            kernels.prepare_draft_topk(logits, 2, library=library)
        # It knows the struct without its newest field, which is fine as long as that is zero.
        older = SOUND_LIBRARY.replace('""', '"too_old: a field newer than the library is in use"').replace("77", "1")
        old = native.load_file(compiled(tmp_path, older, "-DABI=1", f'-DINFO="{info}"', name="old.so"), "cpu")
        with pytest.raises(BackendUnavailable, match=r"old.so is too old for this call of kdt_tree_build: too_old: a"):
            old.call("kdt_tree_build", abi.TreeBuildParams())
        # A status that this kdbench has no name for still is an error.
        with pytest.raises(KernelError, match="returned 77: no reason given") as caught:
            library.call("kdt_tree_build", abi.TreeBuildParams())
        assert caught.value.status == 77


def test_a_kernel_error_survives_pickling():
    error = pickle.loads(pickle.dumps(KernelError("it failed", 3)))
    assert (str(error), error.status) == ("it failed", 3)


class TestGpu:
    """The reasons of ``available("cuda")`` once the library itself loads, with a stand-in for CuPy."""

    @pytest.fixture
    def cupy(self, monkeypatch):
        module = ModuleType("cupy")
        runtime = SimpleNamespace(getDeviceCount=lambda: 1)
        module.cuda = SimpleNamespace(runtime=runtime)
        monkeypatch.setitem(sys.modules, "cupy", module)
        monkeypatch.setattr(native, "load", lambda backend: None)
        return runtime

    def test_a_gpu(self, cupy):
        assert native.available("cuda") is None

    def test_no_gpu(self, cupy):
        cupy.getDeviceCount = lambda: 0
        assert native.available("cuda") == "no usable GPU: the driver lists none"

    def test_no_driver(self, cupy):
        def fail():
            raise RuntimeError("cudaErrorInsufficientDriver")

        cupy.getDeviceCount = fail
        assert native.available("cuda") == "no usable GPU: cudaErrorInsufficientDriver"

    def test_no_cupy(self, cupy, monkeypatch):
        monkeypatch.setitem(sys.modules, "cupy", None)
        assert str(native.available("cuda")).startswith("cupy cannot be imported: ")
        assert native.available("cpu") is None


class TestCpuLibrary:
    def test_it_says_what_it_is(self, cpu_library):
        assert cpu_library.backend == "cpu"
        assert cpu_library.abi_version == abi.ABI_VERSION
        assert cpu_library.build_info["backend"] == "cpu"
        expected = {"backend", "compiler", "archs", "git_commit", "flags", "cuda_version"}
        assert expected <= cpu_library.build_info.keys()
        assert re.fullmatch("[0-9a-f]{64}", cpu_library.digest)
        assert native.load("cpu") is cpu_library

    def test_it_has_every_symbol(self, cpu_library):
        for symbol in abi.PARAMS:
            assert cpu_library.function(symbol) is cpu_library.function(symbol)
            assert cpu_library.function(f"{symbol}_workspace_size")

    def test_refusals_carry_a_sentence(self, cpu_library):
        with pytest.raises(KernelError, match=r"kdt_tree_accept \(cpu\) returned INVALID_ARGUMENT: .*max_nodes") as bad:
            cpu_library.call("kdt_tree_accept", abi.TreeAcceptParams(max_nodes=0))
        assert bad.value.status == native.Status.INVALID_ARGUMENT
        with pytest.raises(KernelError, match=r"kdt_tree_build_workspace_size .* INVALID_ARGUMENT: .*tree_budget"):
            cpu_library.workspace_size("kdt_tree_build", abi.TreeBuildParams(topk=1, tree_budget=1025))

    def test_the_struct_size_rule(self, cpu_library):
        size = ctypes.sizeof(abi.TreeAcceptParams)
        memory = (ctypes.c_char * (size + 16))()
        params = abi.TreeAcceptParams.from_buffer(memory)
        params.max_nodes = 1
        first_version = abi.TreeAcceptParams.seq_lens.offset  # the struct before the fields that were appended to it
        for struct_size in (0, 4, first_version - 1):
            params.struct_size = struct_size
            with pytest.raises(KernelError, match="struct_size") as caught:
                cpu_library.call("kdt_tree_accept", params)
            assert caught.value.status == native.Status.INVALID_ARGUMENT
        params.struct_size = first_version
        cpu_library.call("kdt_tree_accept", params)  # an older caller
        params.struct_size = size + 16
        cpu_library.call("kdt_tree_accept", params)  # a newer caller that uses no newer field
        memory[size + 9] = b"\1"
        with pytest.raises(BackendUnavailable, match=r"too old for this call of kdt_tree_accept: .*struct_size"):
            cpu_library.call("kdt_tree_accept", params)

    def test_a_workspace_that_is_missing_or_small_is_refused(self, cpu_library):
        arguments = (np.zeros((2, 3, 4), np.float32), np.arange(24, dtype=np.int32).reshape(2, 3, 4))
        call = kernels.prepare_tree_build(*arguments, np.zeros(2, np.int32), np.zeros(2, np.int32), 9)
        if not call.params.workspace_size:
            pytest.skip("tree_build needs no workspace here")
        call.params.workspace_size -= 1
        with pytest.raises(KernelError, match="workspace"):
            call.launch()
        call.params.workspace = None
        with pytest.raises(KernelError, match="workspace"):
            call.launch()

    def test_two_builds_side_by_side(self, cpu_library, tmp_path):
        copies = [shutil.copy(cpu_library.path, tmp_path / f"{name}.so") for name in "ab"]
        first, second = (native.load_file(path, "cpu") for path in copies)
        assert first is not second
        assert first.digest == second.digest == cpu_library.digest
        assert first.function("kdt_tree_accept") is not second.function("kdt_tree_accept")
        # Each keeps its own last error.
        with pytest.raises(KernelError):
            first.call("kdt_tree_accept", abi.TreeAcceptParams())
        assert first._last_error()
        assert not second._last_error()
