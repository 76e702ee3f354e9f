# Every task of the project. `make help` lists them; the first one that needs it sets everything up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SPARK42 := .venv-spark42
# What takes long comes first, so that all processes have something to do until the end.
TESTS := tests/spark tests/conformance tests/chaos tests/test_docs.py tests/test_cli.py tests/packaging tests/browser tests/server tests/unit
FAST := $(addprefix tests/server/test_, reading.py core.py s2_session.py iggy_server.py) tests/unit
# Hundreds of Python processes import Penstock in one run of the tests: compile it once.
unexport PYTHONDONTWRITEBYTECODE
SPREAD := -n 2 --dist loadscope --no-loadscope-reorder

.PHONY: help setup wheel java s2-lite demo test test-fast chaos mutate test-spark42 check format docs bench clean

help: ## list the tasks
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

setup: $(VENV)/.ready ## make a virtual environment with everything in it

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Penstock needs Python 3.11 or later, and %s is %s. Set PYTHON=..." % (sys.executable, sys.version.split()[0]))'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing Penstock and Spark into $(VENV) (a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet --editable '.[dev]' --constraint constraints.txt
	@touch $@

wheel: $(VENV)/.ready ## build the wheel into dist
	@$(BIN)/python -m hatchling build -t wheel

java: $(VENV)/.ready
	@$(BIN)/python -m penstock.session > /dev/null

demo: java ## run the main job on an embedded server
	@$(BIN)/penstock demo

s2-lite: $(VENV)/.ready
	@$(BIN)/python -m penstock.testing.s2_lite > /dev/null || true # what needs it says what is missing

test: java ## run every test
	@$(BIN)/python tests/class_archive.py > /dev/null 2>&1 & \
	nice $(BIN)/python -m penstock.testing.s2_lite > /dev/null & trap "kill $$! 2> /dev/null" EXIT INT TERM; \
	$(BIN)/python -m pytest $(SPREAD) --durations=25 --durations-min=5 $(TESTS)

test-fast: $(VENV)/.ready ## run the unit tests and a server test of every connector, in a minute or so
	$(BIN)/python -m pytest $(SPREAD) $(FAST)

chaos: ROUNDS ?= 300
chaos: SEED ?= 1
chaos: $(VENV)/.ready s2-lite ## read and write through random faults: make chaos ROUNDS=1000 SEED=7
	ROUNDS=$(ROUNDS) SEED=$(SEED) $(BIN)/python -m pytest tests/chaos

mutate: java s2-lite ## take out each mechanism, and see a test fail: make mutate ONLY=ledger
	$(BIN)/python tests/mutate.py "$(ONLY)"

test-spark42: java ## run the Spark and conformance tests on Spark 4.2
	@test -x $(SPARK42)/bin/python || $(PYTHON) -m venv $(SPARK42)
	@grep -v '^pyspark==' constraints.txt > $(SPARK42)/constraints.txt && echo 'pyspark==4.2.1' >> $(SPARK42)/constraints.txt
	@test -e $(SPARK42)/.ready || $(SPARK42)/bin/python -m pip install --quiet --editable '.[dev]' --constraint $(SPARK42)/constraints.txt
	@touch $(SPARK42)/.ready
	$(SPARK42)/bin/python -m pytest tests/spark tests/conformance

check: $(VENV)/.ready ## lint, formatting, types, and generated documentation up to date
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python docs/generate.py --check

format: $(VENV)/.ready ## format the code and mend what lint can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.ready ## write the generated tables into the documentation
	$(BIN)/python docs/generate.py

bench: java ## measure, and write the results under bench/results
	cd bench && ../$(BIN)/python run.py

clean: ## remove what the tasks made
	rm -rf $(VENV) $(SPARK42) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist spark-warehouse
