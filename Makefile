# Needs git, make, a C compiler and Python 3.11 or newer (make PYTHON=/path/to/python selects one).
# `make` without a target lists the targets.

VENV = .venv
TOX_VENV = .cache/tox
DEV_VENV = .cache/dev
DOCS_VENV = .cache/docs-venv
EXTENSIONS = $(shell find cyproducer -name '*.pyx' -o -name '*.pxd' -o -name '*.h')
SOURCES = pyproject.toml setup.py $(shell find cyproducer -name '*.py' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.h')

.PHONY: help dev t demo demo-spark docs plots test test-all fresh simulate lint fuzz mutants soak stress-threads exactly-once spark-exactly-once brokers nightly perf languages gate clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 18

dev: $(DEV_VENV)/stamp  ## set up for development: an editable install in .cache/dev, and pre-commit

t: $(DEV_VENV)/built  ## rebuild what changed and run the quick tests: make t T=tests/accumulator (slow ones: T="... -m slow")
	@CYPRODUCER_HYPOTHESIS=quick CYPRODUCER_HISTORIES=$(or $(CYPRODUCER_HISTORIES),40) \
		$(DEV_VENV)/bin/python -m pytest -q --numprocesses auto --dist worksteal -m "not kafka and not slow" $(or $(T),tests)

demo: $(VENV)/stamp  ## produce Python's standard library to an embedded broker
	@# -P: import the installed package, not the sources in this directory.
	@$(VENV)/bin/python -P -m cyproducer demo

demo-spark: $(VENV)/spark-stamp  ## over a million lines through Spark to a real Kafka and back (needs Java, Maven)
	@$(VENV)/bin/python -P demo_spark/run.py $(DEMO)

docs: $(DOCS_VENV)/stamp  ## build the documentation site in site/ (no compiler needed)
	@# Without --quiet, which hides warnings also from --strict.
	@NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/python -P -m mkdocs build --strict
	@echo "$(CURDIR)/site/index.html (its search needs a server: python -m http.server -d site)"

plots: $(VENV)/perf-stamp  ## draw docs/plots/ from the tables of the pages, without measuring
	@$(VENV)/bin/python -P perf/published.py

test: $(TOX_VENV)/stamp  ## lint, types, quick tests on one Python, the package; ten minutes
	@$(TOX_VENV)/bin/python tools/run_tox.py

test-all: $(TOX_VENV)/stamp  ## what `make test` leaves out: slow tests, every Python of this machine, a real Kafka
	@$(TOX_VENV)/bin/python tools/run_tox.py all

fresh:  ## `make demo` and `make test` on bare Debian 12, 13 and sid (root, debootstrap); FRESH="--clang trixie make test"
	@python=$$(PYTHON='$(PYTHON)' tools/find_python.sh) && "$$python" tools/bare_debian.py $(or $(FRESH),bookworm,trixie,sid)

simulate: $(TOX_VENV)/stamp  ## 100,000 simulated histories, and as many of transactions, an hour; CYPRODUCER_HISTORIES=N for N
	@$(TOX_VENV)/bin/python tools/run_tox.py -e simulate

lint: $(TOX_VENV)/stamp  ## ruff, cython-lint, mypy and stubtest
	@$(TOX_VENV)/bin/python tools/run_tox.py -e lint,types

fuzz: $(TOX_VENV)/stamp  ## fuzz the parsers of broker responses with ten million inputs, under sanitizers
	@$(TOX_VENV)/bin/python tools/run_tox.py -e fuzz -- --inputs 10000000

mutants: $(TOX_VENV)/stamp  ## mutation testing: breaks lines, reports undetected ones; MUTANTS="NAME ..." for some
	@$(TOX_VENV)/bin/python tools/run_tox.py -e mutants -- $(MUTANTS)

soak: $(VENV)/$(if $(findstring --secured,$(SOAK)),perf-)stamp  ## 200 million records against a broker that fails all the time (some minutes); SOAK=--secured: with SASL_SSL
	@$(VENV)/bin/python -P perf/soak.py $(SOAK)

stress-threads: $(VENV)/stamp  ## random calls from many threads: each record once and in order; SECONDS=60 by default
	@$(VENV)/bin/python -P tests/integration/stress_threads.py --seconds $(or $(SECONDS),60)

exactly-once: $(VENV)/stamp  ## 200 kills of brokers and of processes that copy a topic (half an hour); EXACTLY_ONCE="--kills 20"
	@$(VENV)/bin/python -P tests/integration/exactly_once.py $(EXACTLY_ONCE)

spark-exactly-once: $(VENV)/spark-stamp  ## 100 kills of the driver of an exactly-once stream (half an hour); SPARK_ONCE="--kills 20 --nodes 3"
	@$(VENV)/bin/python -P tests/integration/spark_once.py $(SPARK_ONCE)

brokers: $(VENV)/stamp  ## the main promises against Kafka 2.8, 3.9, 4.0 and 4.4 (some minutes); BROKERS="--versions 3.9.1"
	@$(VENV)/bin/python -P tests/integration/broker_versions.py $(BROKERS)

nightly: $(TOX_VENV)/stamp  ## more faults of Spark's exactly-once than `make test` has (15 min)
	@$(TOX_VENV)/bin/python tools/run_tox.py -e nightly

perf: $(VENV)/perf-stamp  ## compare with other producers: tables, plots, goals; PERF="--quick" is short
	@$(VENV)/bin/python -P perf/compare.py $(PERF)

languages: $(VENV)/perf-stamp  ## compare CPU per record with clients of Go, C, Java and Rust; LANGUAGES="--rounds 3"
	@$(VENV)/bin/python -P perf/languages/languages.py $(LANGUAGES)

gate: $(TOX_VENV)/stamp  ## compare instructions per record, counted by valgrind, with stored bounds
	@$(TOX_VENV)/bin/python tools/run_tox.py -e gate

clean:  ## remove what was built, installed and downloaded
	rm -rf build dist site *.egg-info .venv .tox .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find cyproducer pytest_cyproducer demo_spark perf tests tools -name __pycache__ -prune -exec rm -rf {} +
	find cyproducer \( -name '*.so' -o -name '*.c' \) -exec rm -f {} +

$(VENV)/stamp: $(SOURCES) tools/find_python.sh tools/check_python.py
	@python=$$(PYTHON='$(PYTHON)' tools/find_python.sh) && \
	echo "Building cyproducer with $$python (a minute or two; only after changes)" && \
	test -x $(VENV)/bin/python || "$$python" -m venv $(VENV)
	@# setuptools packs everything in build/lib.*, including modules that no longer exist in the sources.
	@rm -rf build/lib.* build/bdist.*
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check '.[testing]'
	@touch $@

$(DEV_VENV)/stamp: pyproject.toml setup.py tools/find_python.sh tools/check_python.py
	@python=$$(PYTHON='$(PYTHON)' tools/find_python.sh) && \
	echo "Installing the development dependencies with $$python (some minutes, once)" && \
	{ test -x $(DEV_VENV)/bin/python || "$$python" -m venv $(DEV_VENV); }
	@# Dependency groups need a newer pip than many Pythons come with.
	@$(DEV_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(DEV_VENV)/bin/python -m pip install --quiet --group dev
	@CYPRODUCER_DEV=1 PYTHONWARNINGS=ignore $(DEV_VENV)/bin/python -m pip install --quiet --no-build-isolation --editable '.[testing]'
	@if test -d .git; then $(DEV_VENV)/bin/pre-commit install >/dev/null; fi
	@touch $@

$(DOCS_VENV)/stamp: pyproject.toml tools/find_python.sh tools/check_python.py
	@python=$$(PYTHON='$(PYTHON)' tools/find_python.sh) && \
	echo "Installing what builds the documentation with $$python (half a minute, once)" && \
	{ test -x $(DOCS_VENV)/bin/python || "$$python" -m venv $(DOCS_VENV); }
	@$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(DOCS_VENV)/bin/python -m pip install --quiet --group docs
	@touch $@

$(DEV_VENV)/built: $(DEV_VENV)/stamp $(EXTENSIONS)
	@# If only sources of extensions have changed, and nothing that others include, only these are built.
	@CYPRODUCER_DEV=1 CYPRODUCER_ONLY="$(if $(filter-out %.pyx,$?),,$?)" \
		$(DEV_VENV)/bin/python setup.py --quiet build_ext --inplace
	@touch $@

# The package is already installed in this version: pip only installs the extra's dependencies.
$(VENV)/perf-stamp: $(VENV)/stamp
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check 'cyproducer[perf]'
	@touch $@

$(VENV)/spark-stamp: $(VENV)/stamp
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check 'cyproducer[testing,spark]'
	@touch $@

$(TOX_VENV)/stamp: Makefile tools/find_python.sh tools/check_python.py
	@python=$$(PYTHON='$(PYTHON)' tools/find_python.sh) && "$$python" -m venv --clear $(TOX_VENV)
	@$(TOX_VENV)/bin/python -m pip install --quiet --disable-pip-version-check 'tox>=4.22,<5' 'build>=1.2'
	@touch $@
