package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"mapsync/bench/process"
	"mapsync/docs/examples/bundling/trace"
)

// TestAllNumbersOfClientsAreMeasured: each number of clients has a load at the same rate, so that they can be compared.
func TestAllNumbersOfClientsAreMeasured(t *testing.T) {
	o := &options{rates: []int{5000, 15_000}, sources: []int{200, 500, 1000}, sourcesRate: 10_000, window: time.Second}
	var clients []int
	for _, k := range kinds(o) {
		if k.Rate == 10_000 {
			clients = append(clients, k.Sources)
		} else if k.Sources != 200 {
			t.Errorf("clients at %.0f/s: got %d, want 200", k.Rate, k.Sources)
		}
	}
	if !slices.Equal(clients, o.sources) {
		t.Errorf("numbers of clients at 10,000/s: got %v, want %v", clients, o.sources)
	}
}

// TestNoLoadIsMeasuredTwice: one of the rates is also that of all numbers of clients.
func TestNoLoadIsMeasuredTwice(t *testing.T) {
	o := &options{rates: []int{200, 400}, sources: []int{200, 500}, sourcesRate: 200, window: time.Second}
	if got := len(kinds(o)); got != 5 {
		t.Errorf("loads: got %d, want 5: short and persistent connections at two rates, and 500 clients", got)
	}
}

// TestRoundsAlternate: each method is measured first once in as many rounds as there are methods.
func TestRoundsAlternate(t *testing.T) {
	first := make(map[string]int)
	for round := range 2 * len(methods) {
		list := order(round)
		first[list[0]]++
		for _, method := range methods {
			if !slices.Contains(list, method) {
				t.Errorf("round %d: got methods %v, want all", round, list)
			}
		}
	}
	for _, method := range methods {
		if first[method] != 2 {
			t.Errorf("rounds that begin with %s: got %d, want 2 of %d", method, first[method], 2*len(methods))
		}
	}
}

// TestReportHasMedians has one round of three in which the machine was busy. It affects neither the table nor a claim.
func TestReportHasMedians(t *testing.T) {
	o := &options{rates: []int{1000}, sources: []int{5}, sourcesRate: 500, window: time.Second, rounds: 3, ratio: 5, programTime: 6 * time.Microsecond}
	r := report{options: o}
	for round := range o.rounds {
		slow := time.Duration(1)
		if round == 1 {
			slow = 10
		}
		for _, k := range kinds(o) {
			for _, method := range order(round) {
				m := measurement{kind: k, method: method, seconds: 1, roundTrips: 1000}
				m.tracer = process.Usage{Process: 10 * time.Millisecond, Programs: 2 * time.Millisecond * slow}
				if method == trace.Stream {
					m.tracer.Process *= 20
				}
				r.list = append(r.list, m)
			}
		}
	}
	var out bytes.Buffer
	if err := r.print(&out); err != nil {
		t.Errorf("print: got error %v, want none", err)
	}
	for _, want := range []string{"stream_percent=20.20 ", "bundle_percent=1.20 ", "ratio=16.8 ", "program_us=2.00 "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("report: got %q, want %q in it", out.String(), want)
		}
	}
	if got, want := strings.Count(out.String(), "\n"), 1+len(kinds(o))*len(methods)+1; got != want {
		t.Errorf("lines of the report: got %d, want %d", got, want)
	}
}
