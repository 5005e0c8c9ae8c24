# Everything runs in .venv, which the first target that needs it creates.
VENV ?= .venv
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.installed
# Most of what is installed is never imported: what is, Python compiles as it needs it
PIP := -m pip install --quiet --disable-pip-version-check --no-compile

.PHONY: install demo test check bench docs test-heavy test-lowest dist clean

install: $(STAMP)

# torch first and pinned: left to itself pip may bring gigabytes of CUDA packages
$(STAMP): pyproject.toml constraints.txt
	python3 -m venv $(VENV)
	$(PYTHON) $(PIP) -c constraints.txt torch
	$(PYTHON) $(PIP) -c constraints.txt -e '.[dev]'
	touch $@

demo: $(STAMP)
	$(VENV)/bin/longtail compare --out demo

# One process a core, each with one thread: torch's own threads would only get in each other's way
test: check
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest -n auto --dist worksteal

check: $(STAMP)
	$(VENV)/bin/ruff check src tests benchmarks examples
	$(VENV)/bin/ruff format --check src tests benchmarks examples
	$(VENV)/bin/mypy

bench: $(STAMP)
	for b in losses data train diagnostics; do $(PYTHON) benchmarks/$$b.py || exit 1; done

$(VENV)/.docs: $(STAMP)
	$(PYTHON) $(PIP) -c constraints.txt -e '.[docs]'
	touch $@

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict --site-dir site

# Examples with large packages, in an environment of their own: the one above stays as it is
HEAVY ?= .venv-heavy

$(HEAVY)/.installed: pyproject.toml constraints.txt
	python3 -m venv $(HEAVY)
	$(HEAVY)/bin/python $(PIP) -c constraints.txt torch
	$(HEAVY)/bin/python $(PIP) -c constraints.txt -e '.[dev,heavy]'
	touch $@

test-heavy: $(HEAVY)/.installed
	$(HEAVY)/bin/python -m pytest -m heavy -rs

# The lowest versions that pyproject.toml allows, but for torch: of older ones there is no CPU build everywhere, so it is
# the one of constraints.txt here too, and its lower bound is by what we use of it, not by a test
LOWEST ?= .venv-lowest
TESTS ?= tests

$(LOWEST)/.installed: pyproject.toml constraints.txt .ci/lowest.py
	python3 -m venv $(LOWEST)
	(cat constraints.txt; python3 .ci/lowest.py) > $(LOWEST)/lowest.txt
	$(LOWEST)/bin/python $(PIP) -c $(LOWEST)/lowest.txt torch
	$(LOWEST)/bin/python $(PIP) -c $(LOWEST)/lowest.txt -e '.[dev]'
	touch $@

test-lowest: $(LOWEST)/.installed
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -n auto --dist worksteal $(TESTS)

# A wheel and an sdist; the wheel is installed where nothing else is, and what is in both is looked at
DIST ?= .venv-dist

dist: $(STAMP)
	rm -rf dist $(DIST)
	python3 -m venv $(DIST)
	$(DIST)/bin/python $(PIP) build
	$(DIST)/bin/python -m build --outdir dist .
	$(DIST)/bin/python $(PIP) -c constraints.txt torch
	$(DIST)/bin/python $(PIP) -c constraints.txt dist/*.whl
	cd $(DIST) && bin/longtail --version && bin/longtail train elm --epochs 1 --out run && bin/longtail report run --out page
	LONGTAIL_DIST=dist $(PYTHON) -m pytest tests/test_dist.py
	rm -rf $(DIST)

clean:
	rm -rf $(VENV) $(HEAVY) $(LOWEST) $(DIST) dist site demo .mypy_cache .ruff_cache .hypothesis
