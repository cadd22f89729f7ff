# `make help` lists the targets. ARGS has options for the target's command:
# make serve ARGS="--node-id 3".

PYTHON ?= python3
ARGS ?=

# Compiled modules are reused by later processes: without them each worker, gateway and Spark
# executor that a test starts compiles all modules again.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
PY := $(VENV)/bin/python
# The constraints also apply to build dependencies: older versions of pip read PIP_CONSTRAINT for
# these, newer ones PIP_BUILD_CONSTRAINT.
PIP := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
	$(PY) -m pip --disable-pip-version-check --no-input
SOURCES := gateway auth compat records storage reports tests bench
# The environment is updated when one of these changes; the packages are installed in editable mode.
INPUTS := pyproject.toml constraints.txt \
	$(wildcard setup.py records/*.p[yx][xi] records/*.h gateway/protocol/wire/*.p[yx][xi] \
	gateway/*.pyx gateway/fetch/*.pyx storage/*.p[yx][xd] storage/lmdb/*.p[yx][xi] \
	storage/pulsar/client/*.p[yx][xi] \
	storage/pulsar/client/*.h)

# python-gssapi is built from source, with the headers of libkrb5-dev. Without it the tests of
# Kerberos are skipped; in CI they fail.
comma := ,
KERBEROS := $(if $(shell command -v krb5-config 2>/dev/null),$(comma)gssapi)
# With optimization it takes a minute to build instead of 20 s.
export GSSAPI_COMPILER_ARGS := $(shell krb5-config --cflags gssapi 2>/dev/null) -O0

# Recreate an environment whose Python does not run any more (upgraded, or copied from another
# machine).
ifneq ($(wildcard $(VENV)/.made),)
ifneq ($(shell $(PY) -c 'print("here")' 2>/dev/null),here)
$(shell rm -f $(VENV)/.made)
endif
endif

# Tests with real peers: each file runs in one worker; failed tests run again, alone, at the end
# (tests/reruns.py).
PEERS := --dist loadfile --no-loadscope-reorder --rerun-failed-peers

.DEFAULT_GOAL := help
.PHONY: help serve pulsar test check lint format bench bench-path bench-groups bench-shared \
	bench-pulsar bench-traffic bench-logins bench-idle bench-cluster bench-workers slow legacy \
	fingerprints tox clean spark spark-3.5 picture bench-reports demo chaos fuzz restarts \
	sanitize style types

## list the targets
help:
	@awk '/^## / { text = text substr($$0, 3); next } \
		text { split($$0, name, ":"); printf "%-14s%s\n", name[1], substr(text, 2); text = "" }' \
		$(MAKEFILE_LIST)

## start a gateway on 127.0.0.1:9092, data in ./data (ARGS: options of `kopgate serve`)
serve: $(VENV)/.serve
	@exec $(PY) -m gateway serve $(ARGS)

## start Apache Pulsar on 127.0.0.1:6650 (admin API: 8080), data in ./data-pulsar (ARGS: --port,
## --web-port, --data, --memory)
pulsar: $(VENV)/.test
	@exec $(PY) -m tests.testkit.standalone $(ARGS)

## lint, and fast tests with fewer examples per property, except long ones (about a minute)
check: lint
	$(PY) -m pytest -q -n 2 --dist worksteal \
		-m "not peer and not slow and not spark and not long" --hypothesis-profile=quick $(ARGS)

## check format, lint, types and prose
lint: $(VENV)/.dev
	@$(MAKE) --no-print-directory --jobs 2 --output-sync types style

types: $(VENV)/.types
	$(PY) -m mypy

style: $(VENV)/.dev
	$(PY) -m ruff format --check $(SOURCES)
	$(PY) -m ruff check $(SOURCES)
	$(PY) -m tests.prose

## all tests except slow and spark, including real clients and brokers
test: $(VENV)/.test
	$(PY) -m pytest -q -n 4 $(PEERS) -m "not slow and not spark" $(ARGS)

## tests that take minutes each, and properties with 1,000 examples
slow: $(VENV)/.report
	$(PY) -m pytest -q -n 3 $(PEERS) -m slow $(ARGS)
	$(PY) -m pytest -q -n 2 -m "hypothesis and not peer and not slow and not spark" \
		--hypothesis-profile=long $(ARGS)

## tests of the reports with PySpark (400 MB) and Java
spark: $(VENV)/.report
	$(PY) -m pytest -q -n 2 $(PEERS) -m "spark and not slow" $(ARGS)

## the same on PySpark 3.5, without real clients, which do not depend on the version
spark-3.5: $(VENV)/.spark-3.5 $(VENV)/.dev
	@# On Python 3.12, PySpark 3.5 needs setuptools, which `.dev` has.
	PYTHONPATH=$(CURDIR)/$(VENV)/pyspark-3.5 $(PY) -m pytest -q -n 2 $(PEERS) \
		-m "spark and not peer and not slow" $(ARGS)

## tests with real clients, and a table of the results (ARGS: --store pulsar, --client NAME,
## --every-pair, --reference for Apache Kafka)
legacy: $(VENV)/.test
	$(PY) -m pytest -q -n auto --dist loadfile tests/legacy_clients -m peer --grid $(ARGS)

## run old and new clients against a gateway with a traffic log, and report on them (2 minutes;
## ARGS: --out DIR, --target NAME)
demo: $(VENV)/.report
	@$(PY) -m tests.legacy_clients.demo $(ARGS)

## make the picture of the report page in the README (needs chromium)
picture: $(VENV)/.test
	@$(PY) -m tests.reports.page.picture

## record what each client sends in compat/fingerprint/observed.jsonl (40 minutes; ARGS: --help)
fingerprints: $(VENV)/.test
	$(PY) -m tests.legacy_clients.fingerprints.record $(ARGS)

## kill, pause and restart gateways and Pulsar under load (5 minutes; ARGS: --seed N, --minutes N or
## --rounds N, --store NAME, --gateways N, --plot FILE)
chaos: $(VENV)/.test
	$(PY) -m tests.peers.chaos $(ARGS)

## restart and kill three gateways in turn under every real client (20 minutes; ARGS: -k NAME)
restarts: $(VENV)/.test
	$(PY) -m pytest -q -s -m slow tests/peers/cluster/test_clients_during_restarts.py $(ARGS)

FUZZED := agreement entry_points whole entries requests chunks journal recovery messages

## fuzz the parsers of foreign bytes with atheris (ARGS: --seconds N for each of nine targets,
## --seed N)
fuzz: $(VENV)/.test
	$(PIP) install -q --only-binary :all: atheris
	@for target in $(FUZZED); do \
		$(PY) -m tests.fuzz.fuzzer --target $$target $(ARGS) || exit 1; done

# The build of the modules takes two minutes.
SANITIZED := build/sanitized
SANITIZERS := -fsanitize=address,undefined -fno-sanitize-recover=undefined

## fuzz the same without atheris, with the compiled modules built for the sanitizers of gcc, which
## report reads beyond buffers and undefined behaviour (ARGS: as for fuzz)
sanitize: $(SANITIZED)/.made
	@for target in $(FUZZED); do \
		LD_PRELOAD=$$(gcc -print-file-name=libasan.so) PYTHONMALLOC=malloc \
		ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
		$(PY) -m tests.fuzz.fuzzer --plain --modules $(SANITIZED) --target $$target $(ARGS) \
		|| exit 1; done

$(SANITIZED)/.made: $(VENV)/.dev $(INPUTS)
	CC=gcc LDFLAGS="$(SANITIZERS)" \
		KOPGATE_COMPILER_FLAGS="-O1 -g -UNDEBUG -fno-omit-frame-pointer -fno-wrapv $(SANITIZERS)" \
		$(PY) setup.py -q build_ext --build-lib $(SANITIZED) --build-temp $(SANITIZED)/objects
	@touch $@

## benchmark beside Apache Kafka, results in docs/benchmarks.md (25 minutes;
## ARGS: --beside CHECKOUT, --help)
bench: $(VENV)/.test
	$(PY) -m bench $(ARGS)

## benchmark one request without sockets: CPU time, or instructions (1 minute; ARGS: --help)
bench-path: $(VENV)/.test
	$(PY) -m bench.produce_path $(ARGS)

## benchmark 1,000 consumer groups of 4 members (2 minutes; ARGS: --kafka, --beside CHECKOUT,
## --help)
bench-groups: $(VENV)/.test
	$(PY) -m bench.groups $(ARGS)

## benchmark different requests on one connection, such as commits during a long poll (20 minutes;
## ARGS: --kafka, --beside CHECKOUT, --help)
bench-shared: $(VENV)/.test
	$(PY) -m bench.shared $(ARGS)

## benchmark the gateway on Apache Pulsar beside a native client (10 minutes;
## ARGS: --beside CHECKOUT, --help)
bench-pulsar: $(VENV)/.test
	$(PY) -m bench.pulsar $(ARGS)

## benchmark the cost of the traffic log (10 minutes; ARGS: --help)
bench-traffic: $(VENV)/.test
	$(PY) -m bench.traffic $(ARGS)

## benchmark log-ins by SASL mechanism (2 minutes; ARGS: --help)
bench-logins: $(VENV)/.test
	$(PY) -m bench.logins $(ARGS)

## measure the memory of a gateway per idle connection (3 minutes; ARGS: --help)
bench-idle: $(VENV)/.test
	$(PY) -m bench.logins.idle $(ARGS)

## measure how long producers wait when one of three gateways stops (15 minutes; ARGS: --help)
bench-cluster: $(VENV)/.test
	$(PY) -m bench.cluster $(ARGS)

## benchmark several workers of one machine beside one, as root (8 minutes; ARGS: --help)
bench-workers: $(VENV)/.test
	$(PY) -m bench.cluster.workers $(ARGS)

## benchmark reports on 1 and 10 million usage rows (ARGS: --help)
bench-reports: $(VENV)/.report
	$(PY) -m bench.reports $(ARGS)

## format the sources
format: $(VENV)/.dev
	$(PY) -m ruff format $(SOURCES)
	$(PY) -m ruff check --fix $(SOURCES)

## fast tests on each installed Python version
tox: $(VENV)/.dev
	@# pyenv provides only the versions in PYENV_VERSION: list all that tox.ini may use.
	PYENV_VERSION="$${PYENV_VERSION:-$$(pyenv versions --bare 2>/dev/null \
		| grep -E '^3\.1[123]\.[0-9]+$$' | paste -sd:)}" $(PY) -m tox run $(ARGS)

## remove environments and build output; keeps data
clean:
	rm -rf $(VENV) .tox build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
	rm -f records/_kernel.c records/_kernel*.so
	rm -f gateway/protocol/wire/_plain.c gateway/protocol/wire/_plain*.so
	rm -f gateway/_reactor.c gateway/_reactor*.so
	rm -f gateway/fetch/_entry_loops.c gateway/fetch/_entry_loops*.so
	rm -f gateway/fetch/_reading.c gateway/fetch/_reading*.so
	rm -f storage/_bridge.c storage/_bridge*.so storage/_files.c storage/_files*.so
	rm -f storage/_log.c storage/_log*.so
	rm -f storage/lmdb/_frames.c storage/lmdb/_frames*.so
	rm -f storage/pulsar/client/_library.c storage/pulsar/client/_library*.so

# One environment with four sets of dependencies. Only `.serve` builds the package, which takes a
# minute; the others add what extras of the installed package require.
$(VENV)/.made:
	@command -v $(PYTHON) >/dev/null || { \
		echo "$(PYTHON) not found; choose another Python: make PYTHON=/path/to/python3.12" >&2; \
		exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$(PYTHON) is $$($(PYTHON) -V 2>&1), and 3.11 or newer is needed;" \
			"choose another: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV) || { \
		echo "cannot create a virtual environment; on Debian: apt-get install python3-venv" >&2; \
		exit 1; }
	@touch $@

# Without debug information, which takes a quarter of the compiler's time; the code is the same.
$(VENV)/.serve: $(VENV)/.made $(INPUTS)
	CFLAGS="$(CFLAGS) -g0" $(PIP) install -q -e .
	@touch $@

$(VENV)/.test: $(VENV)/.serve
	$(PIP) install -q 'kopgate[test$(KERBEROS)]'
	@touch $@

$(VENV)/.report: $(VENV)/.test
	$(PIP) install -q 'kopgate[report]'
	@touch $@

$(VENV)/.dev: $(VENV)/.test
	$(PIP) install -q 'kopgate[dev]'
	@touch $@

# What mypy reads, so that it can run while `.serve` compiles.
$(VENV)/.types: $(VENV)/.made pyproject.toml constraints.txt
	@$(PY) -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
		print(*project["dependencies"], *project["optional-dependencies"]["dev"], sep="\n")' \
		| $(PIP) install -q -r /dev/stdin
	@touch $@

# A folder in front of the environment's own PySpark. Without the constraints, which pin that one.
$(VENV)/.spark-3.5: $(VENV)/.made
	$(PY) -m pip --disable-pip-version-check --no-input install -q --upgrade \
		--target $(VENV)/pyspark-3.5 'pyspark>=3.5,<3.6'
	@touch $@
