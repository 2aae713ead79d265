# deepinfer: `make help` lists the targets. PIP_ARGS goes to pip, for example to name an index with CPU builds of torch.
PYTHON ?= python3
PIP_ARGS ?=
ARGS ?=
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.deepinfer-installed
export OMP_NUM_THREADS ?= 1
unexport PYTHONDONTWRITEBYTECODE # every child would compile every module again

.DEFAULT_GOAL := help
.PHONY: help setup run lint test test-full

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

setup: $(STAMP) ## make .venv and install everything that running and testing need

$(STAMP): pyproject.toml hatch_build.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "deepinfer needs Python 3.11 or newer, $(PYTHON) is older; type: make setup PYTHON=python3.12"; exit 4; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -e '.[dev]'
	@touch $(STAMP)

run: setup ## the main job: python -m deepinfer (ARGS="prompt=…" for more)
	@$(BIN)/python -m deepinfer $(ARGS)

lint: setup ## format, lint, types, and who may import whom
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

test: lint ## everything CI checks, with a seeded sample of the long suites (under 20 minutes on 2 cores)
	$(BIN)/python -m pytest -n $(WORKERS)

test-full: lint ## the same with the long suites whole
	$(BIN)/python -m pytest -n $(WORKERS) --full
