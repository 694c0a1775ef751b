# Short names for what CMake's presets and the scripts in tools/ do. `make help` lists them.
# ARGS="key=value …" is handed to `make run`; JOBS=N limits the build (default: all cores).
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup build run test test-gpu bench bench-gpu parity docs dist test-dist format format-check lint clean

JOBS ?= $(shell nproc)
ARGS ?=
# CUDA=1 builds with kernels, CUDA=0 without; unsaid: with them where there is a GPU.
CUDA ?= $(if $(wildcard /dev/nvidia[0-9]*),1,0)
PRESET := $(if $(filter 1,$(CUDA)),cuda,cpu)
BUILD := build/$(PRESET)

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

setup: ## install missing packages by apt (root, or a user with sudo)
	@tools/setup.sh build test

$(BUILD)/build.ninja: | setup
	@if [ $(PRESET) = cuda ]; then tools/fetch_cudnn_frontend.sh || true; fi
	@cmake --preset $(PRESET)

build: setup $(BUILD)/build.ninja ## the program: build/bin/moebius (with CUDA where there is a GPU, or CUDA=1; CUDA=0: without)
	@cmake --build --preset $(PRESET) --target moebius -j $(JOBS)
	@mkdir -p build/bin
	@ln -sfn ../$(PRESET)/bin/moebius build/bin/moebius

run: build ## train the small model L0_sanity on the genome of E. coli (ARGS="key=value …" to change it)
	@tools/fetch_genome.sh
	@build/bin/moebius train --config-name L0_sanity $(ARGS)

test: build ## build and run all tests
	@cmake --build --preset $(PRESET) -j $(JOBS)
	@ctest --preset $(PRESET) -j $(JOBS)

test-gpu: ## build the kernels and run every op's cases on the GPU, with a table of passed and failed
	@tools/gpu_kernels.sh test

bench: build ## measure and write bench/results (idle machine, please)
	@tools/bench.sh

bench-gpu: ## the same on a GPU, beside Hugging Face and torch on that GPU
	@$(MAKE) --no-print-directory CUDA=1 build
	@tools/bench.sh --gpu

parity: build ## compare with Hugging Face (torch and transformers in a venv under build/)
	@tools/parity.sh

docs: build ## write docs/configuration.md and the tables of figures anew
	@build/bin/moebius config --docs >docs/configuration.md
	@tools/bench_report.py

dist: build ## a relocatable tarball under build/dist/
	@tools/setup.sh dist
	@MOEBIUS_BUILD=$(BUILD) tools/make_dist.sh

test-dist: dist ## unpack the tarball in a bare system and train two steps there (root or sudo)
	@tools/test_dist.sh

format: ## format all sources (clang-format 14)
	@tools/setup.sh develop
	@tools/format.sh

format-check:
	@tools/setup.sh develop
	@tools/format.sh --check

lint: format-check ## format, include arrows, licence list, shell syntax
	@tools/check_arrows.py
	@tools/check_third_party.py
	@tools/check_links.py
	@tools/check_test_names.py
	@for script in tools/*.sh .ci/run; do bash -n "$$script"; done

clean: ## remove build results (keeps build/data and cached systems)
	@rm -rf build/cpu build/cuda build/kernels build/asan build/tsan build/bin build/dist build/logs
