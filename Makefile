# make demo: recover a batch of photographs from its gradient.  make test: run the tests, in under 5 minutes.
# make test-all: those too that take long, hostile problems and batches at the frontier, in under 40 minutes.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-all benchmark lint clean

demo: $(STAMP)
	$(BIN)/sparsedl-fl demo --output demo.png

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m "not slow" $(PYTEST_ARGS)

test-all: $(STAMP)
	$(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)

benchmark: $(STAMP)
	$(BIN)/python -m pytest tests/benchmarks --benchmarks -s $(PYTEST_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# CPU PyTorch comes first and alone: a looser request would pull gigabytes of CUDA packages.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache demo.png
