# Seamgate. `make demo` and `make test` do everything that they need, on a fresh Debian 12 or Ubuntu with Python 3.11+.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST := $(BIN)/pytest -q

.PHONY: help build demo check test test-full test-browser test-fast simulate fuzz test-compiled compiled bench bench-workers scale-connections soak bench-dns lock clean

help: ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

# The locked dependencies, each with its hash, then this checkout itself, editable.
$(STAMP): requirements.lock pyproject.toml hatch_build.py
	$(PYTHON) -m venv $(VENV) || { echo "python3-venv is missing: apt-get install python3-venv"; exit 3; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

include vmm/build.mk
include proxy/build.mk

build: $(STAMP) kvm-build native-build ## the virtual environment and the C parts

demo: $(STAMP) ## the whole story on this machine, no configuration, no internet
	@$(BIN)/seamgate demo

check: build ## formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright

test: build ## everything that CI runs
	$(PYTEST) tests

test-full: build ## bodies, and a pack of git, of 1 GiB in bounded memory (`make test` takes 256 and 64 MiB)
	SEAMGATE_TEST_FULL=1 $(PYTEST) tests/e2e/test_http1_streams.py tests/e2e/test_clients_git_large.py -k beyond

test-browser: build ## Chromium through the gateway; takes the packages chromium and libnss3-tools
	$(PYTEST) tests/browser/chromium.py

test-fast: build ## the part without sockets and real clients
	$(PYTEST) tests/unit tests/property tests/meta

SEED ?= 1
RUNS ?= 2000
simulate: $(STAMP) ## the gateway under a virtual clock: SEED=1 RUNS=2000 random schedules of faults
	PYTHONPATH=tests:proxy:plugins $(BIN)/python -m simulation.run --seed $(SEED) --runs $(RUNS) --jobs 0

FUZZ_S ?= 60
FUZZ ?= $(shell sed -n 's/^    "\([a-z0-9_]*\)": \[.*/\1/p' tests/fuzz/seeds.py)
fuzz: $(STAMP) ## coverage-guided: FUZZ_S=60 seconds for each target, or for FUZZ=one
	@for target in $(FUZZ); do echo "== $$target"; \
	  PYTHONPATH=tests:proxy:plugins:vmm $(BIN)/python -m fuzz.run --seconds $(FUZZ_S) --target $$target || exit 1; done

# The wheel as users get it: C parts and the hot path compiled. Unpacked beside the sources, not over them.
COMPILED := build/compiled
$(COMPILED)/.built: $(STAMP) hatch_build.py $(wildcard proxy/native/* proxy/native/*/*) $(wildcard proxy/seamgate/*.py proxy/seamgate/*/*.py plugins/seamgate_plugins/*.py)
	rm -rf $(COMPILED) build/wheel
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation -w build/wheel .
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(COMPILED) build/wheel/seamgate-*.whl
	@touch $@

compiled: $(COMPILED)/.built ## the wheel, with the hot path compiled

test-compiled: compiled ## the data plane's tests again, against the wheel
	PYTHONPATH=$(COMPILED) $(BIN)/python -c "import seamgate.exchange as it; assert it.__file__.endswith('.so'), it.__file__"
	PYTHONPATH=$(COMPILED) $(PYTEST) -o pythonpath="tests bench" tests/unit/protocol tests/unit/test_streams.py tests/unit/test_records.py tests/property/test_http1.py tests/property/test_http1_h11.py tests/property/test_http2.py tests/property/test_redaction.py tests/attack/test_credential_theft.py tests/property/test_native.py tests/e2e/test_http1_messages.py tests/e2e/test_websocket.py tests/e2e/test_websocket_http2.py tests/e2e/test_clients_python.py tests/e2e/test_demo.py

scale-connections: compiled ## a request's cost at 10 and at 10,000 connections
	PYTHONPATH=$(COMPILED) $(BIN)/python bench/scale.py connections --check

soak: compiled ## its cost and the memory after 1,000,000 requests
	PYTHONPATH=$(COMPILED) $(BIN)/python bench/scale.py soak --check

bench: compiled ## speed beside the peers, paired in one run, and the name service beside its own
	PYTHONPATH=$(COMPILED) $(BIN)/python bench/run.py
	PYTHONPATH=$(COMPILED) $(BIN)/python bench/dns_bench.py

bench-dns: compiled ## the name service beside dnsmasq and unbound, with dnsperf
	PYTHONPATH=$(COMPILED) $(BIN)/python bench/dns_bench.py

bench-workers: compiled ## one process beside two workers, on one core and on two
	PYTHONPATH=$(COMPILED) $(BIN)/python bench/run.py --only seamgate,seamgate-2w,seamgate-spread,seamgate-2w-spread,nginx --scenario small,big,new,idle

lock: ## update requirements.lock to what pyproject.toml permits
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --group dev --group clients pyproject.toml -o requirements.lock

clean: ## remove what was built
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
