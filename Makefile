# From a bare checkout with Python 3.11 or newer: `make demo` or `make test`. Everything goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Without the constraints pip takes the newest torch, which is gigabytes and not what was tested.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
TOOLS := $(VENV)/.tools-installed
INSTALLED := $(VENV)/.laplex-installed
DEMO := build/demo
DIST := build/dist
EMPTY := build/empty

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo report test test-browser test-gpu check docs dist format bench-cpu bench-gpu tables clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

install: $(INSTALLED) ## create .venv and install laplex into it, editable, with its C++ core
demo: $(INSTALLED) ## laplex.linear compared with torch.nn.Linear, a density of photographs, and the report, in three minutes
	$(BIN)/laplex bench
	$(BIN)/laplex fit bundled:train --validation bundled:val --rank 600 --functions 4 --out $(DEMO) --fresh
	$(BIN)/laplex inpaint $(DEMO)/model.safetensors bundled:val --mask half --out $(DEMO)/inpainted.png
	$(BIN)/python -m paper report --out $(DEMO)/report.html
	@echo "laplex: look at report.html, samples.png, reconstructions.png, inpainted.png and places.png in $(DEMO)"

report: $(INSTALLED) ## the paper's claims, and what became of them, as one page: laplex-report.html
	$(BIN)/python -m paper report

test: $(INSTALLED) ## the tests, on all cores; TEST_FLAGS=-n0 for one process
	@echo "laplex: the tests take about ten minutes on two cores"
	$(BIN)/python -m pytest -n auto --dist worksteal $(TEST_FLAGS)

test-browser: $(INSTALLED) ## the tests of pages in Chromium
	$(BIN)/python -m pytest -n auto --dist loadfile -m browser $(TEST_FLAGS)

test-gpu: ## the tests that need a GPU; without .venv, by a PYTHON with torch, triton and pytest
	$(firstword $(wildcard $(BIN)/python) $(PYTHON)) tests/gpu/run.py $(TEST_FLAGS)

check: $(INSTALLED) ## lint, formatting and types, and the documentation builds
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(MAKE) --no-print-directory docs

docs: $(INSTALLED) ## build the documentation into build/docs; a warning is an error
	$(BIN)/sphinx-build -q -W --keep-going -n -b html -d build/doctrees docs build/docs
	@echo "laplex: open build/docs/index.html"

dist: $(INSTALLED) ## build sdist and wheel, install the wheel into an empty environment, and try it there
	rm -rf $(DIST) $(EMPTY)
	$(BIN)/python -m build --no-isolation --outdir $(DIST)
	$(PYTHON) -m venv $(EMPTY)
	$(EMPTY)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(DIST)/*.whl
	cd $(EMPTY) && bin/python ../../tests/smoke.py

format: $(INSTALLED) ## put the code into its form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench-cpu: $(INSTALLED) ## the whole CPU benchmark
	$(BIN)/python -m benchmarks --suite cpu

bench-gpu: $(INSTALLED) ## the whole GPU benchmark, on a machine with CUDA
	$(BIN)/python -m benchmarks --suite gpu

tables: $(INSTALLED) ## renew the tables and plots of README and documentation from the committed results
	$(BIN)/python -m benchmarks.markdown

clean: ## remove .venv, what was built, and caches
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests paper benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# The build tools live in .venv, so that the core is built without build isolation: pinned, and incremental in build/.
$(TOOLS): constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "laplex: make needs Python 3.11 or newer, but PYTHON=$(PYTHON) is `$(PYTHON) --version 2>&1`." \
	    "Name another: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "laplex: could not create $(VENV); the venv module may be a package of its own (python3-venv)." >&2; exit 1; }
	@echo "laplex: installing into $(VENV); the first time takes minutes"
	@$(PIP_INSTALL) scikit-build-core nanobind cmake ninja setuptools
	@touch $@

$(INSTALLED): $(TOOLS) pyproject.toml constraints.txt CMakeLists.txt $(wildcard csrc/*)
	@echo "laplex: building and installing"
	@$(PIP_INSTALL) --no-build-isolation --config-settings=build-dir=build/editable -e '.[dev,cli,bench,images,sklearn,docs]'
	@touch $@
