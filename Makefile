# Needs Python 3.11 or newer with pip and venv. Everything is installed under .venv, .venv-nojax, .venv-ecosystem-*,
# .venv-torch and, by test-versions, .venv-PYTHON-jaxlib-VERSION.

PYTHON ?= python3
CASES ?= 1000
MESSAGES ?= 100000
SEED ?= 0
WORKERS ?= 2
MINUTES ?= 20

# The tests of what users reach. Those that do not compare with jax run in the environment without it, and all other tests
# beside it. test_examples.py calls every public function. Those of USERS use XLA's default emitters, which test_quantized.py
# needs, and whose buffers test_liveness.py predicts.
API := tests/api tests/base tests/execute tests/runtime tests/test_examples.py
USERS := tests/compiler/test_pipeline.py tests/compiler/lower tests/compiler/partition/test_liveness.py \
	tests/compiler/arrays/test_operands_jax_array_protocol.py tests/compiler/trace/test_provenance_named_scope.py \
	tests/lax/test_collectives.py tests/nn/test_quantized.py tests/test_core.py tests/test_docs.py \
	tests/test_jaxlib.py tests/test_package.py tests/test_profiler.py tests/test_seeds.py

# A cross-section for `make quick`: fast tests of each stage, in the order in which a program passes through them.
QUICK := tests/compiler/shardings/test_factors.py tests/compiler/ir/test_verify.py tests/compiler/ops/test_ops_missing_rules.py \
	tests/compiler/ops/elementwise tests/compiler/ops/reduce/test_reductions.py tests/compiler/arrays/test_operands.py \
	tests/compiler/trace/test_build.py tests/compiler/transforms/test_transforms.py \
	tests/compiler/control/test_region_boundary.py tests/compiler/special tests/compiler/samplers tests/compiler/kernels \
	tests/compiler/candidates/test_layout_problem.py tests/compiler/plan/test_choose.py \
	tests/compiler/partition/test_evaluate_shards.py tests/compiler/search/test_search.py \
	tests/compiler/schedule/test_buckets.py \
	tests/compiler/lower tests/compiler/report/test_timeline.py tests/compiler/test_pipeline.py \
	tests/processes/test_protocol.py tests/runtime/test_sharding.py tests/api/test_jit.py

# The groups of libraries: each has a folder of programs and an extra in pyproject.toml.
GROUPS := $(notdir $(wildcard tests/ecosystem/programs/*))

# Environments are installed at the same time; the commands of a target run one after the other.
MAKEFLAGS += --jobs=2

# The tests start hundreds of processes, each of which would compile the package again where this variable is set.
unexport PYTHONDONTWRITEBYTECODE

# XLA's older emitters, without splitting the code of a program into LLVM modules that it could compile in parallel: each
# costs time, and the workers of pytest use all cores.
OLDER_EMITTERS := XLA_FLAGS="--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
BIN := .venv/bin
NOJAX := .venv-nojax/bin

.PHONY: venv demo demo-processes docs quick test style types test-users test-all test-versions test-ecosystem test-torch faults soak soak-restarts recoveries fuzz-protocol slow coverage fuzz forgeries mutations bench format clean

venv: .venv/.checks-installed

# Trains, is killed, resumes on another mesh, and compares every loss with one device.
demo: .venv/.demo-installed
	$(BIN)/python examples/demo.py

# Two processes with four devices each; every loss is compared with one process.
demo-processes: .venv/.demo-installed
	$(BIN)/shardwise launch -n 2 --devices-per-process 4 examples/gpt_processes.py

# The documentation site, in build/docs; warnings are errors.
docs: .venv/.docs-installed
	$(BIN)/python docs/site/build.py build/docs

# For a person who is editing: in half a minute on two cores, format, lint, import layers and tests of every stage. Types,
# most tests, and the environment without jax are left to `make test`.
quick: style
	$(BIN)/lint-imports
	$(OLDER_EMITTERS) $(BIN)/pytest -n $(WORKERS) --dist worksteal -m "not slow" $(QUICK)

# Types are checked while the users' tests run; all other tests start when both have passed. Most tests use XLA's older
# emitters, which compile in half the time; those of USERS, such as the documents, and `make slow` use the default ones.
test: test-all

style: .venv/.checks-installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: style
	$(BIN)/mypy
	$(BIN)/lint-imports

test-users: style .venv-nojax/.checks-installed
	@echo "What users reach, where jax is not installed:"
	$(NOJAX)/python -c 'from importlib.util import find_spec; assert not find_spec("jax"), "jax is importable here"'
	$(NOJAX)/pytest -n $(WORKERS) --dist worksteal -m "not jax and not slow" $(USERS)
	$(OLDER_EMITTERS) $(NOJAX)/pytest -n $(WORKERS) --dist worksteal -m "not jax and not slow" $(API)

test-all: types test-users
	@echo "All other tests, where jax is an oracle:"
	$(OLDER_EMITTERS) $(BIN)/pytest -n $(WORKERS) --dist worksteal -m "not slow" $(patsubst %,--only-with-jax=%,$(USERS) $(API))

# The users' tests with the oldest and the newest supported jaxlib and those between, each where its Python is installed.
test-versions:
	$(PYTHON) tests/jaxlib_versions.py -n $(WORKERS) -m "not jax and not slow" $(USERS) $(API)

# Libraries written for JAX, on Shardwise and on JAX, each group in an environment of its own: their pins conflict. If all
# of them run, write the table of docs/ecosystem.md.
test-ecosystem: $(GROUPS:%=.venv-ecosystem-%/.installed)
	.venv-ecosystem-core/bin/pytest tests/ecosystem
	.venv-ecosystem-core/bin/python -m tests.ecosystem.table

# PyTorch modules on Shardwise and in PyTorch. If all agree, write the table of docs/from-pytorch.md. PyTorch's wheels need
# 5 GB.
test-torch: .venv-torch/.installed
	rm -rf build/torch-models
	$(OLDER_EMITTERS) .venv-torch/bin/pytest tests/torch
	.venv-torch/bin/python -m tests.torch.table

# Every fault of programs with several processes: kills, stops, signals, wrong variables, garbage on sockets.
faults: .venv/.checks-installed
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m faults

# Training on four processes and two spares, with a random fault every 29 s, beside a run without faults and one that restarts
# from disk, for MINUTES each; then local updates of four groups and a spare, with such faults and without. The events are
# in build/soak.log and build/soak-groups.log.
soak: .venv/.checks-installed
	$(BIN)/python -m tests.recovery.soak --minutes $(MINUTES) --seed $(SEED)
	$(BIN)/python -m tests.recovery.group_soak --minutes $(MINUTES) --seed $(SEED)

# Training on four processes that is killed, stopped and restarted from checkpoints, also with its launcher, for MINUTES.
soak-restarts: .venv/.checks-installed
	$(BIN)/python -m tests.soak.run --minutes $(MINUTES) --seed $(SEED)

# Launches of programs that recover, with random faults at random points, until CASES faults have happened.
recoveries: .venv/.checks-installed
	$(BIN)/python -m tests.recovery.campaign --faults $(CASES) --seed $(SEED)

# Hostile bytes and messages on the coordinator's port, before and after authentication.
fuzz-protocol: .venv/.checks-installed
	$(BIN)/python -m tests.processes.protocol_fuzz --messages $(MESSAGES) --seed $(SEED)

slow: .venv/.checks-installed
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m slow

# The tests of `make test` and `make slow`, once, and the share of lines that they run in each folder of shardwise.
coverage: .venv/.checks-installed
	@mkdir -p build
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n $(WORKERS) --dist worksteal $(TESTS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage json --quiet -o build/coverage.json
	$(BIN)/python tests/coverage_report.py build/coverage.json build/coverage.txt

fuzz: .venv/.checks-installed
	$(BIN)/python -m tests.fuzz.run --cases $(CASES) --seed $(SEED) --compile-twice
	$(BIN)/python -m tests.fuzz.explicit --cases $(CASES) --seed $(SEED)
	$(BIN)/python -m tests.fuzz.indices --cases $(CASES) --seed $(SEED)

# Damaged and forged files in all formats that are read: each is a typed error, or changes nothing.
forgeries: .venv/.checks-installed
	$(BIN)/python -m tests.checkpoints.forgeries --cases $(CASES) --seed $(SEED)

# Mutated modules of StableHLO, in text and bytecode: each is a typed error, or computes what XLA computes for it.
mutations: .venv/.checks-installed
	$(BIN)/python -m tests.stablehlo.mutate $(CASES) --seed $(SEED)

bench: .venv/.checks-installed
	$(BIN)/python -m benchmarks.run

format: .venv/.checks-installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .venv-* build dist *.egg-info .*_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: an environment is brought up to date when pyproject.toml is newer.
.venv/.installed: pyproject.toml
	$(call install,.venv,.)

.venv/.demo-installed: .venv/.installed
	$(call install,.venv,.[demo$(comma)checkpoint])

.venv/.docs-installed: .venv/.installed
	$(call install,.venv,.[docs])

.venv/.checks-installed: pyproject.toml
	$(call install,.venv,.[check$(comma)peer])
	@touch .venv/.installed

.venv-nojax/.checks-installed: pyproject.toml
	$(call install,.venv-nojax,.[check])

.venv-torch/.installed: pyproject.toml
	$(call install,.venv-torch,.[torch-models])

.venv-ecosystem-%/.installed: pyproject.toml
	$(call install,.venv-ecosystem-$*,.[ecosystem-$*])

comma := ,
define install
	@echo "Installing $(2) into $(1) (the first time, this takes a minute or two) ..."
	@test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
	@$(1)/bin/python -m pip install --quiet --disable-pip-version-check --editable "$(2)"
	@touch $@
endef
