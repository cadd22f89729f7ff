# `make help` lists what there is. Options for the command behind a target go through ARGS: make serve ARGS="--node-id 3".

PYTHON ?= python3
ARGS ?=

VENV := .venv
PY := $(VENV)/bin/python
# The constraints hold for what builds the package as well: older pips read the first variable for that, newer ones the second.
PIP := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt $(PY) -m pip --disable-pip-version-check --no-input
SOURCES := gateway auth compat storage reports tests bench
# What an installation depends on; the packages themselves are installed in place.
INPUTS := pyproject.toml constraints.txt $(wildcard setup.py compat/records/*.p[yx][xi] compat/records/*.h gateway/protocol/wire/*.pyx)

# An environment whose Python has gone (upgraded, or the folder was moved from another machine) is made anew.
ifneq ($(wildcard $(VENV)/.made),)
ifneq ($(shell $(PY) -c 'print("here")' 2>/dev/null),here)
$(shell rm -f $(VENV)/.made)
endif
endif

# Tests with real peers: a file is run by one worker, and what failed is run once more, alone, at the end (tests/reruns.py).
PEERS := -n 2 --dist loadfile --no-loadscope-reorder --rerun-failed-peers

.DEFAULT_GOAL := help
.PHONY: help serve pulsar test check lint format bench bench-groups bench-shared bench-pulsar bench-traffic slow legacy fingerprints tox clean spark bench-reports demo

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

serve: $(VENV)/.serve ## start a gateway on 127.0.0.1:9092 with its data under ./data (ARGS: options of `kopgate serve`)
	@exec $(PY) -m gateway serve $(ARGS)

pulsar: $(VENV)/.test ## start an Apache Pulsar on 127.0.0.1:6650 (admin API: 8080) with its data under ./data-pulsar (ARGS: --port, --web-port, --data, --memory)
	@exec $(PY) -m tests.peers.standalone $(ARGS)

check: lint ## format, lint, types and the fast tests (their properties with fewer examples), in under two minutes
	$(PY) -m pytest -q -n 2 -m "not peer and not slow and not spark" --hypothesis-profile=quick $(ARGS)

lint: $(VENV)/.dev ## format, lint, types and the words of comments and documents alone
	$(PY) -m ruff format --check $(SOURCES)
	$(PY) -m ruff check $(SOURCES)
	$(PY) -m mypy
	$(PY) -m tests.prose

test: $(VENV)/.test ## every test but the slow ones, real clients and brokers included
	$(PY) -m pytest -q -n 2 -m "not peer and not slow and not spark" $(ARGS)
	$(PY) -m pytest -q $(PEERS) -m "peer and not slow and not spark" $(ARGS)

slow: $(VENV)/.test ## the tests that take minutes
	$(PY) -m pytest -q -m slow $(ARGS)

spark: $(VENV)/.report ## the reports, with PySpark (some 400 MB) and Java, on planted logs and on what real clients send; some fifteen minutes
	$(PY) -m pytest -q $(PEERS) -m spark $(ARGS)

legacy: $(VENV)/.test ## the real clients alone, side by side, and a grid of them (ARGS: `--store pulsar`, `--client NAME`, --every-pair, or --reference for Kafka itself)
	$(PY) -m pytest -q -n auto --dist loadfile tests/legacy_clients -m "peer and not slow" --grid $(ARGS)

demo: $(VENV)/.report ## real clients of many ages against a gateway with a traffic log, and the report on them (ARGS: --out DIR, --target NAME), in some two minutes
	@$(PY) -m tests.legacy_clients.demo $(ARGS)

fingerprints: $(VENV)/.test ## what each real client looks like in the traffic log, written to compat/fingerprint/observed.jsonl, in some 40 minutes (ARGS: for example --help)
	$(PY) -m tests.legacy_clients.fingerprints $(ARGS)

chaos: $(VENV)/.test ## clients of three generations while the gateway and a Pulsar are killed, paused and restarted, for five minutes (ARGS: --seed N, --minutes N, --store NAME, --plot FILE)
	$(PY) -m tests.peers.chaos $(ARGS)

fuzz: $(VENV)/.test ## what atheris makes up, to the record functions and their kernel (ARGS: --seconds N for each of three ways, --seed N)
	$(PIP) install -q --only-binary :all: atheris
	@for target in agreement entrances whole; do $(PY) -m tests.fuzz.records --target $$target $(ARGS) || exit 1; done

bench: $(VENV)/.test ## side by side with Apache Kafka, in some 20 minutes; a table and a chart go to docs/ (ARGS: for example --help)
	$(PY) -m bench $(ARGS)

bench-groups: $(VENV)/.test ## 1,000 consumer groups of 4 members on one gateway, in some two minutes (ARGS: for example --help)
	$(PY) -m bench.groups $(ARGS)

bench-shared: $(VENV)/.test ## requests of several kinds on one connection, such as commits beside a waiting fetch, in some 20 minutes (ARGS: --kafka, --help)
	$(PY) -m bench.shared $(ARGS)

bench-pulsar: $(VENV)/.test ## the gateway in front of Apache Pulsar, and a native application beside it, in some eight minutes (ARGS: for example --help)
	$(PY) -m bench.pulsar $(ARGS)

bench-traffic: $(VENV)/.test ## what the traffic log costs: listeners with it and without in turns, in some ten minutes (ARGS: for example --help)
	$(PY) -m bench.traffic $(ARGS)

bench-reports: $(VENV)/.report ## logs of 1 and 10 million usage rows into tables and reports, on two cores (ARGS: for example --help)
	$(PY) -m bench.reports $(ARGS)

format: $(VENV)/.dev ## put the sources into shape
	$(PY) -m ruff format $(SOURCES)
	$(PY) -m ruff check --fix $(SOURCES)

tox: $(VENV)/.dev ## the fast tests on each Python that is here
	@# pyenv shows no Python but those that it is told to: all that tox.ini may want.
	PYENV_VERSION="$${PYENV_VERSION:-$$(pyenv versions --bare 2>/dev/null | grep -E '^3\.1[123]\.[0-9]+$$' | paste -sd:)}" $(PY) -m tox run $(ARGS)

clean: ## remove what was built; data stays
	rm -rf $(VENV) .tox build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
	rm -f compat/records/_kernel.c compat/records/_kernel*.so gateway/protocol/wire/_plain.c gateway/protocol/wire/_plain*.so

# One environment in three sizes; a larger one holds all of a smaller.
$(VENV)/.made:
	@command -v $(PYTHON) >/dev/null || { echo "There is no $(PYTHON) here; say which Python to use: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$(PYTHON) is $$($(PYTHON) -V 2>&1), and 3.11 or newer is needed; say which to use: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV) || { echo "No environment could be made; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@touch $@

$(VENV)/.serve: $(VENV)/.made $(INPUTS)
	$(PIP) install -q -e .
	@touch $@

$(VENV)/.test: $(VENV)/.made $(INPUTS)
	$(PIP) install -q -e '.[test]'
	@touch $(VENV)/.serve $@

$(VENV)/.report: $(VENV)/.made $(INPUTS)
	$(PIP) install -q -e '.[test,report]'
	@touch $(VENV)/.serve $(VENV)/.test $@

$(VENV)/.dev: $(VENV)/.made $(INPUTS)
	$(PIP) install -q -e '.[test,dev]'
	@touch $(VENV)/.serve $(VENV)/.test $@
