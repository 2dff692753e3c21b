package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"mapsync/bench/drill"
)

// data are the results of the programs that measure. A part whose file is missing was not measured.
type data struct {
	Machine     string        `json:"machine,omitempty"` // processor that the results are of
	Throughput  *throughput   `json:"throughput,omitempty"`
	RatesNative []drill.Rate  `json:"rates_native,omitempty"`
	RatesVM     []drill.Rate  `json:"rates_vm,omitempty"`
	Builtin     *drill.Result `json:"sessions_builtin,omitempty"`
	Tcpkali     *drill.Result `json:"sessions_tcpkali,omitempty"`
}

// throughput is the part of bench/throughput's report that this report shows.
type throughput struct {
	CPUs   int    `json:"cpus"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
	TLS    bool   `json:"tls"` // the nodes of all parts have mutual TLS
	Parts  []struct {
		Name      string  `json:"name"`
		OtherLoad float64 `json:"other_load_percent"`
	} `json:"parts"`
	EndToEnd *struct {
		New     pass `json:"new"`
		Updated pass `json:"updated"`
	} `json:"end_to_end"`
	CeilingNew   rate      `json:"ceiling_new"`
	Alternatives []rate    `json:"alternatives"`
	Buffers      *buffers  `json:"buffers"`
	Notification []latency `json:"notification"`
}

type pass struct {
	DeltasPerSecond float64 `json:"deltas_per_second"`
}

type rate struct {
	Name            string  `json:"name"`
	DeltasPerSecond float64 `json:"deltas_per_second"`
	Allocations     float64 `json:"allocations_per_delta"`
}

type buffers struct {
	Runs  []bufferRun `json:"runs"`
	Costs []struct {
		Buffer      string  `json:"buffer"`
		Nanoseconds float64 `json:"ns_per_event"`
		Latency     latency `json:"latency"`
	} `json:"costs"`
	Overflows []struct {
		Buffer        string  `json:"buffer"`
		Events        uint64  `json:"events"`
		Lost          uint64  `json:"lost"`
		Divergent     int     `json:"divergent"`
		DivergentLate int     `json:"divergent_after"`
		Seconds       float64 `json:"seconds"`
	} `json:"overflows"`
}

type bufferRun struct {
	Buffer    string  `json:"buffer"`
	Pages     int     `json:"pages"`
	Threads   int     `json:"threads"`
	Offered   int     `json:"offered"`
	Events    uint64  `json:"events"`
	Lost      uint64  `json:"lost"`
	Rate      float64 `json:"events_per_second"`
	ReaderCPU float64 `json:"reader_cpu_percent"`
}

type latency struct {
	Name        string  `json:"name"`
	Rate        float64 `json:"per_second"`
	P50         float64 `json:"p50_ms"`
	P99         float64 `json:"p99_ms"`
	Max         float64 `json:"max_ms"`
	SenderCPU   float64 `json:"sender_cpu_percent"`
	ReceiverCPU float64 `json:"receiver_cpu_percent"`
}

// readData reads the results in a folder: those of the programs that measure, or data.json of an earlier report.
func readData(dir string) (*data, error) {
	d := new(data)
	for _, part := range []struct {
		file string
		to   any
	}{
		{"data.json", d},
		{"throughput.json", &d.Throughput},
		{"rates-native.json", &d.RatesNative},
		{"rates-vm.json", &d.RatesVM},
		{"sessions-builtin.json", &d.Builtin},
		{"sessions-tcpkali.json", &d.Tcpkali},
	} {
		text, err := os.ReadFile(filepath.Join(dir, part.file))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read results: %w", err)
		}
		if err := json.Unmarshal(text, part.to); err != nil {
			return nil, fmt.Errorf("read results in %s: %w", part.file, err)
		}
	}
	return d, nil
}
