# Bare `make` prints this help. Two commands do everything: `make demo` and `make test`.
PYTHON ?= python3
MONTHS ?= 12
DEMO ?= .sluice
VENV := .venv
BIN := $(VENV)/bin
# What is never imported need not be compiled: half of the work of an installation.
PIP := --quiet --disable-pip-version-check --no-compile
# Links to what another checkout has unpacked, if that is all of it: then an installation takes seconds.
UV := $(VENV)/bin/uv pip install --quiet --require-hashes
# A separate environment: Airflow pins its dependencies, and never imports the engine.
AIRFLOW := .venv-airflow
PORT ?= 8080
# Processes that run tests side by side, each a file at a time; the longest come first, by tests/durations.json.
# Four for two cores: two of them have the tests that need no session of Spark, and those with servers wait much.
WORKERS ?= 4
# The bases of `make bench`.
FACTS ?= 80000 800000
# The environments are installed side by side.
MAKEFLAGS += --jobs=2
# How long `make soak` runs, or the only seeds that it tries.
MINUTES ?= 60
SEEDS ?=
# A worker that ends, as after a test that hangs (pyproject.toml), ends the run: xdist would run that test again.
PYTEST = env -u SLUICE_LAKE -u SLUICE_LOG $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0
# The marks of the tiers; each test belongs to one tier.
SPARK = spark or process
SERVED = servers or browser or install
SERVERS = $(abspath $(DEMO))/servers
# Some machines keep no bytecode, and then each process compiles all that it imports: half of a command's start.
export PYTHONDONTWRITEBYTECODE =
export SLUICE_LAKE = $(abspath $(DEMO))/lake
export SLUICE_LOG = $(abspath $(DEMO))/log

.DEFAULT_GOAL := help
.PHONY: help demo ui airflow servers images servers-down test test-unit test-spark test-servers durations soak soak-faults lint docs format lock benchmark bench bench-small mutants logstore clean prerequisites

help: ## Print this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

prerequisites:
	@$(PYTHON) -c 'import sys; sys.exit("Error: Sluice needs Python 3.11 or newer, and $(PYTHON) is %d.%d. Install one and run: make PYTHON=python3.11 $(MAKECMDGOALS)" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m sluice.runtime.java

# `$(call installed,ENVIRONMENT,LOCK)`: pip has the last word, as it knows of mirrors that uv does not.
define installed
	@$(UV) --offline --python $(1) -r $(2) 2>/dev/null || $(UV) --python $(1) -r $(2) \
		|| $(1)/bin/python -m pip install $(PIP) --require-hashes -r $(2)
endef

$(VENV)/.uv: requirements-installer.lock | prerequisites
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install $(PIP) --require-hashes -r requirements-installer.lock
	@touch $@

$(VENV)/.installed: requirements.lock pyproject.toml $(VENV)/.uv
	@echo "Installing into $(VENV) (once, a minute or two) …"
	$(call installed,$(VENV),requirements.lock)
	@$(BIN)/python -m pip install $(PIP) --no-deps -e .
	@touch $@

$(AIRFLOW)/.installed: requirements-airflow.lock $(VENV)/.uv
	@echo "Installing Airflow into $(AIRFLOW) (once, a minute) …"
	@$(PYTHON) -m venv $(AIRFLOW)
	$(call installed,$(AIRFLOW),requirements-airflow.lock)
	@touch $@

# What the tests start beside Python and Java. The cache outlives the checkout: a second one finds everything there.
$(VENV)/.servers: $(wildcard infra/servers/*.py infra/servers/jars.sha256 infra/servers/versitygw/*) $(VENV)/.installed
	@echo "Installing the servers (once, a few minutes) …"
	@$(BIN)/python -m infra.servers install --for-tests
	@$(BIN)/sluice prepare
	@touch $@

demo: $(VENV)/.installed ## A year of real flights from the log to gold (MONTHS=1 for a quick look)
	@$(BIN)/python -m infra.sources.nycflights --log $(SLUICE_LOG) --months $(MONTHS)
	@$(BIN)/sluice run
	@$(BIN)/python -m infra.demo

airflow: $(VENV)/.installed $(AIRFLOW)/.installed ## Airflow on this machine, with the lakehouse's DAGs (PORT=8080)
	@$(AIRFLOW)/bin/python -m infra.airflow.start --home $(abspath $(DEMO))/airflow --port $(PORT)

ui: $(VENV)/.installed ## The tables of the demo in a browser
	@$(BIN)/sluice ui

servers: $(VENV)/.installed ## Kafka, Connect, S3, Postgres and Spark on this machine, without containers
	@$(BIN)/python -m infra.servers up --folder $(SERVERS)

images: $(VENV)/.installed ## Build the container images without an engine, and try them (needs buildah, as root)
	@$(BIN)/python -m infra.images

servers-down: $(VENV)/.installed ## End them; their data stays
	@$(BIN)/python -m infra.servers down --folder $(SERVERS)

test: $(VENV)/.installed $(AIRFLOW)/.installed $(VENV)/.servers ## Every test
	@$(PYTEST) $(TESTS)

durations: $(VENV)/.installed $(AIRFLOW)/.installed $(VENV)/.servers ## Every test, and keep how long each file takes
	@$(PYTEST) --keep-durations $(TESTS)

test-unit: $(VENV)/.installed ## Pure tests: no JVM, no process, under a minute
	@$(PYTEST) -m "not ($(SPARK) or $(SERVED))" $(TESTS)

test-spark: $(VENV)/.installed ## Tests with Spark, and commands in separate processes
	@$(PYTEST) -m "($(SPARK)) and not ($(SERVED))" $(TESTS)

test-servers: $(VENV)/.installed $(AIRFLOW)/.installed $(VENV)/.servers ## Tests with servers, a browser or an installation
	@$(PYTEST) -m "$(SERVED)" $(TESTS)

soak: $(VENV)/.installed ## Random lakehouses for MINUTES=60, or of some SEEDS="1 2"
	@env -u SLUICE_LAKE -u SLUICE_LOG $(BIN)/python -m tests.laws.soak --minutes $(MINUTES) --seeds $(SEEDS)

soak-faults: $(VENV)/.installed ## Lakehouses under faults for MINUTES=60; adds what was tried to docs/faults.md
	@env -u SLUICE_LAKE -u SLUICE_LOG $(BIN)/python -m tests.faults.soak --minutes $(MINUTES) --seeds $(SEEDS)

lint: $(VENV)/.installed ## Style, types, and which module may import which
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

docs: $(VENV)/.installed ## Build the documentation site: build/docs/index.html
	@$(BIN)/python -m sphinx --fresh-env --fail-on-warning --keep-going --quiet --conf-dir infra/site . build/docs
	@echo "Built build/docs/index.html"

format: $(VENV)/.installed ## Put the code into its form
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

benchmark: $(VENV)/.installed ## Time and CPU of a whole run, as ratios to two floors (others: benchmarks/README.md)
	@env -u SLUICE_LAKE -u SLUICE_LOG $(BIN)/python -m benchmarks.whole_run --months $(MONTHS)

bench: $(VENV)/.installed ## Sluice beside DuckDB, Polars and PySpark, rows proved equal: build/peers.html (FACTS="80000 800000")
	@env -u SLUICE_LAKE -u SLUICE_LOG $(BIN)/python -m benchmarks.peers $(FACTS:%=--facts %) --out build/peers.json
	@$(BIN)/python -m benchmarks.peers.report build/peers.json build/peers.html

bench-small: $(VENV)/.installed ## Small changes on two million rows, with limits of bytes, statements and commits; large batches, compared with DuckDB
	@env -u SLUICE_LAKE -u SLUICE_LOG SLUICE_TEST_FACTS=2000000 $(BIN)/pytest -n 0 tests/laws/test_large_bases.py
	@env -u SLUICE_LAKE -u SLUICE_LOG SLUICE_TEST_FACTS=2000000 $(BIN)/pytest -n 0 -k limits tests/laws/test_many_records.py

mutants: $(VENV)/.installed ## Faults that the random lakehouses must notice, also those that take minutes
	@env -u SLUICE_LAKE -u SLUICE_LOG SLUICE_TEST_MUTANTS=1 $(BIN)/pytest -n 0 tests/laws/test_random_mutants.py

lock: $(VENV)/.installed ## Resolve the dependencies again (needs uv)
	@uv pip compile pyproject.toml --extra demo --extra dev --universal --python-version 3.11 \
		--generate-hashes --no-header --no-annotate --quiet -o requirements.lock
	@uv pip compile infra/airflow/requirements.in --universal --python-version 3.11 \
		--generate-hashes --no-header --no-annotate --quiet -o requirements-airflow.lock
	@uv pip compile infra/installer.in --universal --python-version 3.11 \
		--generate-hashes --no-header --no-annotate --quiet -o requirements-installer.lock

logstore: $(VENV)/.installed ## Build the jars of the log store and of infra/servers/readonly from their sources (needs a JDK)
	@$(BIN)/python -m sluice.runtime.logstore
	@$(BIN)/python -m infra.servers.readonly

clean: ## Remove the demo's log and tables, and what the servers keep
	@test ! -S $(SERVERS)/supervisor.sock || $(BIN)/python -m infra.servers down --folder $(SERVERS)
	@rm -rf $(DEMO)
