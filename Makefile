# Everything starts here; each target makes what it needs first. `make` alone lists them.
.DEFAULT_GOAL := help
BIN := .venv/bin
# Processes that run tests beside each other: more than cores, as many tests wait for Airflow or for a lease to lapse. With four, two
# cores idled for a fifth of the time; six take up to 16 GB.
WORKERS ?= 6
# Where PYTHONDONTWRITEBYTECODE is set, each of them would compile all tests: 7 s of CPU.

.PHONY: help env up down demo stack test check format bench clean

help:     ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 12

env:      ## make .venv and install what is missing
	@scripts/env.sh

demo: env ## the main job on real data, under a real scheduler, accounted for to the last event
	@$(BIN)/python -m conduit_tasks.demo

up: env   ## start the embedded stack, with the UI
	@$(BIN)/conduit stack up

down: env ## stop it gracefully: what is in flight is delivered first
	@$(BIN)/conduit stack down; code=$$?; $(BIN)/python -m conduit_tasks.demo stop; exit $$code

stack: env ## the same in containers on two Spark workers, with kills on the way; STACK="--spool s3" or --keep
	@$(BIN)/python -m conduit_tasks.trial $(STACK)

test:     ## all tests; ONLY="not slow or proves": those of these marks (CONTRIBUTING.md)
	@scripts/env.sh --tests
	@PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n $(WORKERS) --no-loadscope-reorder --junitxml=.pytest_cache/report.xml $(if $(ONLY),-m "$(ONLY)")

check: env ## format, lint, types (Python, and the pages' JavaScript) and known vulnerabilities
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@scripts/js.sh
	@PATH="$(CURDIR)/$(BIN):$$PATH" scripts/js/node_modules/.bin/tsc -p scripts/js
	@$(BIN)/python scripts/audit.py

format: env ## put the code in form
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: env ## compare with hand-written jobs; tables
	@$(BIN)/python -m benchmarks

clean:    ## remove what was made (not .venv), the stack's state included
	rm -rf .conduit out include/data/flights .pytest_cache .mypy_cache .ruff_cache
