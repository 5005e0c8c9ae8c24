# Everything runs in .venv, which the first target that needs it creates.
VENV ?= .venv
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.installed

.PHONY: install demo test check bench docs test-heavy clean

install: $(STAMP)

# torch first and pinned: left to itself pip may bring gigabytes of CUDA packages
$(STAMP): pyproject.toml constraints.txt
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(STAMP)
	$(VENV)/bin/longtail compare --out demo

test: check
	$(PYTHON) -m pytest

check: $(STAMP)
	$(VENV)/bin/ruff check src tests benchmarks examples
	$(VENV)/bin/ruff format --check src tests benchmarks examples
	$(VENV)/bin/mypy

bench: $(STAMP)
	for b in losses data train diagnostics; do $(PYTHON) benchmarks/$$b.py || exit 1; done

clean:
	rm -rf $(VENV) demo .mypy_cache .ruff_cache .hypothesis
