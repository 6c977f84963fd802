# Everything a developer or a CI job runs. `make` alone lists the targets.

.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS := embedded,dev,bench

# The first of these that is Python 3.11 or later with a working venv. Override: make PYTHON=/path/to/python
PYTHON_CANDIDATES := python3.11 python3 python3.12 python3.13
USABLE := import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(firstword $(foreach p,$(PYTHON_CANDIDATES),$(shell $(p) -c '$(USABLE)' >/dev/null 2>&1 && echo $(p))))

# The stamp holds the checkout's path: an environment that was moved points at the old place.
INSTALLED_FOR := $(shell cat $(STAMP) 2>/dev/null)
ifneq ($(INSTALLED_FOR),$(CURDIR))
.PHONY: $(STAMP)
endif

.PHONY: help
help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  make run ONCE=1 answers one request and stops; GOVERNOR_HOST and GOVERNOR_PORT move the gateway."

$(STAMP): requirements.lock pyproject.toml
	@if [ -z "$(PYTHON)" ] || ! $(PYTHON) -c '$(USABLE)' 2>/dev/null; then \
	  echo "Governor needs Python 3.11 or later with the venv module (Debian: python3-venv)." >&2; \
	  echo "Found: $$(python3 --version 2>&1 || echo 'no python3'). Choose one with: make PYTHON=/path/to/python" >&2; \
	  exit 1; fi
	@if [ -n "$(INSTALLED_FOR)" ] && [ "$(INSTALLED_FOR)" != "$(CURDIR)" ]; then rm -rf $(VENV); fi
	@if ! $(BIN)/python -c '$(USABLE)' >/dev/null 2>&1; then rm -rf $(VENV); $(PYTHON) -m venv $(VENV); fi
	@echo "Installing the locked dependencies into $(VENV)/ (1.2 GB; about a minute and a half) ..."
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@echo "$(CURDIR)" > $(STAMP)

.PHONY: install
install: $(STAMP)  ## Create the environment .venv/ from requirements.lock

.PHONY: run
run: $(STAMP)  ## Start the gateway with its embedded worker, answer a first request, keep serving
	@$(BIN)/governor serve --embedded $(if $(ONCE),--once)

.PHONY: test
test: lint $(STAMP)  ## What CI runs: lint, types, import contracts, all tests
	@$(BIN)/python -m pytest

.PHONY: lint
lint: $(STAMP)  ## Formatting, lint rules, types, import contracts
	@$(BIN)/python -m ruff format --check .
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m mypy
	@$(BIN)/lint-imports

.PHONY: format
format: $(STAMP)  ## Format the code and apply safe lint fixes
	@$(BIN)/python -m ruff check --fix .
	@$(BIN)/python -m ruff format .

.PHONY: docs
docs: $(STAMP)  ## Rewrite the generated parts of docs/
	@$(BIN)/python docs/generate.py

.PHONY: bench
bench: $(STAMP)  ## The main job, directly and through Governor: accuracy, tokens, KV area, loops
	@$(BIN)/python -m benchmarks.main_job

.PHONY: lock
lock:  ## Resolve pyproject.toml afresh and rewrite requirements.lock
	@scratch=$$(mktemp -d); trap 'rm -rf "$$scratch"' EXIT; \
	$(PYTHON) -m venv "$$scratch"; \
	"$$scratch/bin/pip" install --quiet --disable-pip-version-check '.[$(EXTRAS)]'; \
	{ grep '^#' requirements.lock; \
	  "$$scratch/bin/pip" freeze --exclude governor-gateway | sed 's/+cpu$$//'; } > "$$scratch/lock"; \
	cp "$$scratch/lock" requirements.lock

.PHONY: clean
clean:  ## Remove the environment, caches and build results
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
