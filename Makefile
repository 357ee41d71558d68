# The whole set-up: `make lab` opens the first notebook, `make test` passes every test.
# Both need only Python 3.11+ and make; everything else goes into $(VENV).

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
TSC    := $(VENV)/node/node_modules/.bin/tsc
TSC_VERSION := 5.9.3

.PHONY: lab test check bench images clean

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; v >= (3, 11) or sys.exit("shardviz needs Python 3.11 or newer; $(PYTHON) is %d.%d. Try: make PYTHON=python3.12" % v)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[test,check]"
	@touch $@

lab: $(STAMP)
	$(BIN)/jupyter lab notebooks/01_see_a_sharding.ipynb

test: $(STAMP)
	@$(BIN)/python tests/browser/chromium.py
	$(BIN)/python -m pytest
	$(BIN)/python -m pytest --nbval-lax notebooks -p no:cacheprovider

check: $(STAMP) $(TSC)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/node $(TSC) --project shardviz/widgets/jsconfig.json

bench: $(STAMP)
	$(BIN)/python -m tests.bench

# The screenshots in docs/images.
images: $(STAMP)
	$(BIN)/python -m tests.browser.images

$(TSC): $(STAMP)
	$(BIN)/npm install --silent --no-audit --no-fund --prefix $(VENV)/node typescript@$(TSC_VERSION)
	@touch $@

clean:
	rm -rf $(VENV)
