# The two commands that matter: `make demo` and `make test`. `make help` tells the others.
#
# Every target works in a fresh clone. What is missing is built: Rust programs into target/ (or CARGO_TARGET_DIR), the
# components of the test control plane, once for each version, into a cache folder outside the clone.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

CARGO ?= cargo
# No more than what the tests and the demonstration run: the dev profile builds several times faster than release, and
# one set of options for all commands means that each dependency is compiled once.
PROGRAMS := --bins --example demo
# The crates below the operator, from the ground up.
CRATES := csi-attacher-proto csi-attacher-base csi-attacher-workqueue csi-attacher-kubeconfig csi-attacher-model csi-attacher-telemetry csi-attacher-kube csi-attacher-csi csi-attacher-runtime csi-attacher-attach csi-attacher-provision
HISTORIES ?= 100000
# These tests wait more than they compute, also for control planes of their own, of which only a few run at a time.
THREADS ?= $(shell echo $$(($$(nproc) * 3)))
SEED ?= 1
target := $(or $(CARGO_TARGET_DIR),target)

# Tests write down here what this machine does not allow to be tried; `make test` tells it last.
export LEFT_OUT := $(abspath $(target))/left-out

# So that `make demo ONCE=1 KUBECONFIG_TARGET=path` works like variables of the environment.
export ONCE KUBECONFIG_TARGET JAEGER

.PHONY: help demo test forget-left-out fmt fmt-check lint alone together unit tables integration soak rbac-proof rbac-docs conformance conformance-sidecar conformance-results csi-sanity e2e simulation model-check bench bench-docs \
	failover why chaos \
	numbers circles attach-map generate image image-contents image-test image-run image-reproducible sbom prometheus-rule kubectl-docs trace-docs doc deny tools chart chart-update programs controlplane sidecar jaeger prometheus helm haproxy check-arm64 need-rust clean

help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1|\2/' | column -t -s '|' 2>/dev/null \
		|| grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST)

demo: need-rust ## Show the operator at work; ONCE=1 ends by itself, JAEGER=1 traces to Jaeger, KUBECONFIG_TARGET=path uses an existing cluster
	@if [[ -z "$${KUBECONFIG_TARGET:-}" ]]; then tests/controlplane/build >/dev/null; fi
	@if [[ "$${JAEGER:-0}" != 0 ]]; then tests/controlplane/build jaeger >/dev/null; fi
	@echo "Building the operator and the mock driver (a few minutes the first time) ..."
	@$(CARGO) build --quiet $(PROGRAMS)
	@exec $(target)/debug/examples/demo

test: forget-left-out fmt-check lint alone together unit tables chart integration conformance csi-sanity ## All that must hold: format, lints, unit, property and integration tests, chart, conformance
	@[[ ! -s $(LEFT_OUT) ]] || { printf '\n!!! LEFT OUT, so that nothing is known about it:\n'; sort -u $(LEFT_OUT); }

forget-left-out:
	@mkdir -p $(dir $(LEFT_OUT)) && rm -f $(LEFT_OUT)

fmt: need-rust ## Format the sources
	$(CARGO) fmt --all

fmt-check: need-rust ## Check the format of the sources
	$(CARGO) fmt --all --check

lint: need-rust ## Run clippy; a warning is an error
	$(CARGO) clippy --quiet --all-targets -- -D warnings

alone: need-rust ## Check each crate that the operator is made of without the others: its list of dependencies is complete
	@for crate in $(CRATES); do $(CARGO) check --quiet --package "$$crate"; done

# Whatever the tests need, in one build: of several, each would wait at its end for one large crate, with the other cores idle.
together: need-rust
	$(CARGO) build --quiet --tests $(PROGRAMS)

unit: need-rust ## Run unit and property tests of all crates (they also compare crds/ with the types)
	$(CARGO) test --quiet --lib --bin csi-attacher-conformance

tables: need-rust ## Play the tables of the Go sidecar's own tests, and count their rows
	@CARGO='$(CARGO)' tests/sidecar-tables

integration: programs controlplane sidecar jaeger prometheus helm haproxy ## Run the tests on real API servers
	$(CARGO) test --quiet --test it -- --test-threads=$(THREADS)

soak: programs controlplane sidecar jaeger prometheus helm haproxy ## Run the integration tests while their processes stand still now and then; ONLY=words, STALL=seconds
	@tests/stalls tests/selected $(CARGO) test --test it -- --test-threads=$(THREADS) $(ONLY)

rbac-proof: programs controlplane ## Prove that the chart grants what is needed and nothing else: take each right away and see a test fail
	tests/selected $(CARGO) test --quiet --test it -- --nocapture rbac:: unprivileged::

rbac-docs: need-rust ## Write the table of permissions in docs/reference/RBAC.md
	UPDATE=1 tests/selected $(CARGO) test --quiet --test it -- rbac::document

# What the suite is given besides the attacher: CONFORMANCE='--run=^detach/ --json=FILE', see --help.
conformance = $(target)/debug/csi-attacher-conformance

conformance: programs controlplane ## Put the operator, or the attacher that ATTACHER_CMD runs, to the conformance suite; CONFORMANCE=options
	$(if $(ATTACHER_CMD),,$(conformance) --operator=$(target)/debug/csi-attacher-operator $(CONFORMANCE))
	$(if $(ATTACHER_CMD),ATTACHER_CMD='$(ATTACHER_CMD)' $(conformance) $(CONFORMANCE))

sidecar_flags = --kubeconfig={kubeconfig} --csi-address={socket}
conformance-sidecar: programs controlplane ## Put the Go sidecars to the conformance suite: checks what the suite demands
	attacher=$$(tests/controlplane/build --path csi-attacher) && \
		$(conformance) --role=attach --attacher="sidecar=$$attacher $(sidecar_flags)" $(CONFORMANCE)
	provisioner=$$(tests/controlplane/build --path csi-provisioner) && \
		$(conformance) --role=provision --peer --attacher="sidecar=$$provisioner $(sidecar_flags)" $(CONFORMANCE)

conformance-results: programs controlplane ## Put the operator and the Go sidecars to the suite, and write the tables of docs/contribute/CONFORMANCE.md
	attacher=$$(tests/controlplane/build --path csi-attacher) && \
		$(conformance) --role=attach --operator=$(target)/debug/csi-attacher-operator \
			--attacher="sidecar=$$attacher $(sidecar_flags)" --document=docs/contribute/CONFORMANCE.md $(CONFORMANCE)
	provisioner=$$(tests/controlplane/build --path csi-provisioner) && \
		$(conformance) --role=provision --peer --operator=$(target)/debug/csi-attacher-operator \
			--attacher="sidecar=$$provisioner $(sidecar_flags)" --document=docs/contribute/CONFORMANCE.md $(CONFORMANCE)

csi-sanity: programs ## Run the conformance test for CSI drivers on the mock driver
	CSI_MOCK_DRIVER=$(target)/debug/csi-mock-driver tests/csi-sanity

# Whether the machine allows it is asked before anything is built.
e2e: need-rust ## Install the chart on a real kubelet, roll, kill, drain, swap; needs root and namespaces, takes 5 minutes after the builds
	@tests/e2e/cluster --probe
	@$(MAKE) programs image
	@OPERATOR_IMAGE=$(target)/image/csi-attacher-operator.tar MOCK_DRIVER=$(target)/debug/csi-mock-driver \
		CSI_ATTACHER=$$(tests/controlplane/build --path csi-attacher) tests/e2e/cluster tests/e2e/run

# Dependencies are built once more, with some optimisation: without it 100,000 histories take four times as long.
simulation: need-rust ## Run HISTORIES=100000 simulated histories of attaching and of both roles from SEED=1 on, and find every mutant
	SIMULATION_HISTORIES=$(HISTORIES) SIMULATION_SEED=$(SEED) RUST_BACKTRACE=0 tests/selected $(CARGO) test --quiet --profile simulation --package csi-attacher-attach --lib -- \
		driver::simulation --include-ignored --nocapture --test-threads=1
	$(CARGO) run --quiet --profile simulation --package csi-attacher-model-check -- --histories --seed=$(SEED) --count=$(HISTORIES)

# Its states are few enough for each change; those of LARGE=1 are for whoever changes a rule, and take half an hour.
model-check: need-rust ## Visit every state of small worlds, and find every wrong operator; LARGE=1 the large worlds, ONLY=words of a world
	$(CARGO) run --quiet --profile simulation --package csi-attacher-model-check -- $(if $(LARGE),--large) $(if $(ONLY),'--only=$(ONLY)')

bench: need-rust controlplane sidecar ## Print the table of performance, every row with target and pass or miss; hours. ONLY=words of scenes, ONLY=--list, SIDECAR=0, ATTACHER_CMD=, BENCH_JSON=
	$(CARGO) bench --bench cluster

bench-docs: need-rust ## Write the results of make bench into README.md, docs/operate/PERFORMANCE.md and SIZING.md
	$(CARGO) bench --bench cluster -- docs

failover: need-rust controlplane ## Hand a driver over and kill its replica, HANDOVERS=200 times, and look whether anything is lost
	$(CARGO) bench --bench cluster -- failover

chaos: need-rust controlplane ## Let everything around the operator fail while volumes come and go; SEED=, CHAOS=3m, CHAOS_FAULTS=, CHAOS_PARTS=, ONLY=--list
	$(CARGO) test --quiet --test chaos -- $(ONLY)

why: need-rust controlplane ## Measure `kubectl attacher why` at PODS=10000 and VOLUMES=5000
	$(CARGO) build --release --quiet --package kubectl-attacher
	$(CARGO) bench --bench cluster -- why

circles: ## Fail if files import each other in circles of more than 3 (tests/numbers --circles lists them)
	@tests/numbers --circles --at-most=3 >/dev/null

attach-map: need-rust ## Compare the list of the functions of an attach in ARCHITECTURE with what valgrind finds; WRITE=1 writes the list
	@CARGO='$(CARGO)' tests/attach-map $(if $(WRITE),--write)

numbers: need-rust ## Print how much there is to read: lines, concepts, import circles, crates, and the times of the last .ci/run
	@tests/numbers

generate: need-rust ## Write what is made from the code: crds/, the schema of the chart, docs/reference/FIELDS.md, docs/reference/FLAGS.md, docs/reference/TRACES.md, crates/telemetry/src/names/registry.rs
	UPDATE=1 $(CARGO) test --quiet --package csi-attacher-trace-registry --lib
	UPDATE=1 tests/selected $(CARGO) test --quiet --lib -- api::tests::crd api::tests::values_schema supervisor::tests::fields \
		cli::document_tests
	@tests/chart/copies --update

prometheus-rule: need-rust ## Write config/prometheus/prometheusrule.yaml from the alerts
	UPDATE=1 tests/selected $(CARGO) test --quiet --test it -- prometheus_rules::the_manifest
	@tests/chart/copies --update

kubectl-docs: need-rust controlplane ## Write the output in docs/reference/ATTACHERCONFIG.md, from real commands
	UPDATE=1 tests/selected $(CARGO) test --quiet --test it -- kubectl_docs::the_document

trace-docs: need-rust controlplane jaeger ## Write the trace in docs/operate/TRACING.md, from a real Jaeger
	UPDATE=1 tests/selected $(CARGO) test --quiet --test it -- jaeger::document::t2_the_document

doc: need-rust ## Build the documentation of the code; a warning is an error
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --quiet --no-deps

deny: need-rust ## Check licences, bans and sources of the dependencies
	@# cargo deny reads the dependencies of all platforms, of which a build fetches its own only.
	$(CARGO) fetch --quiet --locked
	PATH="$$(.ci/cargo-tool cargo-deny):$$PATH" $(CARGO) deny --offline --workspace check --hide-inclusion-graph bans licenses sources

tools: need-rust ## Build the tools of cargo that make deny and make sbom use
	@for tool in cargo-deny cargo-cyclonedx; do .ci/cargo-tool "$$tool"; done

image: need-rust ## Make the image of the operator without Docker: target/image/csi-attacher-operator.tar
	@image/build

image-contents: ## List what is in the image that make image made, and refuse what should not be
	@image/contents

image-test: ## Look whether images and bills of materials with a fault are refused; after make sbom
	@tests/image/refused
	@tests/image/bill

image-run: ## Start the image in containers: read-only root, not root; needs root
	@tests/image/run

image-reproducible: ## Build the image of the last commit once more from nothing in another folder, and compare
	@image/reproducible

sbom: image ## Write the bill of materials of the image, in CycloneDX: target/image/csi-attacher-operator.cdx.json
	@image/sbom
	@image/sbom --check

chart: ## Lint the chart, compare what it renders with tests/chart/golden, and look whether wrong values are refused
	@tests/chart/check

chart-update: ## Accept what the chart renders, and write its README
	@tests/chart/check --update

programs: need-rust
	$(CARGO) build --quiet $(PROGRAMS)

controlplane: ## Build the components of the test control plane now rather than when they are first needed
	@tests/controlplane/build >/dev/null

sidecar: ## Build the Go sidecar, which the tests of take-over run, now rather than when it is first needed
	@tests/controlplane/build csi-attacher csi-provisioner >/dev/null

jaeger: ## Build Jaeger and the CSI driver that traces now rather than when they are first needed; 5 to 12 minutes
	@tests/controlplane/build jaeger csi-traced-driver >/dev/null

helm: ## Build helm, which renders the chart in tests, now rather than when it is first needed; 2 to 5 minutes
	@tests/controlplane/build helm >/dev/null

prometheus: ## Get Prometheus and promtool, which the tests of metrics and alerts run, now rather than when first needed
	@tests/prometheus/fetch >/dev/null

haproxy: ## Get HAProxy, which stands before a driver in a test, now rather than when first needed
	@tests/haproxy/fetch >/dev/null

# aws-lc-sys has C and assembler, for which a cross compiler would be needed. `cargo check` does not link, so that a C compiler that does nothing
# is enough for the Rust sources; the whole is compiled on arm64 by .github/workflows.
check-arm64: need-rust ## Check that the Rust sources compile for arm64; fetches Rust's library for it
	rustup --quiet target add aarch64-unknown-linux-gnu
	CC_aarch64_unknown_linux_gnu=true AR_aarch64_unknown_linux_gnu=true \
		$(CARGO) check --quiet --locked --target aarch64-unknown-linux-gnu --package csi-attacher-operator

need-rust:
	@.ci/need-rust

clean: ## Remove target/; the cache of the control plane stays
	$(CARGO) clean
