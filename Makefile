# SPDX-License-Identifier: Apache-2.0
# make demo   train a Flax model on 4 processes x 2 CPU devices, with one changed line
# make test   pytest, then the native tests under TSan and under ASan+UBSan
# make lint   ruff, pyright, clang-format, the architecture test, the stub check
# make gpu-check   our GPU kernels, on a machine that has nvcc and a GPU
# make bench  our collectives beside XLA's, in one process and in four
# PYTHON chooses the interpreter, JAX the jax to install, VENV where all of it goes;
# CUDA=OFF leaves the module for GPUs out where there is nvcc, which takes minutes.
PYTHON ?= python3
JAX ?= jax>=0.10
VENV ?= .venv
CUDA ?= AUTO
# Set to 1 where missing native tests are a failure and not a remark (as in CI).
REQUIRE_NATIVE_TESTS ?= 0
# Most tests wait for processes that they start; a file stays with one worker.
PYTEST_ARGS ?= -n 2 --dist loadfile

BIN := $(abspath $(VENV))/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
export PATH := $(BIN):$(PATH)
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc)
export CTEST_OUTPUT_ON_FAILURE := 1

CC_SOURCES := $(shell find xla_ffi benchmarks -name '*.cc' -o -name '*.cu' -o -name '*.h')
PACKAGE := pyproject.toml $(shell find xla_ffi smddp_jax -name '*.cc' -o -name '*.cu' -o -name '*.h' \
  -o -name 'CMake*' -o -name '*.cmake' -o -name '*.py')
# What ships is built for the Python tests; make native-release runs the native ones on it.
NATIVE_PRESETS := tsan asan

.PHONY: demo test pytest native gpu-build gpu-code gpu-check lint format bench results \
  stub install clean FORCE
.DELETE_ON_ERROR:

demo: install
	$(BIN)/smddp-jax run -n 4 --devices-per-process 2 examples/digits.py

test: pytest native

pytest: install $(VENV)/.dev
	$(BIN)/pytest $(PYTEST_ARGS)

native: $(VENV)/.environment
	@if printf '#include <gtest/gtest.h>\n' | $${CXX:-c++} -E -x c++ - >/dev/null 2>&1; then \
	  $(MAKE) --no-print-directory $(NATIVE_PRESETS:%=native-%); \
	else \
	  echo '*********************************************************************' >&2; \
	  echo '** THE NATIVE TESTS WERE NOT RUN: GoogleTest was not found.         **' >&2; \
	  echo '** Debian, Ubuntu: apt-get install libgtest-dev, then make native.  **' >&2; \
	  echo '*********************************************************************' >&2; \
	  test '$(REQUIRE_NATIVE_TESTS)' != 1; \
	fi

native-%: $(VENV)/.environment FORCE
	@mkdir -p build
	cmake -S xla_ffi --preset $* >build/native-$*.log || { cat build/native-$*.log; exit 1; }
	cmake --build build/$*
	ctest --test-dir build/$* --no-tests=error

# The kernels for GPUs: built, which needs nvcc and no GPU. GPU_BUILD may also be the
# folder of an install with CUDA=AUTO, which has them.
GPU_BUILD ?= build/cuda
gpu-build:
	test -e $(GPU_BUILD)/build.ninja || cmake -S xla_ffi --preset cuda
	cmake --build $(GPU_BUILD) --target gpu_check

# Looks at the code that nvcc made; cuobjdump comes from PyPI.
gpu-code: gpu-build $(VENV)/.environment
	$(PIP) install --group gpu
	$(BIN)/python xla_ffi/tests/cuda/check_code.py $(GPU_BUILD)/device/libsmddp_device_kernels.a

# Runs them, on a GPU, then all of it through JAX: PYTHON's if that one has GPUs, else one
# from PyPI in GPU_FOLDER.
GPU_FOLDER ?= $(abspath build/gpu)
gpu-check: gpu-build
	xla_ffi/tests/cuda/check_all.sh $(abspath $(GPU_BUILD)/tests/cuda/gpu_check) \
	  "$$(command -v $(PYTHON))" $(GPU_FOLDER)

lint: install $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $(CC_SOURCES)
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/pytest -q tests/test_architecture.py tests/test_stub.py

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CC_SOURCES)

bench: install
	$(BIN)/smddp-jax bench --form both
	$(BIN)/smddp-jax bench --form both --processes 4

# Every table of benchmarks/RESULTS.md, on a machine that does nothing else.
results: install
	$(BIN)/python benchmarks/run_all.py benchmarks/RESULTS.md

# The committed stubs of the native modules; tests/test_stub.py holds them to this output.
stub: install
	$(BIN)/python -m nanobind.stubgen -q -m smddp_jax._core -o smddp_jax/_core.pyi
	if $(BIN)/python -c 'import smddp_jax._cuda'; then \
	  $(BIN)/python -m nanobind.stubgen -q -m smddp_jax._cuda -o smddp_jax/_cuda.pyi; fi

install: $(VENV)/.installed

# Editable, so that the tests see the tree's Python files and the tree can be the
# working directory without hiding the installed native module.
$(VENV)/.installed: $(VENV)/.environment $(PACKAGE)
	$(PIP) install --no-build-isolation --no-deps -C cmake.define.SMDDP_WERROR=ON \
	  -C cmake.define.SMDDP_CUDA=$(CUDA) -e .
	@touch $@

$(VENV)/.environment: $(VENV)/.request pyproject.toml
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) install -U 'pip>=25.1'
	$(PIP) install '$(JAX)' --group build --group examples
	@echo '$(PYTHON) $(JAX)' >$(VENV)/.request
	@mkdir -p build
	@touch $@

$(VENV)/.dev: $(VENV)/.environment
	$(PIP) install '$(JAX)' --group dev
	@touch $@

# Changes only when another interpreter or another jax is asked for.
$(VENV)/.request: FORCE
	@mkdir -p $(VENV)
	@echo '$(PYTHON) $(JAX)' | cmp -s - $@ || echo '$(PYTHON) $(JAX)' >$@

clean:
	rm -rf build .venv .venv-*
