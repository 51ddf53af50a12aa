# `make demo` and `make test` do all the set-up that they need: Python 3.11 or later with venv, make and g++ suffice.
PYTHON ?= python3
VENV ?= .venv
# Another build of torch: make demo TORCH='torch==2.13.0 --extra-index-url ...'
TORCH ?= torch==2.13.0
MINUTES ?= 1.5
PYTEST_ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet
SET_UP_BY := pyproject.toml src/kernelworks/__init__.py

.PHONY: demo test lint check proofs system-deps clean help

help:
	@echo "make demo         optimise examples/gated_rms_norm.py for $(MINUTES) minutes"
	@echo "make test         ruff, pyright, import contracts and all tests"
	@echo "make lint         only the checks that run nothing"
	@echo "make proofs       statistical proofs of the clock (minutes)"
	@echo "make system-deps  install the Debian packages that are missing"
	@echo "make clean        remove the virtual environment and caches"

demo: $(VENV)/.installed
	$(BIN)/kernelworks optimize examples/gated_rms_norm.py --minutes $(MINUTES)

test: lint check

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

check: $(VENV)/.installed-dev
	$(BIN)/pytest -n auto --dist worksteal $(PYTEST_ARGS)

proofs: $(VENV)/.installed-dev
	$(BIN)/pytest -m proof --timeout 0 $(PYTEST_ARGS)

system-deps:
	scripts/system-deps.sh

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# torch comes first and alone, so that the extra finds it and brings no other build.
$(VENV)/.installed: $(SET_UP_BY)
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(TORCH)
	$(PIP) --editable '.[torch]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) --editable '.[torch,dev]'
	@touch $@
