# mapsync. `make` alone says what can be made.

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

.DEFAULT_GOAL := help
.PHONY: help build generate check-generate fmt lint deps test test-kernels attack chaos fuzz demo drill mutate soak bench clean

help: ## say what can be made
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  demo and drill take SESSIONS=$(SESSIONS) ATTACH=kprobe|fexit BUFFER=ring|perf LOAD=builtin|tcpkali"
	@echo "  LAYOUTS=v1,v1|v1,next|next,v1 (active, standby)"
	@echo "  KERNEL=host|native|5.10|6.1|6.1/preempt=full|6.12|testing; test-kernels takes KERNELS=\"$(KERNELS)\""

build: ## build bin/syncd
	@mkdir -p bin
	go build -trimpath -ldflags '$(LDFLAGS)' -o bin/syncd ./syncd

generate: ## remake BPF objects and protobuf code (needs clang 14: scripts/install-deps generate)
	scripts/install-deps generate
	go generate ./...

check-generate: generate ## remake them and fail when that changed anything
	git diff --exit-code --stat -- '*.o' '*_bpfel.go' '*.pb.go' '*.proto'

fmt: ## format the Go code
	$(TOOL) gofumpt -w $$(git ls-files '*.go' | grep -vE '\.pb\.go$$|_bpfel\.go$$')

lint: ## run the linters
	@test -z "$$($(TOOL) gofumpt -l $$(git ls-files '*.go' | grep -vE '\.pb\.go$$|_bpfel\.go$$') | tee -a /dev/stderr)"
	$(TOOL) golangci-lint run ./...
	$(TOOL) buf lint proto

deps: ## install what building and testing need, or say what is missing
	@scripts/install-deps

test: ## run all tests, those of the hooks on kernel 6.1
	@scripts/install-deps test
	scripts/test

test-kernels: deps ## run the kernel tests on every kernel of the matrix
	DRILLS=all scripts/test-kernels $(KERNELS)

attack: ## attack three real daemons: LENGTH=10s each, ATTACKS=regular expression of names
	@mkdir -p bin
	go run ./bench/attack -length $(LENGTH) -run '$(ATTACKS)' -json bin/attack.json

chaos: deps ## let everything go wrong: SEEDS=200 natively, HOOKED=20 with hooks, SIMULATED=100000
	scripts/chaos

fuzz: ## run each fuzz target for FUZZTIME (default 10s)
	scripts/fuzz $(FUZZTIME)

demo: deps ## kill a load balancer and lose no session
	@SESSIONS=$(SESSIONS) ATTACH=$(ATTACH) BUFFER=$(BUFFER) LOAD=$(LOAD) LAYOUTS=$(LAYOUTS) KERNEL=$(KERNEL) scripts/drill

drill: demo ## the same with SESSIONS=N

mutate: ## test the tests of syncd/table and syncd/replicate: SAMPLE=200 SEED=1 FILES=expression LIMIT=400ms
	go run ./internal/mutate/cmd/mutate -sample $(SAMPLE) -limit $(LIMIT) -seed $(SEED) -files '$(FILES)' ./syncd/table ./syncd/replicate

soak: ## run two daemons under short sessions: DURATION=30m RATE=50000
	@mkdir -p bin
	go build -trimpath -o bin/soak ./bench/soak
	bin/soak -duration $(DURATION) -rate $(RATE)

bench: deps ## measure the way of a delta, and print it beside its bounds
	@mkdir -p bin
	go build -trimpath -o bin/throughput ./bench/throughput
	bin/throughput -json bin/throughput.json
	@printf '\nthe codec beside generated code: one entry of 48 + 176 bytes with 40 fields\n'
	go test -run '^$$' -bench 'Encode|Decode' -benchmem ./syncd/schema

clean: ## remove what was built
	rm -rf bin
