# Everything a newcomer needs. The first target to run makes .venv, builds the native code and installs what it needs.
PYTHON ?= python3
VENV ?= .venv
MODEL ?= smollm2
PORT ?= 8000
BIN := $(VENV)/bin

.PHONY: setup dev oracle clients serve test test-fast test-clients test-sanitized check format bench bench-peers bench-limits load chaos web check-web clean

# The native code's sources decide when it is built again. Serving needs no development tools.
setup: $(VENV)/.ready
dev: $(VENV)/.ready-dev
oracle: $(VENV)/.ready-oracle
clients: $(VENV)/.ready-clients

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ready: pyproject.toml CMakeLists.txt $(wildcard csrc/*.cpp csrc/*.h csrc/kernels/*.h) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"  # the first that reads dependency groups
	$(BIN)/python -m pip install --quiet --group dev
	touch $@

# torch and transformers, for the tests that compare every family with them; without, those are left out.
$(VENV)/.ready-oracle: $(VENV)/.ready-dev
	$(BIN)/python -m pip install --quiet --group oracle
	touch $@

# LangChain, whose test is left out without.
$(VENV)/.ready-clients: $(VENV)/.ready-dev
	$(BIN)/python -m pip install --quiet --group clients
	touch $@

serve: setup
	$(BIN)/lightwell serve $(MODEL) --port $(PORT)

test: dev
	$(BIN)/python -m pytest

test-fast: dev
	$(BIN)/python -m pytest -m "not slow"

# The official clients and LangChain against a real server.
test-clients: clients
	$(BIN)/python -m pytest tests/clients

test-sanitized: dev
	PYTHON=$(BIN)/python tools/test_sanitized.sh

check: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/check_functions.py src bench tools

format: dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	$(BIN)/lightwell bench decode $(MODEL)
	$(BIN)/lightwell bench prefill $(MODEL)
	$(BIN)/lightwell bench serve $(MODEL)

# docs/benchmarks.md; BENCH_FLAGS takes --rows, --peers, --rounds and more.
bench-peers: setup
	$(BIN)/python -m bench.peers peers $(BENCH_FLAGS)

bench-limits: setup
	$(BIN)/python -m bench.peers limits $(BENCH_FLAGS)

# docs/benchmarks.md; LOAD_FLAGS takes --streams, --rate, --seconds and --rounds.
load: setup
	$(BIN)/python -m bench.load $(LOAD_FLAGS)

# docs/survival.md; CHAOS_FLAGS takes --model, --streams, --kills and --seed.
chaos: setup
	$(BIN)/python -m bench.chaos $(CHAOS_FLAGS)

# Builds the page into the package, where it is committed: serving needs no Node, and neither does anything above.
web: | $(BIN)/python
	$(BIN)/python tools/npm.py ci
	$(BIN)/python tools/npm.py run build

# The page's types and markup, and that the committed files are what its sources build.
check-web: | $(BIN)/python
	$(BIN)/python tools/npm.py ci
	$(BIN)/python tools/npm.py run check
	$(BIN)/python tools/npm.py run build -- --outDir ../build/page
	diff -r build/page src/lightwell/gateway/page

clean:
	rm -rf $(VENV) build dist web/node_modules
