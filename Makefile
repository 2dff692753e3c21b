# mapsync. `make` lists the targets.

SHELL := /bin/bash
export CGO_ENABLED := 0
TOOL := go tool -modfile=tools/go.mod
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS := -s -w -X main.version=$(VERSION)

SESSIONS ?= 1000
ATTACH ?= kprobe
BUFFER ?= ring
LOAD ?= builtin
LAYOUTS ?= v1,v1
PREVIOUS ?=
KERNEL ?= host
KERNELS ?= 5.10 6.1 6.1/preempt=full 6.12 testing
FUZZTIME ?= 10s
SAMPLE ?= 0
SEED ?= 1
DURATION ?= 30m
RATE ?= 50000
FILES ?=
LIMIT ?= 1m
LENGTH ?= 10s
ATTACKS ?=
QUICK ?=
BIN ?= bin

.DEFAULT_GOAL := help
.PHONY: help build generate check-generate fmt lint deps test test-kernels attack chaos fuzz demo drill example-turn example-bundling example-counters example-jitter mutate soak bench report clean

help: ## list the targets
	@awk '/^##@ / {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {split($$0, line, /:.*## /); printf "  make %-16s %s\n", line[1], line[2]}' Makefile
	@echo
	@echo "Variables of demo and drill"
	@echo "  SESSIONS=$(SESSIONS) ATTACH=kprobe|fexit BUFFER=ring|perf LOAD=builtin|tcpkali|netperf"
	@echo "  LAYOUTS=v1,v1|v1,next|next,v1 (active, standby) PREVIOUS=active|standby (the previous release)"
	@echo "  KERNEL=host|native|5.10|6.1|6.1/preempt=full|6.12|testing"
	@echo "Variable of test-kernels"
	@echo "  KERNELS=\"$(KERNELS)\""

##@ Use

build: ## build bin/syncd
	@mkdir -p $(BIN)
	go build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/syncd ./syncd

demo: deps ## failover drill: kill a load balancer, check that all sessions survive
	@SESSIONS=$(SESSIONS) ATTACH=$(ATTACH) BUFFER=$(BUFFER) LOAD=$(LOAD) LAYOUTS=$(LAYOUTS) PREVIOUS=$(PREVIOUS) KERNEL=$(KERNEL) scripts/drill

drill: demo ## the same as demo, for example with SESSIONS=N

example-turn: deps ## TURN server: measure its XDP offload, kill one of a pair: KERNEL, CHANNELS=1000 ROUNDS=5
	@KERNEL=$(KERNEL) scripts/example-turn

example-bundling: deps ## measure the tracer of docs/examples/bundling: KERNEL, RATES=5000,15000,35000 CLIENTS=200,500,1000 LENGTH=5s ROUNDS=3 RATIO=5
	@KERNEL=$(KERNEL) scripts/example-bundling

example-counters: deps ## check and measure counters of TCP as metrics: KERNEL, ROUNDS=7 STARTS=50 RATIO=0.99
	@KERNEL=$(KERNEL) scripts/example-counters

example-jitter: deps ## compare the timer of IPVS with the calls of syncd: KERNEL, SERVICES=10,10000,30000 ENTRIES=1000000,10000000
	@KERNEL=$(KERNEL) scripts/example-jitter

##@ Develop

deps: ## install build and test dependencies, or list the missing ones
	@scripts/install-deps

fmt: ## format the Go and the C code (needs clang-format 14)
	$(TOOL) gofumpt -w $$(git ls-files '*.go' | grep -vE '\.pb\.go$$|_bpfel\.go$$')
	clang-format-14 -i $$(git ls-files '*.c' '*.h')

lint: ## run the linters
	@test -z "$$($(TOOL) gofumpt -l $$(git ls-files '*.go' | grep -vE '\.pb\.go$$|_bpfel\.go$$') | tee -a /dev/stderr)"
	scripts/modules go tool -modfile=$(CURDIR)/tools/go.mod golangci-lint run ./...
	$(TOOL) buf lint proto
	$(TOOL) buf breaking proto --against proto/previous-release.binpb
	go run ./internal/style/cmd/stylecheck
	scripts/modules check

generate: ## regenerate BPF objects and protobuf code (needs clang 14)
	scripts/install-deps generate
	scripts/modules go generate ./...

check-generate: generate ## regenerate and fail if anything changed, or if C code is not formatted
	@! git status --porcelain --untracked-files=all -- '*.o' '*_bpfel.go' '*.pb.go' '*.proto' '*.binpb' | grep '^.[^ ]' || \
		{ echo "check-generate: make generate changes these files: commit them" >&2; exit 1; }
	scripts/previous-release check
	clang-format-14 --dry-run --Werror $$(git ls-files '*.c' '*.h')

clean: ## remove the build output
	rm -rf bin

##@ Test

test: ## run all tests, hook tests on kernel 6.1
	@scripts/install-deps test
	scripts/test

test-kernels: deps ## run the kernel tests on every kernel of the matrix
	DRILLS=all scripts/test-kernels $(KERNELS)

fuzz: ## run each fuzz target for FUZZTIME (default 10s), at least 10,000 executions in 60 s
	scripts/fuzz $(FUZZTIME)

chaos: deps ## run chaos tests: SEEDS=200 natively, HOOKED=20 with hooks, MACHINES=1, SIMULATED=100000
	scripts/chaos

attack: ## attack three real daemons: LENGTH=10s each, ATTACKS=regular expression of names
	@mkdir -p bin
	go -C bench build -trimpath -o ../bin/attack ./attack
	bin/attack -length $(LENGTH) -run '$(ATTACKS)' -json bin/attack.json

mutate: ## mutation tests of the table and of replication: SAMPLE=200 SEED=1 FILES=expression LIMIT=400ms
	go run ./internal/mutate/cmd/mutate -sample $(SAMPLE) -limit $(LIMIT) -seed $(SEED) -files '$(FILES)' ./syncd/table ./syncd/replicate ./syncd/replicate/wire

soak: ## run two daemons under load for a long time: DURATION=30m RATE=50000
	@mkdir -p bin
	go -C bench build -trimpath -o ../bin/soak ./soak
	bin/soak -duration $(DURATION) -rate $(RATE)

##@ Measure

bench: deps ## run the benchmarks and compare them with their targets
	@mkdir -p bin
	go -C bench build -trimpath -o ../bin/throughput ./throughput
	bin/throughput -json bin/throughput.json
	@printf '\ncodec and protoc-generated code: one entry of 48 + 176 bytes with 40 fields\n'
	go test -run '^$$' -bench 'Encode|Decode' -benchmem ./syncd/schema
	@printf '\nsystem calls of other processes, without hooks and with each attach method of this kernel\n'
	go test -run '^$$' -bench Syscall ./syncd/capture

report: deps ## repeat the experiments of the LoxiLB article: tables and charts in docs/report; QUICK=1 in bin/report
	@QUICK=$(QUICK) KERNEL=$(KERNEL) scripts/report
