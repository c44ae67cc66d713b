# vrdma: RDMA for machines without RDMA hardware. `make help` lists the targets.

GO       ?= go
ifeq ($(origin CC),default)
CC       := gcc
endif
VERSION  := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
# The date of the commit, not of the build: two builds of a commit are equal.
COMMIT    = $(shell git rev-parse HEAD 2>/dev/null)
DATE      = $(shell TZ=UTC0 git log -1 --format=%cd --date=format-local:%Y-%m-%dT%H:%M:%SZ 2>/dev/null)
BUILDINFO := vrdma.dev/vrdma/internal/buildinfo
LDFLAGS   = -s -w -X $(BUILDINFO).version=$(VERSION) -X $(BUILDINFO).commit=$(COMMIT) -X $(BUILDINFO).date=$(DATE)

# Of one package's tests.
TIMEOUT  ?= 30m
# The race detector makes Go 5 to 10 times slower. Few tests compare times or rates
# (docs/reference/testing.md lists them), so this costs only time.
UNIT     := ./cmd/... ./examples/... ./internal/... ./packaging/... ./shim/... ./verbs/...
# These only compute, each case on one goroutine. The race detector can find nothing in them, and without it there is
# time for tens of thousands of cases, and for every interleaving. TestPure of package imports checks the first line.
# Only simnet's hosts with several loops have goroutines: their tests run with and without it.
PURE     := internal/device/schedule|internal/device/transport|internal/cm/rdmacm
MODELS   := internal/testkit/armcheck|internal/testkit/simnet|internal/testkit/swapcheck
# Integration tests run JOBS packages at a time, the longest first. Most wait more than they compute.
JOBS     ?= 2
LONG     := ./test/guest ./test/wire ./test
# Daemons of packages in LOOPED have three loops, others one. Tests in BOTH run with one loop and with three: hostile programs and
# packets, verbs of every kind, multicast. make test-all gives every daemon four.
LOOPED   := cm|goverbs|sockets|tenants
BOTH     := ^(TestHostileProgram|TestHostileMessages|TestHostileNetwork|TestForgedByLocalUser|TestVerbs|TestMulticast)$$
LOOPS    ?=
# These tests compare rates, so nothing else runs beside them. Nothing runs beside package memory either: it needs the
# whole memlock limit of an ordinary user.
ALONE    := ^(TestRecovery|TestCongestion|TestSharesAcross|TestCapAcross)$$
# make check vets everything; go test need not do it again.
GOTEST    = $(GO) test -vet=off -timeout $(TIMEOUT)
# The same settings as for bin/vrdma: the go command then compiles every package once for all of these.
PLAIN    := CGO_ENABLED=0 GOFLAGS="$$($(GO) env GOFLAGS) -trimpath"
FUZZTIME ?= 20s

# help is the default target.
.DEFAULT_GOAL := help
.PHONY: help build kube test test-all test-kube check unit integration demo demo-migrate bench report report-page docs performance moves programs stress fuzz clean deps-build deps-demo deps-test deps-bench deps-package

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile packaging/packaging.mk

# BIN and GOARCH together with CC build for another architecture: see packaging/packaging.mk.
BIN      := bin

build: $(BIN)/vrdma $(BIN)/libvrdma.so $(BIN)/libvrdma-sockets.so $(BIN)/vrdma_criu_plugin.so ## bin/vrdma and the shared objects beside it

# The go command decides what is up to date.
.PHONY: $(BIN)/vrdma
$(BIN)/vrdma:
	@mkdir -p $(BIN)
	@CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o $@ ./cmd/vrdma

kube: $(BIN)/vrdma-kube ## bin/vrdma-kube: device plugin and DRA driver for Kubernetes

.PHONY: $(BIN)/vrdma-kube
$(BIN)/vrdma-kube:
	@mkdir -p $(BIN)
	@CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o $@ ./cmd/vrdma-kube

# bin/libvrdma.so, bin/libvrdma-sockets.so
include shim/shim.mk
# install, uninstall, package, images, release
include packaging/packaging.mk

test: deps-test build check unit integration ## everything that must pass, as .ci/run calls it
	@echo "make test: all passed"

# The long form of every test.
test-all: export VRDMA_TEST_ALL := 1
test-all: export VRDMA_CONVERSATIONS := 100000
test-all: export VRDMA_RACES := 100000000
test-all: TIMEOUT := 6h
test-all: LOOPS := 4
test-all: test fuzz ## the long form of everything, and every fuzz target for FUZZTIME each

check: ## formatting, go vet, staticcheck, shell scripts
	@unformatted=$$(gofmt -l cmd examples internal packaging shim test verbs); if [ -n "$$unformatted" ]; then \
		echo "not formatted, run gofmt -w on:" $$unformatted >&2; exit 1; fi
	$(PLAIN) $(GO) vet ./...
	$(PLAIN) $(GO) tool staticcheck ./...
	@for script in .ci/run tools/install-deps tools/arm64-root tools/chromium tools/container-image tools/criu-image tools/debian-root tools/engine-image tools/fabtests tools/fuzz-corpus tools/gpu-bundle tools/helm tools/kubelet tools/module-path tools/multus tools/newest-root tools/stress tools/unpacked tools/valkey test/guest/image test/guest/init internal/instrument/testbed/programs/*.sh cmd/vrdma/guest/install contrib/ci/install packaging/version packaging/install packaging/scripts/*; do sh -n $$script || exit 1; done

unit: ## Go tests of every package, with the race detector
	$(GOTEST) -race $$($(GO) list $(UNIT) | grep -vE '/($(PURE)|$(MODELS))$$')
	$(GOTEST) -race -run Loops ./internal/testkit/simnet
	VRDMA_LOOPS=$(or $(LOOPS),3) $(GOTEST) -race ./internal/client/vm
	$(PLAIN) $(GOTEST) $$($(GO) list $(UNIT) | grep -E '/($(PURE)|$(MODELS))$$')

# VRDMA_BUILT tells the tests that bin/ is up to date.
integration: export VRDMA_BUILT := 1
integration: build kube ## real programs against a real daemon
	VRDMA_LOOPS=$(LOOPS) $(GOTEST) -race -p $(JOBS) -skip '$(ALONE)' $(LONG) $$($(GO) list ./test/... | grep -vE '/test/(memory|$(LOOPED))$$')
	VRDMA_LOOPS=$(or $(LOOPS),3) $(GOTEST) -race -p $(JOBS) $$($(GO) list ./test/... | grep -E '/test/($(LOOPED))$$')
	[ -n "$(LOOPS)" ] || VRDMA_LOOPS=3 $(GOTEST) -race -p $(JOBS) -run '$(BOTH)' ./test ./test/wire
	VRDMA_LOOPS=$(LOOPS) $(GOTEST) -race ./test/memory
	VRDMA_LOOPS=$(LOOPS) $(GOTEST) -race -p 1 -run '$(ALONE)' ./test/wire

# The first run builds Kubernetes from its sources: about ten minutes of processor time.
test-kube: deps-test build kube ## pods and claims with a real Kubernetes and containerd
	$(GO) test -tags kube -timeout 60m -count=1 -run TestKube -v ./test/containers

demo: deps-demo build ## a demonstration in a minute: RDMA through vrdma beside TCP
	@bin/vrdma demo

# As root. What the machine lacks of podman and CRIU is unpacked into the cache.
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/vrdma
demo-migrate: deps-demo build ## a container that moves to another host under ib_write_bw
	@tools/container-image $(CACHE)/image-host host && tools/criu-image $(CACHE)/criu
	@bin/vrdma demo migrate

bench: deps-bench build ## the speed table, also written to bench/results
	@bin/vrdma bench --out bench/results

# About two hours, on an idle machine. After an interruption it continues. The results name the commit, so there must be one.
# make report SUITES=thesis measures one suite, and makes the page of all measured suites.
REPORT := bench/results/report
SUITES := quick thesis slides lab progress mikelangelo
report: deps-bench build ## docs/report: every suite, measured here
	@[ -z "$$(git status --porcelain -uno)" ] || { echo "make report: the work tree has changes that no commit has; commit them first" >&2; exit 1; }
	@for suite in $(SUITES); do \
		if [ -e $(REPORT)/$$suite/results.ndjson ]; then bin/vrdma bench run --resume --out $(REPORT)/$$suite; \
		else bin/vrdma bench run $$suite --out $(REPORT)/$$suite; fi || exit; \
	done
	@for suite in $(SUITES); do gzip -9nc $(REPORT)/$$suite/results.ndjson >docs/report/$$suite.ndjson.gz || exit; done
	@rm -rf docs/report/figures
	@bin/vrdma report $(REPORT)/*/ -o docs/report --figures

report-page: build ## docs/report again, from the results beside it
	@rm -rf $(REPORT)/page
	@for file in docs/report/*.ndjson.gz; do [ -e $$file ] || { echo "docs/report has no results: make report measures them"; exit 1; }; suite=$$(basename $$file .ndjson.gz); \
		mkdir -p $(REPORT)/page/$$suite && gunzip -c $$file >$(REPORT)/page/$$suite/results.ndjson || exit; \
	done
	@rm -rf docs/report/figures
	@bin/vrdma report $(REPORT)/page/*/ -o docs/report --figures

# The tests compare generated pages with the code; with VRDMA_UPDATE_DOCS=1 they write them.
docs: ## write the generated parts of the documents
	VRDMA_UPDATE_DOCS=1 $(GO) test -count=1 -run '^(TestReference|TestList|TestPerformance)$$' $(patsubst %,./%,$(dir $(shell git ls-files '*/reference_test.go'))) ./internal/daemon ./test/docs

# make performance RESULTS=FILE.json uses another file than the newest of bench/results.
RESULTS ?= $(lastword $(sort $(wildcard bench/results/*.json)))
performance: ## the table of docs/explanation/performance.md from a run of make bench
	@[ -n "$(RESULTS)" ] || { echo "no results: run make bench, or make performance RESULTS=FILE.json" >&2; exit 1; }
	cp $(RESULTS) docs/report/bench.json
	VRDMA_UPDATE_DOCS=1 $(GO) test -count=1 -run '^TestPerformance$$' ./test/docs

# make moves MOVES=FILE.json uses the results of another run of bench --only move.
moves: build ## the table of docs/explanation/live-migration.md, measured here as root
	@[ -n "$(MOVES)" ] || { rm -rf bench/results/move && bin/vrdma bench --only move --rounds 10 --out bench/results/move >/dev/null; }
	cp $(or $(MOVES),bench/results/move/*.json) docs/report/move.json
	VRDMA_UPDATE_DOCS=1 $(GO) test -count=1 -run '^TestMoves$$' ./test/docs

programs: deps-test build ## docs/reference/programs.md: applications over RDMA and over TCP, measured here
	@rm -f docs/report/programs.ndjson
	VRDMA_PROGRAMS=docs/report/programs.ndjson VRDMA_BUILT=1 $(GO) test -vet=off -count=1 -timeout 30m ./test/apps
	VRDMA_UPDATE_DOCS=1 $(GO) test -count=1 -run '^TestPrograms$$' ./test/docs

# make stress PKG=./test/wire RUN=TestRecovery N=50
PKG ?= ./internal/...
RUN ?= .
N   ?= 50
stress: build ## run tests of PKG that match RUN N times while all processors are busy
	@GO='$(GO)' tools/stress '$(PKG)' '$(RUN)' '$(N)'

# Goroutines make coverage differ between runs. Minimising interesting inputs would then take all of the
# time.
fuzz: ## every fuzz target for FUZZTIME each
	@set -e; for file in $$(grep -rl --include='*_test.go' '^func Fuzz' cmd internal packaging shim verbs); do \
		for name in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' $$file); do \
			echo "fuzz: $$name in $$(dirname $$file)"; \
			$(GO) test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x ./$$(dirname $$file); \
		done; \
	done

clean: ## remove the build's files
	rm -rf bin bench/results dist

# VRDMA_SKIP_DEPS=1 skips the installation of packages and Go modules.
deps-build deps-demo deps-test deps-bench deps-package:
	@[ -n "$(VRDMA_SKIP_DEPS)" ] || tools/install-deps build $(patsubst deps-%,%,$(filter-out deps-build,$@)) $(if $(filter deps-test,$@),demo) $(if $(filter deps-bench,$@),demo test)
	@[ -n "$(VRDMA_SKIP_DEPS)$(filter deps-demo deps-bench deps-package,$@)" ] || $(GO) mod download || echo "make: not all Go modules can be downloaded; go test says which it needs" >&2
