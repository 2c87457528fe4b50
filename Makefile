# Every target makes its own environment in .venv, again when the dependency files changed.
#   PYTHON=python3.12                    another interpreter
#   VENV_FLAGS=--system-site-packages    use the torch that is installed already (GPU machines)
#   TORCH='torch==2.13.0'                another torch than the newest that fits
PYTHON ?= python3
VENV_FLAGS ?=
TORCH ?=
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ARGS ?=

.PHONY: demo test lint bench real clean

demo: $(READY)
	$(BIN)/python -m stepgrpo demo $(ARGS)

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python benchmarks/step_term.py $(ARGS)

real: $(READY)
	$(BIN)/python recipes/alfred_smollm2.py --alfred "$(ALFRED)" $(ARGS)

$(READY): setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV_FLAGS) $(VENV)
	@echo "Installing into $(VENV); torch alone is several hundred MB, or a few GB with CUDA."
	$(if $(TORCH),$(BIN)/pip install -q "$(TORCH)")
	$(BIN)/pip install -q -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) demo_output outputs
