# SPDX-License-Identifier: Apache-2.0
# `make bench` measures, `make test` tests; each sets up everything it needs in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# How many of the last commits that changed the engine `make bench` measures, and which of the workloads.
COMMITS ?= 3
TAG ?= quick
REPORT ?= .asv/report

HAVE_GPU := $(shell nvidia-smi -L 2>/dev/null | grep -q '^GPU' && echo yes)
HAVE_NVCC := $(shell test -x "$${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" || command -v nvcc >/dev/null 2>&1 && echo yes)
# nvcc without a GPU would compile kernels for minutes that nothing here can run.
ifeq ($(HAVE_GPU),)
export KDTREE_CUDA ?= 0
else
CUDA_EXTRA := ,cuda
endif
# The test that compiles the kernels for every architecture must never be skipped for want of a compiler.
ifeq ($(HAVE_NVCC),)
NVCC_EXTRA := ,nvcc
endif

NATIVE_SOURCES := $(shell find native -type f -not -path 'native/build*' 2>/dev/null)

.PHONY: bench test report gpu-check lint format doctor clean help
.DEFAULT_GOAL := help

help:
	@echo 'make bench      measure the last $(COMMITS) commits of the engine and write $(REPORT)/index.html'
	@echo 'make test       run the tests'
	@echo 'make report     write the report again from results/'
	@echo 'make gpu-check  C++ tests, sanitizers and GPU tests, on a machine with a GPU'
	@echo 'make lint       ruff, mypy, clang-format, codespell'
	@echo 'make doctor     what this machine has, lacks, and what to do about it'

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit("kdbench needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check --upgrade pip
	@touch $@

$(VENV)/.bench: $(VENV)/.python pyproject.toml
	$(BIN)/python -m pip install -q --disable-pip-version-check 'hatchling>=1.25' 'editables>=0.5'
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-build-isolation -e '.[harness,native,decode$(CUDA_EXTRA)]'
	@touch $@

$(VENV)/.test: $(VENV)/.bench
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-build-isolation -e '.[dev$(CUDA_EXTRA)$(NVCC_EXTRA)]'
	@touch $@

$(VENV)/.native: $(VENV)/.bench $(NATIVE_SOURCES)
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation --force-reinstall ./native
	@touch $@

bench: $(VENV)/.bench $(VENV)/.native
	$(BIN)/kdbench run --env overlay --last $(COMMITS) --tag $(TAG)
	@$(MAKE) --no-print-directory report

report: $(VENV)/.bench
	$(BIN)/kdbench report --results results --out $(REPORT)

# Files run side by side; a file's own tests stay together, since they share what it has built.
TEST_JOBS ?= 2
test: $(VENV)/.test $(VENV)/.native
	$(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile

# Everything that only a GPU can show: C++ tests, sanitizers, GPU tests. GPU_PYTHON may be an interpreter outside .venv.
GPU_PYTHON ?= $(BIN)/python
# The caller's own PYTHONPATH stays: such an interpreter may find its packages through it.
GPU_PATH := PYTHONPATH=.$(if $(PYTHONPATH),:$(PYTHONPATH))
# racecheck does not follow barriers of part of a block, mbarriers and cluster barriers, by which the Hopper kernel of
# verify_attn orders everything: it would report each hand-over (docs/kernels.md).
RACECHECK ?= --kernel-name-exclude kernel_substring=hopper
gpu-check:
	BUILD_DIR=build native/build_nvcc.sh
	$(GPU_PATH) $(GPU_PYTHON) tests/bundles.py native/build/bundles
	native/build/kdt_tests_cuda native/build/bundles/*.kdtr
	native/build/kdt_engine_tests_cuda
	compute-sanitizer --tool memcheck --error-exitcode 9 native/build/kdt_tests_cuda native/build/bundles/*.kdtr
	compute-sanitizer --tool memcheck --error-exitcode 9 native/build/kdt_engine_tests_cuda
	compute-sanitizer --tool racecheck --error-exitcode 9 $(RACECHECK) native/build/kdt_tests_cuda native/build/bundles/*.kdtr
	KDTREE_NATIVE_DIR=$(CURDIR)/native/build $(GPU_PATH) $(GPU_PYTHON) -m pytest -m "gpu and not slow"

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' | xargs $(BIN)/clang-format --dry-run --Werror
	$(BIN)/codespell $$(git ls-files)

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' | xargs $(BIN)/clang-format -i

doctor: $(VENV)/.bench $(VENV)/.native
	$(BIN)/kdbench doctor

clean:
	rm -rf $(VENV) .asv native/build native/build-* build
