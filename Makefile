# Every target sets up what it needs; the first run takes a minute or two, later ones nothing.
BIN := .venv/bin
PINNED := pyproject.toml constraints.txt scripts/setup

.PHONY: help setup demo test test-long check docs package bench faults kafka kafka-stop kafka-wipe clean

help:
	@echo "make demo        watch bundled agent runs being judged, no broker needed"
	@echo "make test        all tests; those with Kafka start a broker of their own"
	@echo "make test-long   the tests that take long as well, and more examples of every property"
	@echo "make check       lint, format, types, layers"
	@echo "make docs        the documentation as a site, in build/site; every warning is an error"
	@echo "make package     wheel and sdist, tried in an empty environment (some minutes)"
	@echo "make bench       what one step costs on this machine"
	@echo "make faults      kill workers and brokers under load, compare all verdicts (half an hour)"
	@echo "make kafka       a local Kafka in the background; make kafka-stop ends it, make kafka-wipe with its data"
	@echo "make setup       only install, into .venv"
	@echo "make clean       remove .venv, caches and the local Kafka with its data"

setup: .venv/.installed-dev

.venv/.installed: $(PINNED)
	scripts/setup base

.venv/.installed-dev: $(PINNED)
	scripts/setup dev

demo: .venv/.installed
	$(BIN)/ontrack demo

test: .venv/.installed-dev
	@scripts/test

test-long: .venv/.installed-dev
	@scripts/test long
	@scripts/package

check: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=.typing $(BIN)/mypy --strict --config-file= --follow-imports=silent \
		--cache-dir=.mypy_cache/user tests/typing/public_api.py
	$(BIN)/lint-imports

docs: .venv/.installed-dev
	@$(BIN)/python scripts/docs && echo "docs: build/site/index.html"

package: .venv/.installed-dev
	@scripts/package

bench: .venv/.installed-dev
	$(BIN)/ontrack bench step

faults: .venv/.installed-dev
	$(BIN)/python -m tests.simulation.campaign

kafka:
	@scripts/kafka start

kafka-stop:
	@scripts/kafka stop

kafka-wipe:
	@scripts/kafka wipe

clean:
	scripts/kafka wipe
	rm -rf .venv .kafka .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis \
		.import_linter_cache build dist ontrack.egg-info
