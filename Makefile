# Needs only python3 and make. Everything lives in .venv; a second call installs nothing again. `demo` installs what
# running needs, `test` what testing needs too, `docs` what the site needs.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
SMALL := .venv/.small
SITE := .venv/.site

.PHONY: demo test slow check lint docs bench reproduce-tiny clean
demo: $(SMALL)
	$(BIN)/leadline demo

# Three workers for two cores: some tests wait for processes of their own. `check` runs the slow ones too.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist worksteal
test: $(READY)
	$(PYTEST) -m "not slow"

slow: $(READY)
	$(PYTEST) -m slow

lint: $(READY)
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

check: lint slow test

# The documents as a site, in site/: warnings are errors, and nothing is asked of a network.
docs: $(SITE)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

bench: $(READY)
	$(BIN)/python -m bench train

# Every figure and claim at the smallest scale, within a quarter of an hour on two cores; for a nightly run.
reproduce-tiny: $(READY)
	$(BIN)/leadline reproduce all --scale tiny --out reproduced/tiny

# uv installs torch in seconds where pip takes minutes; it comes from the same place as any other package. Bytecode is
# compiled at once: every process that a test starts would do it again where nothing may be written later.
$(SMALL): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python -e .
	touch $@

$(READY): $(SMALL)
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python -e '.[dev]'
	touch $@

$(SITE): $(SMALL)
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python -e '.[docs]'
	touch $@

clean:
	rm -rf .venv build site *.egg-info .pytest_cache .mypy_cache .ruff_cache
