# The two commands: `make lab` opens the course, `make test` checks it. `make help` lists the rest.

# Python 3.11, which the tests are made with, or the next that is here; PYTHON=… names another.
ifndef PYTHON
PYTHON := $(shell for p in python3.11 python3.12 python3.13 python3.14 python3 python; do \
	command -v $$p >/dev/null 2>&1 && \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null && \
	echo $$p && break; done)
endif
PORT ?= 8888
NB ?=
# Processes that the tests run in; "logical" is one a core.
WORKERS ?= logical

# Asked on Linux without an NVIDIA card; if it does not answer, pip's own configuration decides.
export TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
export TORCH_INDEX

VENV := $(if $(filter Windows_NT,$(OS)),.venv/Scripts/python.exe,.venv/bin/python)
OFFLINE := $(VENV) tools/offline.py
PYTEST := $(OFFLINE) $(VENV) -m pytest --numprocesses=$(WORKERS) --maxprocesses=8
PACKAGE_TESTS := $(PYTEST) --dist=load
NOTEBOOK_TESTS := $(PYTEST) --dist=loadfile -p tests.notebooks.plugin --nbval --nbval-current-env \
	notebooks --ignore=notebooks/assignments

.PHONY: help lab lab-environment test test-all test-environment static mutants notebooks book format \
	classroom clean python
.DEFAULT_GOAL := help

help:
	@echo "make lab          set up .venv and open JupyterLab on your copy of notebook 00 (PORT=8888)"
	@echo "make test         check the code's form, its tests, and every notebook, offline"
	@echo "make test-all     the same, and the slow and the browser tests"
	@echo "make mutants      change the mathematics piece by piece: does a test notice? (an hour)"
	@echo "make book         the notebooks as a site to read, in build/book/site; needs no server"
	@echo "make classroom    for teachers: nbgrader beside the course, in .venv-classroom"
	@echo "make notebooks    run the notebooks again and store their outputs (NB=01 picks)"
	@echo "make format       put code and notebook cells into the project's form"
	@echo "make clean        remove caches and build folders (environments stay)"
	@echo
	@echo "WORKERS=1 runs the tests in one process (by default one a core);"
	@echo "PYTHON=python3.12 names the Python to use; TORCH_INDEX=… the index for PyTorch."

python:
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 6))' 2>/dev/null || { \
	test -z "$(PYTHON)" || echo "$(PYTHON) is no Python 3 that starts."; \
	test -n "$(PYTHON)" || echo "No Python 3.11, 3.12, 3.13 or 3.14 found."; \
	echo "Install one (python.org, or your system's packages) and run the same command again,"; \
	echo "or name it: make lab PYTHON=/path/to/python3"; \
	exit 1; }

lab-environment: python
	@"$(PYTHON)" tools/environment.py lab

test-environment: python
	@"$(PYTHON)" tools/environment.py test

classroom: python
	@"$(PYTHON)" tools/environment.py classroom

lab: lab-environment
	@echo "[lab] JupyterLab starts; its address is printed below. Stop it with Ctrl-C."
	@$(VENV) tools/lab.py --port "$(PORT)"

static: test-environment
	@echo "[test 1/4] form: ruff"
	@$(VENV) -m ruff check .
	@$(VENV) -m ruff format --check .
	@echo "[test 2/4] types: mypy"
	@$(VENV) -m mypy

test: static
	@echo "[test 3/4] the package's tests, network off"
	@$(PACKAGE_TESTS) -m "not slow and not browser"
	@echo "[test 4/4] every notebook, run and compared with its stored outputs, network off"
	@$(NOTEBOOK_TESTS)

test-all: static
	@echo "[test 3/4] the package's tests, slow and browser ones too, network off"
	@$(PACKAGE_TESTS)
	@echo "[test 4/4] every notebook, run and compared with its stored outputs, network off"
	@$(NOTEBOOK_TESTS)

# mutmut is installed when it is first asked for; it keeps what it knows in the folder mutants/.
mutants: test-environment
	@$(VENV) -c 'import mutmut' 2>/dev/null || \
		$(VENV) -m pip install --quiet --constraint constraints.txt "mutmut>=3.8"
	@OMP_NUM_THREADS=1 $(VENV) -m mutmut run
	@$(VENV) -m tests.survivors

notebooks: test-environment
	@echo "[notebooks] running and storing; a notebook is replaced only when all of it ran"
	@COURSE_AUTHORING=1 $(OFFLINE) $(VENV) -m tests.notebooks.execute $(NB)

book: test-environment
	@$(VENV) -m book

format: test-environment
	@$(VENV) -m ruff check --fix-only --quiet .
	@$(VENV) -m ruff format .

clean:
	rm -rf build dist mutants *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .cache
	find . -name __pycache__ -type d -not -path './.venv*' -prune -exec rm -rf {} +
