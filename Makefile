# make demo   set up what is missing, then the demo: under two minutes from a fresh clone (not counting downloads)
# make test   set up what is missing, then the tests
# make test-fast  a sample of them, in about a minute (tests/conftest.py says which)
# make test-all  these in full (databases, samples), and programs of the libraries that are installed (`pip install -e .[libraries]`)
# make test-gpu  the tests that need a GPU
# make fuzz   random programs, eager against jitted, for MINUTES=n (default 10)
# make matrix the tests on every CPython from 3.11 on that is found
# make sanitize  a sample of the tests under AddressSanitizer and UndefinedBehaviorSanitizer (ALL=1: all of them)
# make sanitize-threads  eight threads in the native runtime under ThreadSanitizer
# make lint   ruff, the type checker, the size of the product code, and the documentation: its language and its site
# make bench  every benchmark, against eager and torch.compile
# make clean  remove build products (the environment stays; `make distclean` removes it too)
#
# VENV=path uses another environment, PYTHON=path another interpreter to make it from, JOBS=n that many test processes.

VENV ?= .venv
PY := $(VENV)/bin/python
INSTALLED := $(VENV)/.jitpy-installed
TOOLS := $(VENV)/.jitpy-tools
BUILT := $(VENV)/.jitpy-built
STAGE := @bash tools/stage.sh
NATIVE := $(shell find jitpy/native -type f 2>/dev/null) $(wildcard jitpy/runtime/native_build.py)
JOBS ?= $(shell nproc 2>/dev/null || echo 2)

.PHONY: setup demo test test-fast test-all test-gpu fuzz matrix sanitize sanitize-threads lint bench doctor clean distclean

setup: $(TOOLS) $(BUILT)

$(INSTALLED): pyproject.toml tools/setup.sh
	$(STAGE) "pip" env VENV=$(VENV) PYTHON=$(PYTHON) bash tools/setup.sh
	@touch $@

$(TOOLS): $(INSTALLED)
	$(STAGE) "pip, for development" env VENV=$(VENV) PYTHON=$(PYTHON) bash tools/setup.sh dev
	@touch $@

$(BUILT): $(INSTALLED) $(NATIVE)
	$(STAGE) "native build" $(PY) -m jitpy build
	@touch $@

demo: $(BUILT)
	$(STAGE) "demo" env JITPY_RAISE=1 $(PY) -m examples.demo

test: setup
	$(PY) -m pytest -n $(JOBS) --dist loadfile -m "not extended" tests

test-fast: setup
	$(PY) -m pytest -n $(JOBS) --dist loadfile -m "not extended and not slow" --fast tests

test-all: setup
	JITPY_TEST_ALL=1 $(PY) -m pytest -n $(JOBS) --dist loadfile tests

test-gpu: setup
	$(PY) -m pytest tests/gpu

fuzz: setup
	$(PY) -m tests.fuzz --minutes $(or $(MINUTES),10)

matrix:
	@JOBS=$(JOBS) bash tools/matrix.sh

sanitize: setup
	$(PY) -m tools.sanitize $(if $(ALL),--all --jobs $(JOBS))

sanitize-threads: setup
	$(PY) -m tools.sanitize --threads

lint: $(TOOLS)
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(PY) tools/sizes.py
	$(PY) tools/prose.py
	$(PY) -m mkdocs build --strict --quiet -d $(VENV)/site

bench: setup
	$(PY) -m benchmarks.run

doctor: setup
	$(PY) -m jitpy doctor

clean:
	rm -rf build dist *.egg-info .ruff_cache .mypy_cache .hypothesis $(INSTALLED) $(TOOLS) $(BUILT)
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -print | xargs rm -rf

distclean: clean
	rm -rf $(VENV)
