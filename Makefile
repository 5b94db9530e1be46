# Needs Linux, Python 3.11 or newer with venv, and a C++17 compiler; everything else goes into .venv.
PYTHON ?= python3
# Any requirement that pip understands: TORCH=torch==2.12.1, TORCH=./a-wheel.whl.
TORCH ?= torch==2.13.0

VENV := .venv
PROGRAMS := .venv-programs
DOCS := .venv-docs
TORCH_IS = $(PROGRAMS)/bin/python -c 'import torch; print("torch==" + torch.__version__)'
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
NATIVE := $(shell find csrc -name '*.cpp' -o -name '*.h' -o -name CMakeLists.txt)
HOOKS := $(wildcard umadvise/_hooks/*.cpp umadvise/_hooks/*.h)
FORMATTED := $(filter %.cpp %.h,$(NATIVE) $(HOOKS))
CLANG_FORMAT := clang-format --style=file:csrc/.clang-format
# How far clang's analyzer follows a function: a fifth of its own bound, in a third of the time. `make test-full` goes all the way.
ANALYZED_NODES ?= 40000
CONFIGURE = cmake -S csrc -G Ninja -DUMADVISE_TESTS=ON $$(python csrc/tests/cuda_headers.py)
# One build: the core that is installed, its tests, and what stands in for a GPU.
BUILD_FOLDER := build/native
# Ninja has threads of its own, and cannot read what `make --jobs` tells it.
BUILD = MAKEFLAGS= cmake --build
# Two processes: a file's tests stay together. More of them need 3 GB each. Not in the order of how many
# tests a file has: files of few are the slowest, and one process would wait for the other.
PYTEST = pytest -q --durations=40 --durations-min=2 --numprocesses 2 --max-worker-restart 0 --dist loadfile --no-loadscope-reorder
BROWSER := .venv-browser
WHEEL := .venv-wheel
# Where test-wheel trains with torch too: $(TORCH) may be gigabytes in each Python.
TORCH_ON ?= $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
CHROMIUM ?= $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)
# What ThreadSanitizer looks at in CI; THREADED= is everything.
THREADED ?= emulated_memory emulated_streams engine_raw_access engine_threads engine_stream_wait memory_heap memory_helper \
	memory_host_copies memory_ranges
# Prints requirements of pyproject.toml: an expression of `needed` and, by group, `optional`.
REQUIRED = $(PYTHON) -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	needed, optional = project["dependencies"], project["optional-dependencies"]; print(*$(1))'
# Each file is compiled when it is first imported: of torch most never are.
INSTALL := -m pip install --no-compile
EMPTY :=
REGEX = ^($(subst $(EMPTY) ,|,$(strip $(THREADED))))$$

# torch's CUDA build, in an environment of its own, on stand-ins for a GPU: tests/torch_cuda/on_stand_ins.py.
TORCH_CUDA ?= torch==2.11.0
CUDA_VENV := .venv-torch-cuda
CUDA_PYTHON := $(CUDA_VENV)/bin/python
ON_STAND_INS = $(CUDA_PYTHON) tests/torch_cuda/on_stand_ins.py -m
TORCH_FOLDER = from importlib.util import find_spec; print(*find_spec('torch').submodule_search_locations)
FIRST_USE = import torch; from umadvise._hooks.loader import compiled_library; compiled_library(); \
	assert (torch.ones(2, device='cuda') + 1).tolist() == [2, 2]
# SHORT=1 is what CI has time for.
SHORT ?=

# A folder that outlives a checkout: what is compiled (by ccache, if it is installed) and analysed is kept there by content.
ifdef UMADVISE_CI_CACHE
export CCACHE_DIR := $(abspath $(UMADVISE_CI_CACHE))/ccache
export CCACHE_SLOPPINESS := pch_defines,time_macros
export CMAKE_CXX_COMPILER_LAUNCHER := $(shell command -v ccache)
export MYPY_CACHE_DIR := $(abspath $(UMADVISE_CI_CACHE))/mypy
endif

# OpenMP threads that spin at barriers spin against each other where tests run side by side.
test test-full coverage test-programs: export OMP_WAIT_POLICY = passive

.PHONY: demo ratios test test-full coverage coverage-core test-torch-cuda test-programs test-browser wheel test-wheel check lint tidy format docs ctest ctest-sanitized ctest-threads pytest-sanitized clean

demo: $(VENV)/.installed
	python tools/demo.py

# What the quick benchmarks say now beside tools/ratios.json. It never fails: machines are noisy.
ratios: $(VENV)/.installed
	python tools/ratios.py

test: $(VENV)/.installed ctest
	$(PYTEST)

test-full: export UMADVISE_FULL = 1
test-full: $(VENV)/.installed ctest-sanitized ctest
	$(MAKE) tidy ANALYZED_NODES=225000
	$(MAKE) ctest-threads THREADED=
	$(PYTEST)
	$(MAKE) test-torch-cuda test-programs

# Which lines of the core the C++ tests run, and which of Python the Python tests. Both have a floor in pyproject.toml.
# Python 3.12 and newer count lines at hardly any cost; before that the tests take half as long again.
coverage: export COVERAGE_CORE = $(shell python -c 'import sys; print("sysmon" if sys.version_info >= (3, 12) else "ctrace")')
coverage: coverage-core
	$(PYTEST) --cov

# Counted in the sanitized tests, from nothing: what a build before left of files that have moved since would end gcovr.
coverage-core: $(VENV)/.installed
	rm -rf build/sanitized
	$(MAKE) ctest-sanitized
	gcovr build/sanitized

test-torch-cuda: export UMADVISE_SHORT = $(SHORT)
test-torch-cuda: $(CUDA_VENV)/.installed
	$(ON_STAND_INS) $(PYTEST) tests/torch_cuda
	STAND_IN_ASYNC=1 STAND_IN_DELAY_US=200 $(ON_STAND_INS) $(PYTEST) -m gpu tests/gpu
	$(if $(SHORT),,$(ON_STAND_INS) $(PYTEST) -m gpu tests/gpu)

# Other people's programs, with and without umadvise; SHORT=1 is what CI runs. The long run writes the table of docs/programs.md.
test-programs: $(VENV)/.installed $(PROGRAMS)/.installed
	$(PYTEST) --dist worksteal tests/programs
	$(if $(SHORT),,PYTHONPATH=tests/integration python tests/programs/table.py)

# The HTML report in Chromium (`apt-get install chromium`, or CHROMIUM=/path), with axe-core, in an environment of its own.
test-browser: $(BROWSER)/.installed $(VENV)/.installed
	test -x "$(CHROMIUM)" || { echo "no Chromium here: apt-get install chromium, or CHROMIUM=/path/of/one" >&2; exit 1; }
	OMP_WAIT_POLICY=passive python tests/browser/reports.py build/browser
	python tools/benchmark_report.py --html build/browser/long.html
	CHROMIUM=$(CHROMIUM) REPORTS=$(CURDIR)/build/browser $(BROWSER)/bin/python -m pytest -q -p no:cacheprovider --confcutdir tests/browser tests/browser

# dist/umadvise-*.whl, with the tag of the oldest Linux that has what the core needs: auditwheel works it out.
wheel: $(WHEEL)/.installed
	rm -rf build/wheel-untagged dist/umadvise-*.whl
	$(WHEEL)/bin/python -m pip wheel --no-deps --config-settings=build-dir=build/wheel \
		--config-settings=cmake.define.UMADVISE_STATIC_LIBSTDCXX=ON --wheel-dir build/wheel-untagged .
	PATH="$(CURDIR)/$(WHEEL)/bin:$$PATH" auditwheel repair --wheel-dir dist build/wheel-untagged/umadvise-*.whl

# In an empty environment of each Python from 3.11 to 3.14 that is here.
test-wheel: wheel
	$(PYTHON) tests/wheel/fresh.py dist/umadvise-*.whl --torch '$(TORCH)' --torch-on $(TORCH_ON)

check: lint ctest-sanitized ctest-threads pytest-sanitized tidy

lint: $(VENV)/.lint
	ruff check
	ruff format --check
	mypy
	python tools/docstring_lint.py
	python tools/comment_lint.py
	codespell
	$(CLANG_FORMAT) --dry-run -Werror $(FORMATTED)

# The sources in the units of the sanitized build: to clang they are headers, which the analyzer is asked to look into.
tidy: $(VENV)/.lint ctest-sanitized
	python tools/tidy.py build/sanitized csrc/.clang-tidy \
		$(addprefix --extra-arg=,-Xclang -analyzer-opt-analyze-headers -Xclang -analyzer-config -Xclang max-nodes=$(ANALYZED_NODES))

format: $(VENV)/.lint
	ruff check --fix
	ruff format
	$(CLANG_FORMAT) -i $(FORMATTED)

# The site of docs/, in build/site. No link may lead nowhere, and nothing in it may ask another machine for anything.
docs: $(DOCS)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/python -m mkdocs build

# Tests that need the optimized core: csrc/tests/CMakeLists.txt. `make ctest-sanitized` runs all.
ctest: $(VENV)/.installed
	$(CONFIGURE) -B $(BUILD_FOLDER)
	$(BUILD) $(BUILD_FOLDER) --target umadvise optimized_tests
	ctest --test-dir $(BUILD_FOLDER) --parallel 2 --output-on-failure --label-regex optimized

ctest-sanitized: $(VENV)/.installed
	$(CONFIGURE) -B build/sanitized -DUMADVISE_SANITIZE=address,undefined -DUMADVISE_COVERAGE=ON
	$(BUILD) build/sanitized
	ctest --test-dir build/sanitized --parallel 2 --output-on-failure

ctest-threads: $(VENV)/.installed
	$(CONFIGURE) -B build/threads -DUMADVISE_SANITIZE=thread
	$(BUILD) build/threads $(if $(THREADED),--target $(addprefix test_,$(THREADED)))
	ctest --test-dir build/threads --output-on-failure $(if $(THREADED),--tests-regex '$(REGEX)')

# Training under AddressSanitizer: a CNN before, inside and after umadvise, ten times over. Python itself never frees all.
pytest-sanitized: ctest-sanitized
	GCOV_PREFIX=$(CURDIR)/build/not-counted ASAN_OPTIONS=detect_leaks=0 UMADVISE_LIBRARY=build/sanitized/libumadvise.so \
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	python -m pytest -q tests/integration/test_bit_identity.py::test_before_inside_and_after

# An editable install: Python files are used where they stand, the native core is built again when its sources change.
# Without isolation CMake is the same one each time, and builds only what has changed.
$(VENV)/.installed: pyproject.toml $(NATIVE)
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	python $(INSTALL) '$(TORCH)'
	$(call REQUIRED,optional["test"]) | xargs python $(INSTALL)
	MAKEFLAGS= python $(INSTALL) --no-build-isolation --config-settings=build-dir=$(BUILD_FOLDER) --config-settings=build.targets=umadvise \
		--editable '.[demo,test]'
	touch $@

# The core and the stand-ins are that build's. The extension is compiled here, and not by the first test that needs it.
$(CUDA_VENV)/.installed: pyproject.toml tests/torch_cuda/backend/pyproject.toml $(VENV)/.installed
	test -x $(CUDA_VENV)/bin/pip || $(PYTHON) -m venv $(CUDA_VENV)
	$(CUDA_PYTHON) $(INSTALL) '$(TORCH_CUDA)'
	$(CONFIGURE) -B $(BUILD_FOLDER) -DUMADVISE_TORCH=$$($(CUDA_PYTHON) -c "$(TORCH_FOLDER)")
	$(BUILD) $(BUILD_FOLDER) --target umadvise emulated_libcuda fake_libcudart cuda_kernels waits
	$(CUDA_PYTHON) $(INSTALL) --config-settings=wheel.cmake=false --editable '.[test]'
	$(CUDA_PYTHON) $(INSTALL) tests/torch_cuda/backend
	STAND_IN_MIB=64 $(CUDA_PYTHON) tests/torch_cuda/on_stand_ins.py -c "$(FIRST_USE)"
	$(CUDA_PYTHON) -m pip uninstall --yes triton  # what it compiles asks a driver for more than the stand-ins have
	touch $@

$(VENV)/.lint: $(VENV)/.installed
	$(call REQUIRED,optional["lint"]) | xargs python $(INSTALL)
	touch $@

# Apart from the others' environment, in which no library of the programs may be missed. None of them may bring another torch.
$(PROGRAMS)/.installed: pyproject.toml
	test -x $(PROGRAMS)/bin/pip || $(PYTHON) -m venv $(PROGRAMS)
	$(PROGRAMS)/bin/python $(INSTALL) '$(TORCH)'
	$(TORCH_IS) > $(PROGRAMS)/torch.txt
	$(call REQUIRED,needed + optional["programs"]) \
	| xargs $(PROGRAMS)/bin/python $(INSTALL) --constraint $(PROGRAMS)/torch.txt
	$(call REQUIRED,optional["programs-bare"]) \
	| xargs $(PROGRAMS)/bin/python $(INSTALL) --no-deps --upgrade --target $(PROGRAMS)/bare
	$(TORCH_IS) | diff $(PROGRAMS)/torch.txt -
	touch $@

# Neither torch nor umadvise: it only drives a browser.
$(BROWSER)/.installed: pyproject.toml
	test -x $(BROWSER)/bin/pip || $(PYTHON) -m venv $(BROWSER)
	$(call REQUIRED,optional["browser"]) | xargs $(BROWSER)/bin/python $(INSTALL)
	touch $@

$(WHEEL)/.installed: pyproject.toml
	test -x $(WHEEL)/bin/pip || $(PYTHON) -m venv $(WHEEL)
	$(call REQUIRED,optional["wheel"]) | xargs $(WHEEL)/bin/python $(INSTALL)
	touch $@

# Without torch and the core: descriptions are read out of the sources.
$(DOCS)/.installed: pyproject.toml
	test -x $(DOCS)/bin/pip || $(PYTHON) -m venv $(DOCS)
	$(call REQUIRED,optional["docs"]) | xargs $(DOCS)/bin/python $(INSTALL)
	touch $@

clean:
	rm -rf build dist $(VENV) $(CUDA_VENV) $(PROGRAMS) $(BROWSER) $(WHEEL) $(DOCS)
