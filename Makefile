# Everything a person or CI runs. Programs and images that take minutes to build are kept in CACHE, not in the checkout.
SHELL := /bin/bash -o pipefail
.DEFAULT_GOAL := help

CACHE ?= $(or $(TRAININGJOB_CACHE),$(HOME)/.cache/trainingjob)
export TRAININGJOB_CACHE := $(CACHE)
# A folder below CACHE for each checkout, so that none runs what another one compiled; it begins with the dependencies of
# others (tests/runner/buildfolder.py). Found once, before the first command of a goal that may compile.
ifneq ($(filter-out help clean,$(or $(MAKECMDGOALS),help)),)
ifndef CARGO_BUILD_BUILD_DIR
export CARGO_BUILD_BUILD_DIR := $(shell tests/build-dir)
endif
endif
# Where a release is published: the image, the chart and the files follow from it (release/parts/where.py).
PUBLISH ?=
export PUBLISH
# The cluster of `make demo` and `make cluster`, and how many real nodes a new one gets.
CLUSTER ?= demo
NODES ?= 1
# What builds the image: buildah (installed by itself on Debian as root), podman or docker.
BUILDER ?= buildah

IMAGE := localhost/trainingjob-operator:dev
TRIPLE = $(shell rustc -vV 2>/dev/null | sed -n 's/^host: //p')
# Pinned, for another version finds other things.
RUFF := $(CACHE)/ruff-0.17.6/bin/ruff
DENY = $(firstword $(wildcard $(CACHE)/bin/cargo-deny) $(shell command -v cargo-deny))

.PHONY: help release demo demo-cluster dev-image test soak gpu unit lint fmt audit docs generate cluster image binaries plugin bench clean need-rust

help: ## show this list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18
	@echo "variables: CLUSTER=$(CLUSTER) NODES=$(NODES) BUILDER=$(BUILDER) CACHE=$(CACHE)"

# Both are started together: what compiles leaves gaps that downloads and single-threaded links fill.
demo: need-rust ## train a model on a real Kubernetes: its own, or the one of KUBECONFIG or DEMO_CONTEXT
	@$(MAKE) --no-print-directory --jobs 2 dev-image demo-cluster
	@demo/run --name $(CLUSTER) --image dist/dev-image.tar

demo-cluster:
	@devcluster/cluster prepare demo

cluster: ## start a cluster (CLUSTER=name NODES=1) and print `export KUBECONFIG=...`
	@devcluster/cluster up --name $(CLUSTER) --nodes $(NODES)

# Phases and lanes: tests/runner/plan.py and tests/runner/lanes.py.
test: ## lint, unit tests and the tests against real clusters
	@tests/run

# Hours for the machine, not for CI; each trial has a short form in `make test`. Their table: tests/runner/soak.py.
soak: ## long trials: storms, kills, hostile volumes, lost nodes, frameworks (`tests/run --list` lists them)
	@tests/run --soak

# What is missing is said before anything is compiled. GPU_FLAGS: `tests/gpu/run --help`.
gpu: need-rust ## the agent on a real NVIDIA GPU: NCCL, CUDA's errors, hangs; at most eight minutes, no Kubernetes
	@tests/gpu/run --check
	cargo build --bin agent
	$(call static,agent,debug)
	@tests/gpu/run --agent target/$(TRIPLE)/debug/agent $(GPU_FLAGS)

unit: ## the tests that need no cluster
	@tests/run --unit

lint: ## formatting, clippy, ruff, licences and sources of the dependencies
	@tests/run --lint

.PHONY: ruff
ruff: $(RUFF)
	@$(RUFF) check --quiet --no-cache

fmt: need-rust ## format the code
	cargo fmt --all

audit: need-rust $(CACHE)/bin/cargo-deny ## known vulnerabilities of the dependencies (fetches the RustSec database), and what `make lint` checks of them
	$(DENY) --log-level warn check

# Once per machine, for `make audit` alone; two and a half minutes on two cores. One that is on PATH serves as well.
$(CACHE)/bin/cargo-deny:
	@if deny=$$(command -v cargo-deny); then mkdir -p $(@D) && ln -sf "$$deny" $@; else \
	  echo "installing cargo-deny into $(CACHE)/bin (once)" >&2 && \
	  CARGO_BUILD_BUILD_DIR= CARGO_TARGET_DIR=$(CACHE)/cargo-deny-build cargo install --quiet --locked --root $(CACHE) cargo-deny && \
	  rm -rf $(CACHE)/cargo-deny-build; fi

# A wheel with nothing else in it, in a virtual environment of its own.
$(RUFF):
	@devcluster/cluster packages --tests
	@echo "installing ruff into $(CACHE) (once)" >&2
	@folder=$(RUFF:/bin/ruff=) && python3 -m venv --clear $$folder && \
	 $$folder/bin/pip install --quiet --disable-pip-version-check --no-input ruff==$${folder##*-}

# Static (.cargo/config.toml says why), and checked, for the programs of the operator's image run where there is no loader.
define static
	@for program in $(1); do if readelf -lW target/$(TRIPLE)/$(2)/$$program | grep -q INTERP; then \
	  echo "$$program is not static: it needs a loader that the image does not have" >&2; exit 1; fi; done
endef

# What is shipped: optimised as a whole.
binaries: need-rust
	@[ -e target/$(TRIPLE)/release/operator ] || echo "compiling operator and agent with full optimisation: about 340 crates," \
	  "6 to 7 minutes on 2 quiet cores if none was built before" >&2
	cargo build --release --locked --bin operator --bin agent
	$(call static,operator agent,release)
	@mkdir -p target/release dist
	@for program in operator agent; do \
	  install -C target/$(TRIPLE)/release/$$program target/release/$$program; \
	  install -C target/$(TRIPLE)/release/$$program dist/$$program; done
	@rm -rf dist/image && mkdir dist/image && install dist/operator dist/image/ && dist/agent install --to $(CURDIR)/dist/image/agent

docs: need-rust $(CACHE)/bin/mdbook ## the docs as a book in target/book, with its links checked
	PATH=$(CACHE)/bin:$$PATH mdbook build docs
	@python3 -B tests/book/check.py target/book

# Once per machine, for `make docs` alone. One that is on PATH serves as well.
$(CACHE)/bin/mdbook:
	@if mdbook=$$(command -v mdbook); then mkdir -p $(@D) && ln -sf "$$mdbook" $@; else \
	  echo "installing mdbook into $(CACHE)/bin (once)" >&2 && \
	  CARGO_BUILD_BUILD_DIR= CARGO_TARGET_DIR=$(CACHE)/mdbook-build cargo install --quiet --locked --root $(CACHE) mdbook@0.5.4 && \
	  rm -rf $(CACHE)/mdbook-build; fi

# The programs in the profile dev, sooner compiled than a release: for `make demo`.
dev-image: need-rust
	@[ -e target/$(TRIPLE)/debug/operator ] || echo "compiling operator and agent without optimisation: about 340 crates," \
	  "3 minutes on 2 quiet cores if none was built before, 6 to 7 beside Kubernetes" >&2
	cargo build --bin operator --bin agent
	$(call static,operator agent,debug)
	@devcluster/cluster operator-image --operator target/$(TRIPLE)/debug/operator --agent target/$(TRIPLE)/debug/agent \
	  --out dist/dev-image.tar

# The tests fail where one of these files is not what would be made.
generate: need-rust ## regenerate what is made from code: CRDs, tables of the docs, snapshots, alert rules
	cargo build --quiet --bin crdgen
	@crdgen=target/$(TRIPLE)/debug/crdgen && $$crdgen > crds/trainingjobs.yaml && \
	 $$crdgen --runtime ClusterTrainingRuntime > crds/clustertrainingruntimes.yaml && \
	 $$crdgen --runtime TrainingRuntime > crds/trainingruntimes.yaml && \
	 $$crdgen --tuning > crds/tuningjobs.yaml && \
	 $$crdgen --fields > docs/fields.md && $$crdgen --refusals > docs/refusals.md
	UPDATE=1 cargo test --quiet --test planes both_rule_files_have_the_same_rules
	INSTA_UPDATE=always cargo test --quiet --lib --package objects --package kubectl-trainingjob
	@git diff --stat

plugin: need-rust ## build `kubectl trainingjob` into target/release/kubectl-trainingjob
	cargo build --release --locked --bin kubectl-trainingjob
	@mkdir -p target/release
	@install -C target/$(TRIPLE)/release/kubectl-trainingjob target/release/kubectl-trainingjob
	@echo "target/release/kubectl-trainingjob: put it into a folder on PATH, such as by" \
	  "install -m 755 target/release/kubectl-trainingjob ~/.local/bin/"

# An archive that did not change keeps its time, so clusters that have it import nothing and restart nothing.
image: binaries ## build the operator's image into dist/image.tar (a docker-archive)
	@rm -rf dist/.new.tar dist/.buildah
ifeq ($(BUILDER),buildah)
	@devcluster/cluster packages
	@store="--root $(CURDIR)/dist/.buildah --runroot $(CURDIR)/dist/.buildah/run --storage-driver vfs" && \
	 buildah $$store bud --quiet --isolation chroot --timestamp 0 -f Dockerfile.programs -t $(IMAGE) dist/image > /dev/null && \
	 buildah $$store push --quiet $(IMAGE) docker-archive:dist/.new.tar:$(IMAGE)
	@rm -rf dist/.buildah
else
	$(BUILDER) build -q -f Dockerfile.programs -t $(IMAGE) dist/image
	$(BUILDER) save -o dist/.new.tar $(IMAGE)
endif
	@if cmp -s dist/.new.tar dist/image.tar; then rm dist/.new.tar; else mv dist/.new.tar dist/image.tar; fi
	@ls -lh dist/image.tar | awk '{print "dist/image.tar: $(IMAGE), " $$5}'

# PUBLISH=HOST/PATH says where it will be published, RELEASE_FLAGS: `release/make --help`; docs/release.md.
release: need-rust ## everything that is published of HEAD, into dist/release/VERSION: made twice, and compared
	@release/make $(RELEASE_FLAGS)

bench: binaries ## measure the operator on a control plane with simulated nodes (PEERS=1: and JobSet, Trainer v2 and training-operator v1)
	@TRAININGJOB_TEST_TOOLS=$$(devcluster/cluster tools) bench/run $(if $(PEERS),--peers)

clean: ## end the clusters of this checkout, remove what was built in it (not the cache)
	devcluster/cluster down --all
	rm -rf dist target

need-rust:
	@command -v cargo > /dev/null && command -v rustc > /dev/null || { \
	  echo "Rust is missing: install the stable toolchain (rustup), with rustfmt and clippy, and put cargo on PATH" >&2; exit 1; }
	@command -v cc > /dev/null || { echo "a C compiler is missing: on Debian, apt-get install gcc libc6-dev" >&2; exit 1; }
