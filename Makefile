# Thin targets: the same words for people and for CI. Python packages go to .venv and .cache, never to the system.

PYTHON ?= python3
VENV := .venv
comma := ,
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# What the demo imports: no linters, browsers or documentation tools. `setup` adds those to the same environment.
DEMO_READY := $(VENV)/.demo-ready
# The oldest versions we allow have wheels up to Python 3.12 only.
FLOORS_PYTHON ?= $(firstword $(shell for p in python3.11 python3.12; do $$p -c '' 2>/dev/null && echo $$p; done) $(PYTHON))
FLOORS := .cache/floors
FLOORS_READY := $(FLOORS)/.ready
COMPILED := .cache/compiled
COMPILED_READY := $(COMPILED)/.ready
COMPILED_PYTHON ?= $$($(PYTHON) benchmarks/fastest_python.py)

FUZZ := .cache/fuzz
FUZZ_READY := $(FUZZ)/.ready
MUTATION := .cache/mutation
MUTATION_READY := $(MUTATION)/.ready

SPARK_TESTS ?= tests/spark
# A version such as 4.0, which gets an environment of its own; without it, the newest, in .venv.
SPARK ?=
SPARK_VENV := $(if $(SPARK),.cache/spark-$(SPARK),$(VENV))
DAMAGE_CASES ?= 1000000
SIMULATE_S ?= 300
SOAK_S ?= 1800
# Figures of `make test-reliability`; without any, all but the soak.
FIGURES ?=
# Seconds for each target of `make fuzz`; TARGET=... runs one of tests/fuzz/targets.
FUZZ_SECONDS ?= 60
TARGET ?=
# The first commit with all servers, and the oldest version that must open today's files.
FIRST ?= b1dfccc
# For all tests but those that take hours: `make test PYTEST_ARGS="--last-failed -n 0"`.
PYTEST_ARGS ?=
PYTEST := -m pytest --quiet --timeout 900
TESTS := $(wildcard tests/unit tests/model tests/network tests/adversity tests/simulation tests/reliability tests/packaging tests/fuzz tests/upgrade)

.DEFAULT_GOAL := help
.PHONY: test-access test-apache test-pop test-replication help setup demo test docs test-console texts test-peers test-damage fuzz mutation test-downgrade simulate simulate-bugs test-reliability soak test-floors test-spark compiled test-compiled format lint types imports bench-nameserver bench-client bench-broker bench-store bench-memory bench-metrics bench-access bench-console bench-attacks bench-pipeline ci clean test-controllers bench-controller bench-replication

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv with any python3 from 3.11 on, and install the package with its tools

define install  # $(1): extras
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(1)]'
	@touch $@
endef

$(READY): pyproject.toml
	@echo 'Installing Skyroute, Spark and all tools into $(VENV): 1.4 GB, one or two minutes the first time'
	$(call install,dev)

$(DEMO_READY): pyproject.toml
	@echo 'Installing Skyroute, its console and Spark into $(VENV): about a minute the first time'
	$(call install,console$(comma)spark$(comma)jvm)

demo: $(if $(wildcard $(READY)),$(READY),$(DEMO_READY)) ## run a small cluster: send, consume, kill a broker, read with Spark
	$(BIN)/python examples/demo.py

test: lint types imports ## check style, types and imports, and run every test that needs only Python
	$(BIN)/python $(PYTEST) -n auto --dist loadfile $(TESTS) $(PYTEST_ARGS)
	@echo "Tests of the console, of Spark and with peers are separate: make test-console test-spark test-peers"

docs: $(READY) ## build the pages and the API reference in .cache/site; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@! grep -rlE '(src|srcset)="(https?:)?//|<link [^>]*href="(https?:)?//' .cache/site --include='*.html' || { echo 'pages load things from elsewhere'; exit 1; }
	@echo 'Open .cache/site/index.html; with a search: python3 -m http.server --directory .cache/site'

test-console: $(READY) ## test the web pages in a real Chromium; screenshots are in artifacts/console
	$(BIN)/python $(PYTEST) -n 2 --dist loadfile tests/console $(PYTEST_ARGS)

# --keyword: translatable() marks a text that is translated later, done() a notice.
LOCALE := src/skyroute/console/locale
texts: $(READY) ## collect the console's texts into its .po catalogue, and compile it to .mo
	@mkdir -p .cache
	$(BIN)/pybabel --quiet extract --mapping pyproject.toml --keyword translatable --keyword translate --keyword done \
		--sort-output --add-location file --output .cache/console.pot src/skyroute/console
	$(BIN)/pybabel --quiet update --domain console --input-file .cache/console.pot --output-dir $(LOCALE) --width 120 \
		--no-fuzzy-matching --ignore-obsolete --ignore-pot-creation-date
	$(BIN)/pybabel --quiet compile --domain console --directory $(LOCALE) --statistics

# Two processes side by side: most of the time they wait. Tests that share servers stay in one process, in order.
PEERS_OF_BROKERS := tests/peers/broker tests/peers/access
test-peers: $(READY) ## test with real Apache RocketMQ brokers, clients in four languages, proxy, and tools; needs java, mvn, go, node and npm
	$(BIN)/python $(PYTEST) -o cache_dir=.pytest_cache/brokers $(PEERS_OF_BROKERS) $(PYTEST_ARGS) & \
		$(BIN)/python $(PYTEST) tests/peers $(PEERS_OF_BROKERS:%=--ignore=%) $(PYTEST_ARGS); others=$$?; wait $$!; \
		case "$$? $$others" in "0 0" $(if $(PYTEST_ARGS),| "0 5" | "5 0")) ;; *) exit 1 ;; esac

test-replication: $(READY) ## copy logs between our brokers and Apache's 5.5.0 and 4.9.7, and kill masters 20 times; needs Java and Maven
	SKYROUTE_LONG=1 SKYROUTE_KILLS=20 AUTO_SWITCH_KILLS=10 $(BIN)/python -m pytest --quiet \
		tests/peers/test_replication.py tests/peers/test_auto_switch.py tests/peers/test_slave_of_our_broker.py \
		tests/peers/test_acting_master.py tests/peers/client/test_reading_from_slaves.py tests/peers/broker/test_slaves.py \
		-k "not test_auto_switch or ours-on-apache or mixed-on-apache"

test-controllers: $(READY) ## kill masters 10 times on every controller, controllers and etcd members, all for a minute; cut a master off; needs Java, Maven, and etcd or apt
	SKYROUTE_LONG=1 SKYROUTE_ALL_DOWN_S=60 AUTO_SWITCH_KILLS=10 $(BIN)/python -m pytest --quiet tests/peers/test_controller.py \
		tests/peers/test_etcd_store.py tests/peers/test_controllers_on_etcd.py tests/peers/test_cut_master.py tests/peers/test_auto_switch.py

test-pop: $(READY) ## kill a broker ten times with 10,000 popped messages in flight, then open its store with Apache's; needs Java and Maven
	SKYROUTE_LONG=1 $(BIN)/python -m pytest --quiet tests/peers/broker/test_pop_store.py

test-apache: $(READY) ## run the integration tests of Apache RocketMQ's own `test` module against our servers; PART=pop for some; needs Java and Maven
	$(BIN)/python -m tests.peers.apache_tests.run $(PART)

test-access: $(READY) ## let clients of four languages and mqadmin in, signed, unsigned, with wrong keys and without rights; needs java, mvn, go, node and npm
	SKYROUTE_LONG=1 $(BIN)/python -m pytest --quiet tests/peers/access

test-damage: $(READY) ## damage a million stores and recover them, for hours; DAMAGE_CASES=... for fewer
	SKYROUTE_DAMAGE_CASES=$(DAMAGE_CASES) $(BIN)/python -m pytest --quiet -n auto tests/adversity/test_single_damage.py

fuzz: $(FUZZ_READY) ## fuzz every reader of foreign bytes; FUZZ_SECONDS=... for each, TARGET=... for one
	nice $(FUZZ)/bin/python -m tests.fuzz.run --seconds $(FUZZ_SECONDS) $(TARGET)

mutation: $(MUTATION_READY) ## change the code of routing, recovery and consumer offsets, and see which changes no test notices
	nice $(MUTATION)/bin/python -m tests.mutation.run

test-downgrade: $(READY) ## let the first version open files of this one, and this one those of the first; needs git history
	rm -rf .cache/first && mkdir -p .cache/first && git archive $(FIRST) src | tar x -C .cache/first
	PYTHONPATH=src $(BIN)/python -m tests.upgrade.write_fixture .cache/today.tar.xz
	PYTHONPATH=.cache/first/src $(BIN)/python -m tests.upgrade.reopen .cache/today.tar.xz
	for archive in tests/fixtures/*.tar.xz; do PYTHONPATH=src $(BIN)/python -m tests.upgrade.reopen $$archive || exit 1; done

simulate: $(READY) ## simulate clusters with faults for SIMULATE_S seconds; SEED=... replays one
	$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--for $(SIMULATE_S))

simulate-bugs: $(READY) ## plant a bug for each invariant of the simulation, and check that it is found
	$(BIN)/python -m tests.simulation --planted

test-reliability: $(READY) ## measure the figures of docs/reliability.md on real processes, 55 minutes; FIGURES=... for some; needs java and mvn
	$(BIN)/python -m tests.reliability $(FIGURES)
	$(if $(FIGURES),,SKYROUTE_LONG=1 $(BIN)/python -m pytest --quiet tests/reliability)

soak: $(READY) ## load, faults and restarts for SOAK_S seconds; memory, files, tasks and threads must stay flat
	$(BIN)/python -m tests.reliability soak --seconds $(SOAK_S)

test-floors: $(FLOORS_READY) ## run the unit tests with the lowest allowed versions of our dependencies
	$(FLOORS)/bin/python $(PYTEST) -n auto --dist loadfile -o cache_dir=$(FLOORS)/cache tests/unit --ignore tests/unit/pipeline $(PYTEST_ARGS)

test-spark: $(SPARK_VENV)/.ready ## test the pipeline on a real Spark, or on SPARK=4.0, 4.1, 4.2 or 4.3; uses the packaged Java if Java 17 is not installed
	$(SPARK_VENV)/bin/python $(PYTEST) -n 2 --dist loadfile -o cache_dir=$(SPARK_VENV)/cache $(SPARK_TESTS) $(PYTEST_ARGS)

.cache/spark-%/.ready: pyproject.toml
	@echo 'Installing Skyroute and Spark $* into $(@D): 1.2 GB, one or two minutes the first time'
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[tools,spark,jvm]' 'pyspark[connect]==$*.*'
	@touch $@

compiled: $(COMPILED_READY) ## install with compiled modules for the fastest python3 on the path, in .cache/compiled; needs a C compiler

test-compiled: $(COMPILED_READY) ## run the unit and network tests with compiled modules, without Spark
	$(COMPILED)/bin/python $(PYTEST) -n auto --dist loadfile -o cache_dir=$(COMPILED)/cache tests/unit tests/network --ignore tests/unit/pipeline \
		--deselect tests/network/test_examples.py::test_the_demonstration_runs_a_cluster_from_start_to_stop $(PYTEST_ARGS)

# From an archive of the sources, so that nothing compiled comes to lie among them and hides a later change.
$(COMPILED_READY): $(READY) $(shell find src -name '*.py')
	rm -rf $(COMPILED)
	python="$(COMPILED_PYTHON)" && echo "for $$python" && "$$python" -m venv $(COMPILED)
	$(BIN)/python -m build --sdist --outdir $(COMPILED) . > /dev/null
	HATCH_BUILD_HOOK_ENABLE_MYPYC=true $(COMPILED)/bin/python -m pip install --quiet --disable-pip-version-check --no-cache-dir \
		"$$(echo $(COMPILED)/skyroute-*.tar.gz)[tools]"
	@touch $@

# Without Spark, of which few versions are allowed, and half a gigabyte in one environment is enough.
$(FLOORS_READY): pyproject.toml
	test -x $(FLOORS)/bin/python || $(PYTHON) -m venv $(FLOORS)
	$(FLOORS)/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' \
		| sed 's/>=/==/' > $(FLOORS)/constraints.txt
	$(FLOORS)/bin/python -m pip install --quiet --disable-pip-version-check \
		--constraint $(FLOORS)/constraints.txt --editable '.[tools]'
	@touch $@

$(FUZZ_READY) $(MUTATION_READY): pyproject.toml
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[tools,$(notdir $(@D))]'
	@touch $@

format: $(READY) ## format the source
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(READY) ## check the style
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY) ## check the types (mypy, strict)
	$(BIN)/mypy

imports: $(READY) ## check which package imports which
	$(BIN)/lint-imports

bench-nameserver: $(READY) ## measure route lookups, alone and while brokers register
	$(BIN)/python -m benchmarks.nameserver

bench-client: $(READY) ## measure our client's sends and consumption beside Apache's Java client, on one Apache broker
	$(BIN)/python -m benchmarks.client

bench-broker: $(COMPILED_READY) ## compare our broker, compiled, with Apache's, on the same disk at the same time
	$(COMPILED)/bin/python -m benchmarks.broker

bench-store: $(READY) ## measure the processor time of the broker's store per message
	$(BIN)/python -m benchmarks.store

bench-memory: $(READY) ## measure cost and benefit of a name server's journal and warm restart
	$(BIN)/python -m benchmarks.memory

bench-metrics: $(READY) ## measure the cost of metrics in a name server
	$(BIN)/python -m benchmarks.metrics

bench-access: $(READY) ## measure the cost of access control in name server and broker, beside Apache's broker
	$(BIN)/python -m benchmarks.access

bench-replication: $(COMPILED_READY) ## compare master and slave, compiled, with Apache's: replicated sends and catch-up
	$(COMPILED)/bin/python -m benchmarks.replication

bench-controller: $(READY) ## compare our controller with Apache's: fail-over of real brokers, and a thousand groups
	$(BIN)/python -m benchmarks.controller

bench-console: $(READY) ## measure response times of the console for 100 brokers with 10,000 topics each
	$(BIN)/python -m benchmarks.console

bench-attacks: $(READY) ## attack our servers, and measure what other clients notice; needs 8 GB of memory
	$(BIN)/python -m benchmarks.attacks

bench-pipeline: $(READY) $(COMPILED_READY) ## measure Spark source, sink and jobs, compared with Spark's Kafka source; ROWS=1,5 for some, ROUNDS=1 for few rounds
	$(BIN)/python -m benchmarks.pipeline --servers $(CURDIR)/$(COMPILED)/bin/python $(if $(ROWS),--only $(ROWS)) $(if $(ROUNDS),--rounds $(ROUNDS))

ci: ## run what CI runs
	.ci/run

clean: ## remove what was built or cached, except .venv
	rm -rf .cache build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
