# make demo: recover a batch of photographs from its gradient.  make test: run the tests, in 5 to 10 minutes on two cores.
# make test-all: those too that take long, hostile problems and batches at the frontier, in under 40 minutes.
# make frontier: run the yardstick, about 20 minutes, and write $(OUT).  make frontier-compare A=before.json B=after.json:
# say what changed beyond noise (A is the newest record in the repository unless given, B is $(OUT)).
# make notebooks: run the notebooks, and store what they print and draw.
# make docs: build the site into docs/_build/html, in 3 minutes.
# make lint: the rules of ruff.  make types: check the types of both packages with mypy, as pyproject.toml says.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

OUT ?= frontier.json
A ?= $(lastword $(sort $(wildcard tests/frontier/records/*.json)))
B ?= $(OUT)

.PHONY: demo test test-all benchmark frontier frontier-compare notebooks docs lint types clean

demo: $(STAMP)
	$(BIN)/sparsedl-fl demo --output demo.png

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m "not slow" $(PYTEST_ARGS)

test-all: $(STAMP)
	$(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)

benchmark: $(STAMP)
	$(BIN)/python -m pytest tests/benchmarks --benchmarks -s $(PYTEST_ARGS)

frontier: $(STAMP)
	$(BIN)/python -m tests.frontier run --out $(OUT)

frontier-compare: $(STAMP)
	$(BIN)/python -m tests.frontier compare $(A) $(B)

notebooks: $(STAMP)
	$(BIN)/python examples/notebooks/run.py

# Warnings are errors. The gallery's scripts run in a reduced size; SPARSEDL_SMALL= runs them in full.
docs: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -b html -W --keep-going -q -c docs . docs/_build/html $(SPHINX_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

# CPU PyTorch comes first and alone: a looser request would pull gigabytes of CUDA packages.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache demo.png docs/_build docs/_scripts docs/gallery docs/api/generated
