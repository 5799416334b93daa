# Every target makes its own environment with nothing but python3 and make; needs Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: pytest check dist protocol workflows scoreboard aarch64 cross-tools help demo serve-demo adapters env test test-all lint onnx-score golden native cuda-resources flow-stress plugins bench counts valgrind bench-peers bench-frameworks bench-serving bench-text bench-all clients engines wheel-kernels attack fuzz docs pages site newcomer hooks clean

help: ## Show the targets.
	@sed -n 's/^\([a-z0-9-]*\):.*## /  make \1\t/p' Makefile | expand -t 27

$(STAMP): pyproject.toml simulator/pyproject.toml
	@echo "Making the environment of development in $(VENV): 1.8 GB, some minutes."
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	PYTHONWARNINGS='ignore:Editable installation' $(BIN)/python -m pip install --quiet -e '.[dev]' -e ./simulator
	@touch $@

DEMO := build/demo
$(DEMO)/.installed: pyproject.toml
	@echo "Making the demo's environment in $(DEMO): 360 MB, half a minute. Kernels are compiled after that."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	@$(PYTHON) -m venv $(DEMO)
	@PYTHONWARNINGS='ignore:Editable installation' $(DEMO)/bin/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

demo: $(DEMO)/.installed ## Read handwritten digits: pictures, accuracy, latency, profile.
	$(DEMO)/bin/python examples/demo.py

$(DEMO)/.serve: $(DEMO)/.installed
	@PYTHONWARNINGS='ignore:Editable installation' $(DEMO)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[serve]'
	@$(DEMO)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(DEMO)/models magika==1.0.3
	@touch $@

serve-demo: $(DEMO)/.serve ## Serve a model, ask it over REST, show its metrics.
	$(DEMO)/bin/python examples/serve/demo.py $(DEMO)/models/magika/models/standard_v3_3

env: $(STAMP) ## Make the environment of development, to look around in.
	@echo "Ready. Enter it with: . $(BIN)/activate"

# Tests start many processes: their byte code is kept, also where the environment says otherwise.
test pytest test-all: export PYTHONDONTWRITEBYTECODE =
# What is judged are kernels: nothing may stand in for them.
onnx-score golden native attack: export BOLT_NUMBA_STAND_INS = 0
WORKERS := -n logical --maxprocesses 8 --dist worksteal
test: $(STAMP) ## Lint, check types, run the tests, in as many processes as there are processors.
	@$(MAKE) --no-print-directory --jobs=2 lint pytest

pytest: $(STAMP)
	$(BIN)/python -m pytest -q $(WORKERS) -m "not long"

test-all: $(STAMP) ## Run what `make test` leaves out: long tests, all drawn cases, lower instruction sets (an hour).
	$(BIN)/python -m pytest -q $(WORKERS) -m "long or drawn or hypothesis"
	$(BIN)/python -m tests.lower_isa $(WORKERS)

CHECKS := tests/test_references.py $(addprefix tests/test_,infer.py infer_edges.py infer_operands.py data_safety.py \
	kernels.py pointwise.py widen.py tape.py objects.py) tests/cuda/test_kernels.py tests/converters/test_onnx_write.py \
	tests/converters/test_onnx_schemas.py tests/plugins/test_onnxruntime_driver.py
check: $(STAMP) ## What all operators are held to, for one: make check OP=GatherElements
	$(BIN)/python -m pytest -q $(CHECKS) tests/plugins/test_lowering.py -k '[$(OP) or has_a_spelling or the_page_names or in_a_set'

lint: $(STAMP) ## Lint and check types.
	$(BIN)/ruff check .
	$(BIN)/mypy

onnx-score: $(STAMP) ## Run the conformance suite that ships with onnx, other engines forbidden.
	$(BIN)/python -m tests.onnx_score --expect docs/onnx-missing.md

BOARD := $(CURDIR)/build/scoreboard
scoreboard: ## Run the entry for ONNX's scoreboard, without Docker, in its own environment; writes its page.
	@echo "Making the environment of the scoreboard in $(BOARD): 400 MB."
	rm -rf $(BOARD) && mkdir -p $(BOARD)/results && $(PYTHON) -m venv $(BOARD)/venv
	$(BOARD)/venv/bin/python -m pip install --quiet pytest tabulate PyYAML '.[strings,image]'
	$(BOARD)/venv/bin/python -m pip list --format=json > $(BOARD)/results/pip-list.json
	-cd $(BOARD) && RESULTS_DIR=$(BOARD)/results CSVDIR=$(BOARD)/results ONNX_BACKEND=bolt_numba.onnx_backend \
		venv/bin/python -m pytest -q -c /dev/null -k 'not _cuda' $(CURDIR)/bench/scoreboard/suite.py > run.log
	$(BOARD)/venv/bin/python -m bench.scoreboard.page $(BOARD)/results > docs/onnx-results.md

golden: $(STAMP) ## Run all cases that the originals of TFLite, Caffe and Paddle judged.
	$(BIN)/python -m tests.formats all --engine both

native: $(STAMP) ## Put the C library through 100,000 sessions, 16,000 damaged programs, sanitizers and valgrind.
	$(BIN)/python -m tests.native.whole

cuda-resources: $(STAMP) ## Compile the CUDA kernels for each architecture: registers, shared memory, instructions.
	$(BIN)/python -m tests.cuda.resources --check

cross-tools: ## Install an emulator of AArch64 and a C compiler for it (Debian, as root).
	apt-get install --yes --no-install-recommends qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross

aarch64: $(STAMP) ## Run all kernels of AArch64, and exported networks, under an emulator (an hour).
	BOLT_NUMBA_AARCH64=all $(BIN)/python -m pytest -q tests/aarch64

flow-stress: $(STAMP) ## Run 100,000 tasks of a flow with failures, cancellations and deadlines at random.
	$(BIN)/python -m tests.flow.test_stress 100000

plugins: $(STAMP) ## Run all models on onnxruntime, on OpenVINO, and split between them at random (an hour).
	$(BIN)/python -m bench.halves

bench: $(STAMP) ## Measure speed, start, memory against onnxruntime.
	$(BIN)/python -m bench.bars all

counts: $(STAMP) ## Count the instructions of twelve cases, and compare: more than 2 % is an alarm (2 minutes, needs valgrind).
	$(BIN)/python -m bench.counts

valgrind: ## Install what counts instructions and finds lost memory (Debian, as root).
	apt-get install --yes --no-install-recommends valgrind

PEERS := .peers
bench-peers: $(STAMP) ## Install other engines (4 GB) and convert the bench's models for them.
	$(PYTHON) -m venv $(PEERS)/run
	$(PEERS)/run/bin/pip install --quiet -r bench/requirements-peers.txt
	$(PEERS)/run/bin/pip install --quiet --no-deps pnnx==20261020
	$(PYTHON) -m venv $(PEERS)/tflite
	$(PEERS)/tflite/bin/pip install --quiet -r bench/requirements-tflite.txt
	$(BIN)/python -m bench.convert --targets ncnn,mnn,tflite --python $(PEERS)/run/bin/python \
		--tflite-python $(PEERS)/tflite/bin/python
	$(BIN)/python -m bench.convert --targets tflite_int8 --tflite-python $(PEERS)/tflite/bin/python \
		--models mobilenet_v1,mobilenet_v2,mobilenet_v3_large,resnet50,squeezenet

bench-frameworks: bench-peers ## Add torch, JAX, Paddle and tinygrad to the engines.
	$(PEERS)/run/bin/pip install --quiet -r bench/requirements-frameworks.txt
	$(BIN)/python -m bench.convert --targets paddle --python $(PEERS)/run/bin/python

SERVERS := fastapi litserve mlserver
bench-serving: $(STAMP) ## Install the servers that bench.serving compares with (1 GB).
	for server in $(SERVERS); do \
		$(PYTHON) -m venv $(PEERS)/serving/$$server && \
		$(PEERS)/serving/$$server/bin/pip install --quiet -r bench/serving/rivals/requirements-$$server.txt || exit 1; done
	PYTHONWARNINGS='ignore:Editable installation' $(BIN)/python -m pip install --quiet -e '.[serve]'

bench-text: $(STAMP) ## Install llama.cpp (compiled for this machine), onnxruntime-genai and OpenVINO GenAI, and compare.
	$(PYTHON) -m venv $(PEERS)/text
	CMAKE_ARGS='-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF' PYTHONWARNINGS='ignore:Editable installation' \
		$(PEERS)/text/bin/pip install --quiet -e '.[text]' -r bench/requirements-text.txt
	$(PEERS)/text/bin/python -m bench.text
	$(PEERS)/text/bin/python -m bench.text --seeded

bench-all: $(STAMP) ## The main table against the leading engines (about 8 minutes, idle machine), and its pictures.
	$(BIN)/python -m pip install --quiet -e '.[bench]'
	$(BIN)/python -m bench.run --models main --peers main --threads 1 2 --turns 3 --turn-s 0.12 \
		--python $(PEERS)/run/bin/python --markdown -o results.json
	$(BIN)/python -m bench.plot results.json --folder docs

CLIENTS := .clients
clients: $(STAMP) ## Run packages that use onnxruntime (5 GB) with it and with bolt-numba in its place.
	for kind in light torch; do \
		$(PYTHON) -m venv $(CLIENTS)/$$kind && \
		$(CLIENTS)/$$kind/bin/pip install --quiet -r bench/requirements-clients-$$kind.txt -e . && \
		$(CLIENTS)/$$kind/bin/pip uninstall --quiet --yes onnxruntime || exit 1; done
	$(CLIENTS)/light/bin/pip install --quiet --no-deps basic-pitch==0.4.0
	$(CLIENTS)/light/bin/pip install --quiet --no-deps --upgrade --target $(CLIENTS)/onnxruntime onnxruntime==1.32.0
	$(CLIENTS)/light/bin/pip install --quiet --no-deps --upgrade --target $(CLIENTS)/here ./shim
	$(BIN)/python -m bench.clients --home $(CLIENTS) --cold -o bench/results/clients.json --markdown docs/clients.md

ENGINES := build/engines
$(ENGINES)/.installed: bench/requirements-batch.txt pyproject.toml
	@echo "Making the environment of the engines in $(ENGINES): 1.6 GB, a minute."
	$(PYTHON) -m venv $(ENGINES)
	PYTHONWARNINGS='ignore:Editable installation' $(ENGINES)/bin/pip install --quiet -e . -r bench/requirements-batch.txt
	@touch $@

engines: $(ENGINES)/.installed ## Run models in workers of Ray Data, Spark (needs Java), Dask and joblib.
	$(ENGINES)/bin/python -m pytest -q tests/engines tests/test_batch.py 'tests/test_pages.py::test_page[docs/batch.md]'

ADAPTERS := kserve==0.21.0 litserve==0.2.19 mlserver==1.7.1 ray[serve]==2.60.0
adapters: $(STAMP) ## Run the adapters of examples/serve in their servers (2 GB), and check the files for clusters.
	for package in $(ADAPTERS); do \
		folder=$(CLIENTS)/$$(echo $$package | sed 's/[=[].*//') && $(PYTHON) -m venv $$folder && \
		$$folder/bin/pip install --quiet "$$package" -e . || exit 1; done
	$(BIN)/python -m pytest -q tests/serve/test_adapters.py tests/serve/test_deployments.py

wheel-kernels: $(STAMP) ## Build wheels that carry compiled kernels, for this version of Python (half an hour).
	$(BIN)/python -m pip wheel --quiet --no-deps -w dist .
	$(BIN)/python -m pip install --quiet -e '.[bench]'
	$(BIN)/python -m bench.wheels dist/bolt_numba-*-py3-none-any.whl

RELEASE := build/release
$(RELEASE)/.installed: bench/requirements-release.txt
	@echo "Making the environment of the release tools in $(RELEASE): 160 MB."
	@$(PYTHON) -m venv $(RELEASE)
	@$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

dist: $(RELEASE)/.installed ## Build and check the source distribution and the wheel with its bill of materials.
	rm -f dist/bolt_numba-*.tar.gz dist/bolt_numba-*-py3-none-any.whl
	$(RELEASE)/bin/python -m build --outdir dist .
	$(RELEASE)/bin/twine check --strict dist/bolt_numba-*
	$(RELEASE)/bin/python -m bench.sbom dist/bolt_numba-*.whl

SCHEMA := $(RELEASE)/bin/check-jsonschema --builtin-schema
protocol: $(STAMP) ## Write the stored messages of bolt_numba/serve/inference.proto anew.
	$(BIN)/python -m grpc_tools.protoc -Ibolt_numba/serve --descriptor_set_out=bolt_numba/serve/inference.binpb inference.proto

workflows: $(RELEASE)/.installed ## Lint the workflows and the forms of issues.
	$(RELEASE)/bin/zizmor --offline --persona=pedantic .github
	$(SCHEMA) vendor.github-workflows .github/workflows/*.yml
	$(SCHEMA) vendor.dependabot .github/dependabot.yml
	$(SCHEMA) vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
	$(SCHEMA) vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml

attack: $(STAMP) ## Attack the engine at length: operands, altered models, damaged files (hours).
	$(BIN)/python -m tests.attack operands --count 100000
	$(BIN)/python -m tests.attack models --count 100000
	$(BIN)/python -m tests.attack files --count 100000
	$(BIN)/python -m tests.attack documents --count 100000
	$(BIN)/python -m tests.attack formats --count 100000
	$(BIN)/python -m tests.attack texts --count 100000

TARGET ?= onnx
SECONDS ?= 600
fuzz: $(STAMP) ## Fuzz what reads files, by coverage: make fuzz TARGET=tflite SECONDS=600 (or caffe, paddle, gguf, onnx, bolt, packed, program, flow).
	$(BIN)/python -m pip install --quiet -r tests/fuzz/requirements.txt
	$(BIN)/python -W ignore -m tests.fuzz run $(TARGET) --seconds $(SECONDS)

pages: $(STAMP) ## Run all that the pages of the documentation say.
	$(BIN)/python -m pytest -q tests/test_pages.py

site: $(STAMP) ## Build the documentation in build/site, links checked.
	PYTHONWARNINGS='ignore:Editable installation' $(BIN)/python -m pip install --quiet -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

NEW := $(CURDIR)/build/newcomer
newcomer: ## Do what quick start and OCR tutorial say, in a checkout, an empty environment and an empty cache.
	rm -rf $(NEW) && mkdir -p $(NEW)/checkout && $(PYTHON) -m venv $(NEW)/venv
	git ls-files -z | xargs -0 cp --parents --no-dereference --target-directory=$(NEW)/checkout
	for page in start tutorials/ocr; do \
		BOLT_NUMBA_CACHE_DIR=$(NEW)/cache PATH=$(NEW)/venv/bin:$$PATH \
		$(NEW)/venv/bin/python tests/pages.py --fresh docs/$$page.md $(NEW)/checkout || exit 1; done

hooks: $(STAMP) $(RELEASE)/.installed ## Install the pre-commit hooks.
	$(RELEASE)/bin/pre-commit install

clean: ## Remove the environment and what builds leave behind.
	rm -rf $(VENV) $(PEERS) $(CLIENTS) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
