# One command per job.  Everything is installed into this folder, or with the distribution's packages as root.

.DEFAULT_GOAL := help
.PHONY: help setup services up down status test test-unit test-infra sbom audit test-reshape test-anger test-upgrade test-move test-new-hub test-alerts test-http2 test-gateways test-apis check format sim sim-long sim-table mutants bench page-long pictures chaos clean

RUN := .venv/bin/python
ARGS ?=
TESTS ?= tests
BENCH ?=
CASES ?=
SEEDS ?= 0-1999
SYSTEM ?= 0-39
SECONDS ?= 1200
SEED ?= 1

help:  ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  make up ARGS='--base-port 9100 --dir .local/second'   options: apportion local up --help"
	@echo "  make test TESTS=tests/unit                            only some of the tests"

setup: .venv/.installed  ## make .venv, with uv (installed if need be)

.venv/.installed: pyproject.toml uv.lock infra/setup.sh
	@./infra/setup.sh

services: setup  ## find or install Redis and Kafka
	@$(RUN) -m infra.install redis kafka

up: setup  ## three regions, Kafka, control API, dashboard and traffic; Ctrl-C ends them
	@$(RUN) -m infra.local up $(ARGS)

down: setup  ## end what `make up` started
	@$(RUN) -m infra.local down $(ARGS)

status: setup  ## what runs of it
	@$(RUN) -m infra.local status $(ARGS)

test: setup  ## install what the tests need, and run them
	@$(RUN) -m infra.install redis kafka chromium nginx haproxy node envoy h2spec namespaces axe
	@$(RUN) -m infra.deploy_tools
	$(RUN) $(if $(filter tests,$(TESTS)),-m tests.lanes,-m pytest $(TESTS))

test-unit: setup  ## only the tests that need neither Redis nor Kafka
	$(RUN) -m pytest tests/unit tests/architecture tests/golden

test-infra: setup  ## only what is deployed: chart, overlays, containers, units, scripts
	@$(RUN) -m infra.install redis
	@$(RUN) -m infra.deploy_tools
	$(RUN) -m pytest tests/infra

test-upgrade: setup  ## every region a version back and forward under load, ten minutes of them mixed
	@$(RUN) -m infra.install redis kafka
	$(RUN) -m pytest tests/e2e/long_upgrade.py

test-move: setup  ## the hub moves to other brokers under load, by the commands of docs/topologies.md
	@$(RUN) -m infra.install redis kafka kafka-tools
	$(RUN) -m pytest -s tests/e2e/long_moved_hub.py

test-new-hub: setup  ## the hub is lost and another begins with an empty log, by the commands of docs/topologies.md
	@$(RUN) -m infra.install redis kafka
	$(RUN) -m pytest -s tests/e2e/long_new_hub.py

test-alerts: setup  ## each alert's fault on a running system, a real Prometheus that fires, the runbook's commands
	@$(RUN) -m infra.install redis kafka
	$(RUN) -m pytest -s tests/e2e/long_alerts.py

test-http2: setup  ## only the HTTP/2 server of gRPC: conformance, fuzzing, clients
	@$(RUN) -m infra.install h2spec
	$(RUN) -m pytest tests/unit/rls tests/contract/test_h2spec.py

test-reshape: setup  ## a region's Redis that grows and moves under load
	@$(RUN) -m infra.install redis
	$(RUN) -m pytest tests/contract/long_reshape.py

test-anger: setup  ## only the tests that kill, stop and starve real brokers and servers, and the long ones of these
	@$(RUN) -m infra.install redis kafka
	$(RUN) -m pytest --durations 12 -o python_files='test_*.py long_*.py' tests/anger

test-gateways: setup  ## only the tests with real gateways in front
	@$(RUN) -m infra.install redis nginx haproxy caddy envoy
	GATEWAYS="nginx haproxy caddy envoy-ext-authz" $(RUN) -m pytest -o python_files='test_*.py long_*.py' tests/gateways

test-apis: setup  ## both APIs against their OpenAPI documents, with many more requests than `make test` sends
	APPORTION_TEST_EXAMPLES=200 $(RUN) -m pytest --timeout 3600 tests/contract/test_apis_as_documented.py

sim: setup  ## seeds of the simulated worlds and every directed schedule (SEEDS=a-b, SYSTEM=a-b)
	@$(RUN) -m tests.simulation seeds --shares $(SEEDS) --system $(SYSTEM)

sim-long: setup  ## 1,000,000 seeds, on every core; may be ended and goes on where it was
	@nice $(RUN) -m tests.simulation long $(ARGS)

sim-table: setup  ## what shares reach in five regions, beside their targets (CASES=flash: only those), some minutes
	@nice $(RUN) -m services.simulator.figures --only "$(CASES)"

mutants: setup  ## break each rule of the protocol: which directed schedule notices?
	@$(RUN) -m tests.simulation mutants

page-long: setup  ## eleven minutes of pages with many regions and rules: no long task, no growing heap
	@$(RUN) -m infra.install chromium
	@$(RUN) -m tests.browser.many 660

pictures: setup  ## pictures of every page from a running system; those of the documentation are renewed
	@$(RUN) -m infra.install redis kafka chromium
	@$(RUN) -m tests.browser.pictures

bench: setup  ## what checks cost, as ratios within one run (BENCH=http_checks: only that)
	@$(RUN) -m infra.install redis
	@$(RUN) -m tests.bench $(BENCH)

chaos: setup  ## the whole system in network namespaces, broken at random (SECONDS=1200 SEED=1), checked from outside
	@$(RUN) -m infra.install redis kafka namespaces
	@$(RUN) -m tests.chaos --seconds $(SECONDS) --seed $(SEED)

check: setup  ## lint, format and types: what CI runs before the tests
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

format: setup  ## format, and fix what ruff can
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

sbom: setup  ## what is deployed with us, as CycloneDX: dist/sbom.json
	@mkdir -p dist
	@uv=$$(command -v uv || echo .cache/uv/bin/uv); \
	$$uv export -q --frozen --no-dev --format cyclonedx1.5 --preview-features sbom-export -o dist/sbom.json >/dev/null

audit: setup  ## are vulnerabilities known of what is deployed with us? (asks the package index's database)
	@$(RUN) -m infra.audit $(ARGS)

clean:  ## remove what was installed into this folder (ends no process: make down does)
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
