# Every target makes what it needs: a virtual environment from the pinned requirements, then the rest.
# Another interpreter: make PYTHON=python3.12; an environment that is there already: make VENV=path.

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
# Each has services of its own (about 1.5 GB), and a test waits more often than it computes. 0: without workers.
WORKERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); echo $$((n < 2 ? 2 : n > 4 ? 4 : n)))

BIN := $(VENV)/bin
STAMP := $(VENV)/.headrace-stamp
# A worker that was started anew would begin with the very test that ended its predecessor.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# Tests start many processes: each would compile every import anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv requirements demo test test-full lint format bench bench-state bench-nexmark clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

venv: $(STAMP)  ## make the virtual environment

$(STAMP): pyproject.toml requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=..." if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --no-compile --require-hashes -r requirements.txt
	$(PIP) install --no-deps -e .
	@touch $@

requirements:  ## pin the requirements anew, after a change of pyproject.toml (needs uv)
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --extra dev \
		--no-emit-index-url --no-annotate --no-header pyproject.toml --output-file requirements.txt

demo: $(STAMP)  ## real flights, from end to end
	$(BIN)/headrace demo

test: $(STAMP)  ## the whole suite, on real services that it starts itself
	$(PYTEST) -m "not full" $(PYTEST_ARGS)

test-full: $(STAMP)  ## the suite with the long form of the property tests
	$(PYTEST) -o faulthandler_timeout=4000 $(PYTEST_ARGS)

lint: $(STAMP)  ## style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(STAMP)  ## mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## measure against the targets
	$(BIN)/python -m benchmarks

bench-nexmark: $(STAMP)  ## the queries of Nexmark: checked, then measured
	$(BIN)/python -m benchmarks.nexmark

bench-state: $(STAMP)  ## keyed state of 10 and 20 million keys
	$(BIN)/python -m benchmarks.state

clean:  ## stop the dev stack and remove its data, caches and builds; the environment stays
	test ! -d .headrace/dev || $(BIN)/python -m infra.dev down --delete --state-dir .headrace/dev
	rm -rf .headrace dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
