# Every target sets up $(VENV) first, once per change of pyproject.toml.
PYTHON ?= python3
VENV ?= .venv
# The CPU build where pip's configuration does not offer one:
#   make test TORCH='torch==2.13.0 --index-url URL'
TORCH ?= torch==2.13.0
# The oldest PyTorch that pyproject.toml promises, and the Triton that goes with it.  What PyPI has of
# it for Linux brings CUDA's libraries along (2.7 GB to download, 5 GB on the disk), of which it loads
# nearly all at its import, GPU or not.  A CPU build from elsewhere is far smaller:
#   make test-oldest TORCH_OLDEST='torch==2.11.0 --index-url URL'
TORCH_OLDEST ?= torch==2.11.0
TRITON_OLDEST ?= triton==3.6.0; platform_system == 'Linux' and platform_machine == 'x86_64'
OLDEST ?= .venv-oldest
# The basics, every stage's text, some models, and Triton both ways: interpreted, and built for a GPU.
OLDEST_TESTS := tests/test_text.py tests/lowering/test_devices.py tests/e2e/test_basics.py \
	tests/e2e/test_models.py tests/e2e/test_call_overhead.py tests/host/test_host_native.py \
	tests/cache/test_code.py \
	tests/triton/test_ahead_of_time.py tests/triton/test_cuda_traces.py tests/triton/test_executor_launches.py \
	$(addprefix tests/triton/test_interpreted.py::,test_corpus test_gradients test_dynamic_sizes)
PYTEST_ARGS ?=
# Tests start a hundred processes that import Litz: each would compile it anew where a shell says so.
export PYTHONDONTWRITEBYTECODE :=
# Each of two workers begins with one half of the tests, whose neighbours share what they build, and
# takes over half of what the other has left.
TWO := -n 2 -q --dist worksteal
# Environments of their own, outside of the one that tests run in.
LIBRARIES ?= .venv-libraries
SITE ?= .venv-site
BROWSER ?= .venv-browser
# Debian's packages that some tests use where they are there.
PACKAGES ?= chromium fonts-dejavu-core zsh fish
SOON := -o Acquire::Retries=0 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20
LIBRARIES_ARGS ?=
BENCH_ARGS ?=
FUZZ_ARGS ?= --count 400

BIN := $(VENV)/bin
STAMP := $(VENV)/.litz-installed
OLDEST_STAMP := $(OLDEST)/.litz-installed
# What installing builds; in a checkout it is built again as its sources change.
NATIVE := $(VENV)/.litz-native

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-long test-oldest examples libraries wheels packages browser tools types site replay size sweep fuzz lint format bench clean

help:
	@echo 'make demo    compile a small transformer and check it against eager'
	@echo 'make test    the tests that take a second or less each: eight minutes on two cores'
	@echo 'make test-long  the others, but those that take minutes'
	@echo 'make test-oldest  a choice of them with the oldest PyTorch (downloads 2.7 GB once)'
	@echo 'make examples  the programs in examples/notebooks'
	@echo 'make libraries  examples with accelerate, lightning, diffusers, ... at their newest versions'
	@echo 'make wheels  a wheel, alone in every Python from 3.10 to 3.14 on the machine'
	@echo 'make packages  a browser and shells that some tests use, by apt-get (as root)'
	@echo 'make browser  the page of a report in Chromium'
	@echo 'make tools   what the next two need, from PyPI'
	@echo 'make types   the public names, checked by pyright'
	@echo 'make site    these docs as pages in build/site'
	@echo 'make replay  kernels launched and bytes moved by a corpus of graphs, as expected'
	@echo '             (REPLAY_ARGS=HEAD~1: what differs from a revision)'
	@echo 'make size    lines of code of every room, beside their budgets'
	@echo 'make sweep   the slow tests'
	@echo 'make fuzz    random programs against eager (FUZZ_ARGS="--count 2000 --seed 7")'
	@echo 'make lint    ruff, mypy --strict, import contracts'
	@echo 'make format  let ruff rewrite what it can'
	@echo 'make bench   the CPU benchmark against eager and inductor (BENCH_ARGS=--quick)'

setup: $(NATIVE)

$(BIN)/pip:
	$(PYTHON) -m venv $(VENV)

# torch first and by itself: which build of it to take is the one choice that depends on the machine.
$(STAMP): pyproject.toml | $(BIN)/pip
	$(BIN)/python -m pip install $(TORCH)
	$(BIN)/python -m pip install -e '.[dev]'
	@touch $@

$(NATIVE): $(STAMP) hatch_build.py src/litz/runtime/shipped.py $(wildcard src/litz/runtime/csrc/*) src/litz/native/plan.h
	-$(BIN)/python hatch_build.py
	@touch $@

$(OLDEST)/bin/pip:
	$(PYTHON) -m venv $(OLDEST)

# Triton 3.6 interprets loops of unknown length by int(array of one element), which NumPy 2.4 refuses.
$(OLDEST_STAMP): pyproject.toml | $(OLDEST)/bin/pip
	$(OLDEST)/bin/python -m pip install $(TORCH_OLDEST)
	$(OLDEST)/bin/python -m pip install "$(TRITON_OLDEST)" 'numpy<2.4' -e '.[test]'
	@touch $@

demo: $(NATIVE)
	$(BIN)/python -m litz.tools.demo

test: $(NATIVE)
	$(BIN)/python -m pytest $(TWO) -m 'not slow and not long' $(PYTEST_ARGS)

test-long: $(NATIVE)
	$(BIN)/python -m pytest $(TWO) -m 'long and not slow' $(PYTEST_ARGS)

test-oldest: $(OLDEST_STAMP)
	-$(OLDEST)/bin/python hatch_build.py
	$(OLDEST)/bin/python -m pytest $(TWO) -m 'not slow' $(OLDEST_TESTS) $(PYTEST_ARGS)

$(LIBRARIES)/.installed: pyproject.toml examples/libraries/requirements.txt
	$(PYTHON) -m venv $(LIBRARIES)
	$(LIBRARIES)/bin/python -m pip install $(TORCH)
	$(LIBRARIES)/bin/python -m pip install -r examples/libraries/requirements.txt -e .
	@touch $@

libraries: $(LIBRARIES)/.installed
	$(LIBRARIES)/bin/python -m tests.examples examples/libraries $(LIBRARIES_ARGS)

examples: $(NATIVE)
	$(BIN)/python -m tests.examples examples/notebooks

wheels: $(NATIVE)
	$(BIN)/python -m tests.wheels

$(SITE)/.installed: docs/requirements.txt
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install -r docs/requirements.txt
	$(SITE)/bin/pyright --version  # which fetches Node.js where there is none
	@touch $@

tools: $(SITE)/.installed

packages:
	(for x in chromium zsh fish; do command -v $$x || exit 1; done) || { apt-get $(SOON) update && \
	  DEBIAN_FRONTEND=noninteractive apt-get $(SOON) install -y --no-install-recommends $(PACKAGES); }

# Beside the environment that tests run in, and no part of it.
$(BROWSER)/.installed: | $(STAMP)
	$(BIN)/python -m pip install --target $(BROWSER) playwright axe-playwright-python pillow
	@touch $@

browser: $(NATIVE) $(BROWSER)/.installed
	PYTHONPATH=$(BROWSER) $(BIN)/python -m pytest -q -rs tests/report/test_browser.py $(PYTEST_ARGS)

types: $(STAMP) $(SITE)/.installed
	$(SITE)/bin/pyright --pythonpath $(BIN)/python

site: $(STAMP) $(SITE)/.installed
	$(BIN)/python -m tests.pages --check
	$(SITE)/bin/mkdocs build --strict --quiet --site-dir build/site

replay: $(NATIVE)
	$(BIN)/python -m tests.replay $(or $(REPLAY_ARGS),--check)

size: $(STAMP)
	$(BIN)/python -m tests.size --check

sweep: $(NATIVE)
	$(BIN)/python -m pytest $(TWO) -m slow $(PYTEST_ARGS)

fuzz: $(NATIVE)
	$(BIN)/python -m tests.fuzz $(FUZZ_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(NATIVE)
	$(BIN)/python -m benchmarks.cpu $(BENCH_ARGS)

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
