# Everything below works on a fresh machine: each target calls setup first, and setup does nothing when all is in place.
PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest -q
# Two workers at a time, each takes a whole file: fixtures are made once per worker, and tests of a file go in order.
WORKERS := -n 2 --dist loadfile

.PHONY: setup java demo test test-quick check test-compat test-spark43 test-connect test-spark-smoke compat-table test-full bench bench-paths bench-spark bench-lake bench-bystander soak sim sync proto lock docs dist clean

setup: .venv/.ready

# The kernels are compiled when a C compiler is there; without one the same source runs as plain Python, and syncs of
# RocksDB keep the GIL.
COMPILED := setup.py $(wildcard src/fluss/kernels/*.py) src/fluss/storage/_unlocked_syncs.c
.venv/.ready: pyproject.toml requirements.lock requirements-pyfluss.lock $(COMPILED)
	@echo "Installing Python packages, Spark among them, in .venv: minutes the first time, nothing after that..."
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements.lock
	@echo "Building the package..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps -e .
	@touch $@

# Spark needs a Java runtime of version 17 or later.
java:
	@sh tools/ensure-java.sh

demo: setup java
	@$(BIN)/python examples/pipeline.py

# What programs can check; with BASE=<commit> also the commits since then.
check: setup
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/python -m tools.unasync --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m tools.tidy $(if $(BASE),--since $(BASE))

# What needs neither Spark nor another program: run it after each change.
test-quick: setup
	$(PYTEST) $(WORKERS) -m "not compat and not full" tests/unit

test: setup java
	$(BIN)/python -m tests.peers.environments pyfluss s3
	$(PYTEST) $(WORKERS) -m "not compat and not full"

test-compat: setup java test-spark43 test-connect
	$(BIN)/python -m tests.peers.environments pyfluss java
	$(PYTEST) $(WORKERS) -m "compat and not full"

# The other version of Spark, in an environment of its own; what does not depend on it runs in `test` alone.
test-spark43: setup java
	$(BIN)/python -m tests.peers.environments spark43 s3
	.peers/spark43/bin/python -m pytest -q $(WORKERS) -m "not compat and not full" tests/spark \
		--ignore tests/spark/test_stream_crash.py --ignore tests/spark/test_pipeline.py

# The everyday programs with Spark in another process.
test-connect: setup java
	SPARK_API_MODE=connect $(PYTEST) tests/spark/everyday

# The versions of Spark that may be installed and are tried no further.
test-spark-smoke: setup java
	$(BIN)/python -m tests.peers.environments spark40 spark42
	.peers/spark40/bin/python -m pytest -q tests/spark/test_smoke.py
	.peers/spark42/bin/python -m pytest -q tests/spark/test_smoke.py

# Writes docs/compatibility.md from what passed; a run with failures leaves it alone.
compat-table: setup java
	$(BIN)/python -m tests.peers.environments pyfluss java
	$(PYTEST) -m "not full" tests/behaviour tests/compat --compat-table docs/compatibility.md

test-full: setup java test-spark-smoke
	$(BIN)/python -m tests.peers.environments pyfluss s3 java
	$(PYTEST) -m "full"

# Half an hour on two cores; `.venv/bin/python -m benchmarks.run --help` has smaller runs.
bench: bench-spark bench-lake bench-paths

bench-paths: setup java
	$(BIN)/python -m tests.peers.environments pyfluss kafka
	$(BIN)/python -m benchmarks.run

bench-spark: setup java
	$(BIN)/python -m benchmarks.spark

bench-lake: setup java
	$(BIN)/python -m benchmarks.lake

# How long lookups of one table wait while the server does something large for others: ten minutes.
bench-bystander: setup
	$(BIN)/python -m benchmarks.bystander

# Hours of mixed load, and whether memory, descriptors, threads or files grow.
HOURS ?= 2
soak: setup
	$(BIN)/python -m benchmarks.soak --hours $(HOURS)

# Clients, a server and its disk from one seed after another, with faults; a failing seed is printed as a command.
SECONDS ?= 600
sim: setup
	$(BIN)/python -m fluss.testing.sim --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

# The blocking classes of the API, made of the awaited ones; kept in the tree.
sync: setup
	$(BIN)/python -m tools.unasync

# The generated code is kept in the tree. An old compiler is used on purpose: its output runs on every protobuf runtime
# from 4.25 on, and Spark Connect pins one of its own.
proto:
	$(PYTHON) -m venv .peers/protoc
	.peers/protoc/bin/python -m pip install -q --disable-pip-version-check "grpcio-tools==1.62.3" "setuptools<70"
	.peers/protoc/bin/python -m grpc_tools.protoc -Isrc --python_out=src --pyi_out=src fluss/protocol/messages.proto

# Needs uv. The lock files name versions and the hashes of their files, and no package index. Versions that are locked stay
# unless pyproject.toml excludes them: add UPGRADE=--upgrade for newer ones.
LOCK = uv pip compile $(UPGRADE) --no-header --no-annotate --generate-hashes --python-version 3.11
lock:
	$(LOCK) pyproject.toml --group dev -o requirements.lock
	$(LOCK) pyproject.toml --group spark40 -o requirements-spark40.lock
	$(LOCK) pyproject.toml --group spark42 -o requirements-spark42.lock
	$(LOCK) pyproject.toml --group spark43 -o requirements-spark43.lock
	$(LOCK) --group pyfluss -o requirements-pyfluss.lock
	$(LOCK) --group kafka -o requirements-kafka.lock
	$(LOCK) --group s3 -o requirements-s3.lock

# The documentation as a site, in site/.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

dist: setup
	$(BIN)/python -m build --no-isolation

clean:
	rm -rf build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
