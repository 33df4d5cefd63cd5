# Two commands for a new clone: `make demo` and `make test`. Both make .venv when it is missing or out of date.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Threads that spin against each other are several times slower than one thread per process on a small machine.
JOBS ?= 2

.PHONY: demo test lint bench clean

# torch and torchvision are resolved by pip in one go, from the same index: mixed builds do not import together.
$(VENV)/.installed: setup.cfg pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install -qq --editable '.[test]'
	touch $@

demo: $(VENV)/.installed
	$(BIN)/hf-softlabel demo

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --durations 30

# `make bench NAMES=labels` for one of them. The peers are no dependencies of ours.
bench: $(VENV)/.installed
	$(BIN)/python -m pip install -qq --no-deps --requirement benchmarks/requirements.txt
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks $(NAMES)

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .hypothesis
