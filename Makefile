# `make` shows what there is.  Needs Python 3.11 or newer and a package index.

PORT ?= 8080
DATA ?= .duetime
VENV ?= .venv
TESTS ?= tests
# One more than the cores of a small machine: many tests wait for a process that they started.
JOBS ?= 3
# Options for the audit of dependencies: `--ignore-vuln ID`, with the reason beside it.
AUDIT ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
LOCK := $(BIN)/uv --quiet pip compile --universal --generate-hashes --python-version 3.11 --no-header --no-annotate \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"

.DEFAULT_GOAL := help
.PHONY: help up test test-deep check sbom format bench lock schema client packages clean

help: ## Show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

up: $(VENV)/.installed ## Run duetime with its own PostgreSQL (PORT=8080 DATA=.duetime)
	@exec $(BIN)/duetime up --port "$(PORT)" --data "$(DATA)"

test: check packages ## Check the code, then run the tests (TESTS=tests/api for some)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(TESTS)

test-deep: export DUETIME_TEST_DEPTH = deep
test-deep: test ## The same with far more examples, seeds, tasks and rows: an hour or more

check: $(VENV)/.installed-dev ## Lint, format, types, layers, known vulnerabilities
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo
	@$(BIN)/python .ci/audit.py $(AUDIT)

sbom: $(VENV)/.installed-dev ## Write what a node consists of (CycloneDX) into dist/duetime.cdx.json
	@rm -rf build/sbom
	@.ci/python -m venv build/sbom
	@build/sbom/bin/python -m pip --disable-pip-version-check --no-input install --quiet --require-hashes --requirement requirements/run.txt
	@build/sbom/bin/python -m pip --disable-pip-version-check --no-input install --quiet --no-deps --no-build-isolation .
	@$(BIN)/python .ci/sbom.py build/sbom dist/duetime.cdx.json

format: $(VENV)/.installed-dev ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed-dev ## Measure duetime and its peers here, and write docs/benchmarks.md
	$(BIN)/python -m bench

lock: $(BIN)/python ## Lock the newest versions that fit (requirements/*.txt)
	$(PIP) install --quiet --upgrade uv
	$(LOCK) --upgrade pyproject.toml requirements/build.in --output-file requirements/run.txt
	$(LOCK) --upgrade pyproject.toml requirements/build.in --extra dev --constraint requirements/run.txt \
		--output-file requirements/dev.txt

schema: $(VENV)/.installed-dev ## Write schema.sql anew after a change to the migrations
	$(BIN)/python tests/database/write_schema.py

client: $(VENV)/.installed-dev ## Write the SDK's client for plain code anew after a change to the one for asyncio
	$(BIN)/python tests/sdk/write_client.py

packages:
	@.ci/packages

clean: ## Remove what was built and installed, but no data
	rm -rf "$(VENV)" .bench/peers .bench/run dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@.ci/python -m venv "$(VENV)"

# The dev lock holds everything of the other, in the same versions.
$(VENV)/.installed: requirements/run.txt pyproject.toml | $(BIN)/python
	$(PIP) install --quiet --require-hashes --requirement requirements/run.txt
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.installed-dev: requirements/dev.txt pyproject.toml | $(BIN)/python
	$(PIP) install --quiet --require-hashes --requirement requirements/dev.txt
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@ $(VENV)/.installed
