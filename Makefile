# Every target sets up what it needs in .venv. Nothing but python3 (3.11 or newer) and make is asked for.
# Another Python for a new .venv: make PYTHON=python3.12 test

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BACKENDS := .venv-backends
INSTALL := bin/python -m pip install -qq --disable-pip-version-check --constraint

.PHONY: help demo test test-browser test-backends lint format build clean

help:
	@echo "make demo | test | test-browser | test-backends | lint | format | build | clean"

demo: $(VENV)/.installed-demo
	@$(BIN)/occupancy demo

test: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest -q -n 4 --dist loadfile --no-loadscope-reorder -m 'not alone'
	@$(BIN)/python -m pytest -q -m alone

# Chromium comes from the system (Debian: apt-get install chromium), or CHROMIUM names it.
test-browser: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest tests/browser

# Real backends, in an environment of their own: they bring more than 100 packages. Prometheus comes from the system
# (Debian: apt-get install prometheus), or PROMETHEUS names it.
test-backends: $(BACKENDS)/.installed
	@$(BACKENDS)/bin/python -m pytest tests/backends

lint: $(VENV)/.installed-dev
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo

format: $(VENV)/.installed-dev
	@$(BIN)/ruff check --fix --quiet
	@$(BIN)/ruff format --quiet

build: $(VENV)/.installed-dev
	@rm -rf dist
	@$(BIN)/python -m build -qq
	@ls dist/*

clean:
	@rm -rf build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

%/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("occupancy needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv $* || { rm -rf $*; exit 1; }

# The stamps: installed again when pyproject.toml or constraints.txt changed. dev holds all that demo does.
$(VENV)/.installed-demo: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing occupancy[demo] into $(VENV) ..."
	@$(VENV)/$(INSTALL) constraints.txt --editable '.[demo]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing occupancy[dev] into $(VENV) ..."
	@$(VENV)/$(INSTALL) constraints.txt --editable '.[dev]'
	@touch $(VENV)/.installed-demo $@

$(BACKENDS)/.installed: pyproject.toml constraints-backends.txt | $(BACKENDS)/bin/python
	@echo "Installing occupancy[backends] into $(BACKENDS) ..."
	@$(BACKENDS)/$(INSTALL) constraints-backends.txt --editable '.[backends]'
	@touch $@
