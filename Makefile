# Each target sets itself up in .venv and is quick the second time.
# Bytecode is kept of modules that are imported, from their first import on; compiling all files of all libraries while
# they are installed would take a minute.
unexport PYTHONDONTWRITEBYTECODE
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt

.PHONY: help demo test test-slow test-all mutants busy lint hooks docs bench drill clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*  ##' $(MAKEFILE_LIST) | sed 's/:[^#]*## /: /'
	@echo 'one test: $(BIN)/python -m pytest tests/wire/test_codecs.py -k simplex'
	@echo 'one room: $(BIN)/python -m pytest tests/wire src/trustmix/wire'

demo: $(VENV)/.core  ## the main job on built-in data, with a report
	$(BIN)/trustmix demo --out demo

WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal
COVERAGE := --cov=src/trustmix/aggregation --cov=src/trustmix/density --cov-branch --cov-report=term --cov-fail-under=99

test: $(VENV)/.dev  ## the quick tier: what a change can break, in a few minutes
	$(PYTEST) -m "not slow" $(COVERAGE)

test-slow: $(VENV)/.all  ## the slow tier alone: Ray, deployments, kill drills, browser, demo, documentation
	$(PYTEST) -m slow --durations 20

test-all: test test-slow  ## both tiers

busy: $(VENV)/.dev  ## the quick tier ten times beside eight busy processes; an hour
	$(BIN)/python -m benchmarks.busy --times 10 make test

lint: $(VENV)/.dev  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

hooks: $(VENV)/.dev  ## lint before each commit
	$(BIN)/pre-commit install

docs: $(VENV)/.docs  ## the documentation as a site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Documentation: site/index.html"

bench: $(VENV)/.bench  ## the table of speeds
	$(BIN)/python -m benchmarks.run

mutants: $(VENV)/.dev  ## which small changes of the heart its tests do not notice; ten minutes, resumable
	$(BIN)/python -m benchmarks.mutants --jobs 2

drill: $(VENV)/.dev  ## a deployment under faults
	$(BIN)/python -m benchmarks.drill

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable .
	$(BIN)/python -c "import trustmix.cli.progress, trustmix.experiment.run, trustmix.report"
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable ".[dev]"
	$(BIN)/python -c "import trustmix.cli.progress, trustmix.experiment.run, trustmix.report"
	touch $(VENV)/.core $@

$(VENV)/.docs: $(VENV)/.core
	$(PIP) --editable ".[docs]"
	touch $@

$(VENV)/.all: $(VENV)/.dev
	$(PIP) --editable ".[dev,track,docs]"
	touch $(VENV)/.docs $@

$(VENV)/.bench: $(VENV)/.dev
	$(PIP) --editable ".[flower]"
	touch $@

clean:
	rm -rf $(VENV) demo site
