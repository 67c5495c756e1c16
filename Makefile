# Each target sets itself up in .venv and is quick the second time.
# Bytecode is kept of modules that are imported, from their first import on; compiling all files of all libraries while
# they are installed would take a minute.
unexport PYTHONDONTWRITEBYTECODE
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt

.PHONY: demo test lint hooks docs bench drill clean

demo: $(VENV)/.core
	$(BIN)/trustmix demo --out demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest --numprocesses 3 --dist worksteal --durations 10 --cov=src/trustmix/aggregation --cov=src/trustmix/density --cov-branch --cov-report=term --cov-fail-under=99

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

hooks: $(VENV)/.dev
	$(BIN)/pre-commit install

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Documentation: site/index.html"

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks.run

drill: $(VENV)/.dev
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

$(VENV)/.bench: $(VENV)/.dev
	$(PIP) --editable ".[flower]"
	touch $@

clean:
	rm -rf $(VENV) demo site
