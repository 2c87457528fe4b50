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
READY_GPU := $(VENV)/.ready_gpu
TORCH_PIN := $(VENV)/torch.txt
ARGS ?=

# What asks for one exact torch, as torchvision does, must not replace the torch that is there. One built for another torch, such as
# PyPI's beside a torch for the CPU only, does not load, and transformers would not load with it.
define install
	$(BIN)/pip list --format=freeze | grep '^torch==' > $(TORCH_PIN) || true
	$(BIN)/pip install -q -c $(TORCH_PIN) -e '.[$(1)]'
	@$(BIN)/python -c 'import torchvision' 2> /dev/null || { $(BIN)/pip uninstall -q -y torchvision; \
	  echo "torchvision does not fit this torch and was taken out: tests with pictures cannot pass."; \
	  echo "Install the one that was built with it, from where torch came from."; }
endef

.PHONY: demo test test-gpu lint bench real clean

demo: $(READY)
	$(BIN)/python -m stepgrpo demo $(ARGS)

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 $(ARGS)

# One test at a time: they share the GPU. For vLLM's test, install the vLLM that goes with this torch yourself, see docs/launch.md.
test-gpu: $(READY_GPU)
	$(BIN)/python -m pytest tests/gpu -v -rs --durations=0 $(ARGS)

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
	$(call install,dev)
	touch $@

$(READY_GPU): $(READY)
	$(call install,gpu)
	touch $@

clean:
	rm -rf $(VENV) demo_output outputs
