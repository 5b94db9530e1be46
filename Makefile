# Needs Linux, Python 3.11 or newer with venv, and a C++17 compiler; everything else goes into .venv.
PYTHON ?= python3
# Any requirement that pip understands: TORCH=torch==2.12.1, TORCH=./a-wheel.whl.
TORCH ?= torch==2.13.0

VENV := .venv
PROGRAMS := .venv-programs
TORCH_IS = $(PROGRAMS)/bin/python -c 'import torch; print("torch==" + torch.__version__)'
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
NATIVE := $(shell find csrc -name '*.cpp' -o -name '*.h' -o -name CMakeLists.txt)
HOOKS := $(wildcard umadvise/_hooks/*.cpp umadvise/_hooks/*.h)
FORMATTED := $(filter %.cpp %.h,$(NATIVE) $(HOOKS))
CLANG_FORMAT := clang-format --style=file:csrc/.clang-format
TIDIED := $(filter-out csrc/tests/%,$(filter %.cpp,$(NATIVE)))
CONFIGURE = cmake -S csrc -G Ninja -DUMADVISE_TESTS=ON $$(python csrc/tests/cuda_headers.py)
# Ninja has threads of its own, and cannot read what `make --jobs` tells it.
BUILD = MAKEFLAGS= cmake --build
# Two processes: a file's tests stay together. More of them need 3 GB each.
PYTEST = pytest -q --numprocesses 2 --dist loadfile
# What ThreadSanitizer looks at in CI; THREADED= is everything.
THREADED ?= emulated_memory emulated_streams engine_raw_access engine_threads stream_wait heap
# Prints requirements of pyproject.toml: an expression of `needed` and, by group, `optional`.
REQUIRED = $(PYTHON) -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	needed, optional = project["dependencies"], project["optional-dependencies"]; print(*$(1))'
EMPTY :=
REGEX = ^($(subst $(EMPTY) ,|,$(strip $(THREADED))))$$

# OpenMP threads that spin at barriers spin against each other where tests run side by side.
test test-full test-programs: export OMP_WAIT_POLICY = passive

.PHONY: demo test test-full test-programs check lint tidy format ctest ctest-sanitized ctest-threads pytest-sanitized clean

demo: $(VENV)/.installed
	python tools/demo.py

test: $(VENV)/.installed ctest
	$(PYTEST)

test-full: export UMADVISE_FULL = 1
test-full: $(VENV)/.installed ctest-sanitized ctest
	$(MAKE) ctest-threads THREADED=
	$(PYTEST)

# Other people's programs, with and without umadvise; SHORT=1 is what CI runs. The long run writes the table of docs/programs.md.
test-programs: $(VENV)/.installed $(PROGRAMS)/.installed
	$(PYTEST) --dist worksteal tests/programs
	$(if $(SHORT),,python tests/programs/table.py)

check: lint ctest-sanitized ctest-threads pytest-sanitized tidy

lint: $(VENV)/.lint
	ruff check
	ruff format --check
	mypy
	$(CLANG_FORMAT) --dry-run -Werror $(FORMATTED)

# The compile commands are those of the sanitized build.
tidy: $(VENV)/.lint ctest-sanitized
	printf '%s\n' $(TIDIED) | xargs -n 1 -P 2 clang-tidy -p build/sanitized --quiet

format: $(VENV)/.lint
	ruff check --fix
	ruff format
	$(CLANG_FORMAT) -i $(FORMATTED)

ctest: $(VENV)/.installed
	$(CONFIGURE) -B build/test
	$(BUILD) build/test
	ctest --test-dir build/test --parallel 2 --output-on-failure

ctest-sanitized: $(VENV)/.installed
	$(CONFIGURE) -B build/sanitized -DUMADVISE_SANITIZE=address,undefined
	$(BUILD) build/sanitized
	ctest --test-dir build/sanitized --parallel 2 --output-on-failure

ctest-threads: $(VENV)/.installed
	$(CONFIGURE) -B build/threads -DUMADVISE_SANITIZE=thread
	$(BUILD) build/threads $(if $(THREADED),--target $(addprefix test_,$(THREADED)))
	ctest --test-dir build/threads --output-on-failure $(if $(THREADED),--tests-regex '$(REGEX)')

# Training under AddressSanitizer: a CNN before, inside and after umadvise, ten times over. Python itself never frees all.
pytest-sanitized: ctest-sanitized
	ASAN_OPTIONS=detect_leaks=0 UMADVISE_LIBRARY=build/sanitized/libumadvise.so \
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	python -m pytest -q tests/integration/test_bit_identity.py::test_before_inside_and_after

# An editable install: Python files are used where they stand, the native core is built again when its sources change.
$(VENV)/.installed: pyproject.toml $(NATIVE)
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	python -m pip install '$(TORCH)'
	python -m pip install --editable '.[demo,test]'
	touch $@

$(VENV)/.lint: $(VENV)/.installed
	$(call REQUIRED,optional["lint"]) | xargs python -m pip install
	touch $@

# Apart from the others' environment, in which no library of the programs may be missed. None of them may bring another torch.
$(PROGRAMS)/.installed: pyproject.toml
	test -x $(PROGRAMS)/bin/pip || $(PYTHON) -m venv $(PROGRAMS)
	$(PROGRAMS)/bin/python -m pip install '$(TORCH)'
	$(TORCH_IS) > $(PROGRAMS)/torch.txt
	$(call REQUIRED,needed + optional["programs"]) \
	| xargs $(PROGRAMS)/bin/python -m pip install --no-compile --constraint $(PROGRAMS)/torch.txt
	$(call REQUIRED,optional["programs-bare"]) \
	| xargs $(PROGRAMS)/bin/python -m pip install --no-compile --no-deps --upgrade --target $(PROGRAMS)/bare
	$(TORCH_IS) | diff $(PROGRAMS)/torch.txt -
	touch $@

clean:
	rm -rf build $(VENV) $(PROGRAMS)
