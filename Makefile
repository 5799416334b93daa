# Every target makes its own environment with nothing but python3 and make; needs Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help demo test lint onnx-score bench docs hooks clean

help: ## Show the targets.
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 22

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	@touch $@

demo: $(STAMP) ## Read handwritten digits: pictures, accuracy, latency, profile.
	$(BIN)/python examples/demo.py

test: lint ## Lint, check types, run all tests.
	$(BIN)/python -m pytest -q

lint: $(STAMP) ## Lint and check types.
	$(BIN)/ruff check .
	$(BIN)/mypy

onnx-score: $(STAMP) ## Run the conformance suite that ships with onnx, other engines forbidden.
	$(BIN)/python -m tests.onnx_score --expect docs/onnx-missing.md

bench: $(STAMP) ## Measure speed, start, memory against onnxruntime.
	$(BIN)/python -m bench.bars all

docs: $(STAMP) ## Write the pages that are made from the code.
	$(BIN)/bolt-numba ops --markdown > docs/operators.md

hooks: $(STAMP) ## Install the pre-commit hooks (needs pre-commit on the path).
	pre-commit install

clean: ## Remove the environment and what builds leave behind.
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
