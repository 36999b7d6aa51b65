# Every target sets up $(VENV) first, once per change of pyproject.toml.
PYTHON ?= python3
VENV ?= .venv
# The CPU build where pip's configuration does not offer one:
#   make test TORCH='torch==2.13.0 --index-url URL'
TORCH ?= torch==2.13.0
PYTEST_ARGS ?=
BENCH_ARGS ?=
FUZZ_ARGS ?= --count 400

BIN := $(VENV)/bin
STAMP := $(VENV)/.litz-installed

.DEFAULT_GOAL := help
.PHONY: help setup demo test sweep fuzz lint format bench clean

help:
	@echo 'make demo    compile a small transformer and check it against eager'
	@echo 'make test    the tests (without the slow ones)'
	@echo 'make sweep   the slow tests'
	@echo 'make fuzz    random programs against eager (FUZZ_ARGS="--count 2000 --seed 7")'
	@echo 'make lint    ruff, mypy --strict, import contracts'
	@echo 'make format  let ruff rewrite what it can'
	@echo 'make bench   the CPU benchmark against eager and inductor (BENCH_ARGS=--quick)'

setup: $(STAMP)

$(BIN)/pip:
	$(PYTHON) -m venv $(VENV)

# torch first and by itself: which build of it to take is the one choice that depends on the machine.
$(STAMP): pyproject.toml | $(BIN)/pip
	$(BIN)/python -m pip install $(TORCH)
	$(BIN)/python -m pip install -e '.[dev]'
	@touch $@

demo: $(STAMP)
	$(BIN)/python -m litz.tools.demo

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 -q -m 'not slow' $(PYTEST_ARGS)

sweep: $(STAMP)
	$(BIN)/python -m pytest -n 2 -q -m slow $(PYTEST_ARGS)

fuzz: $(STAMP)
	$(BIN)/python -m tests.fuzz $(FUZZ_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/python -m benchmarks.cpu $(BENCH_ARGS)

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
