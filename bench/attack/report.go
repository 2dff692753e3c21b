package main

import (
	"fmt"
	"io"
	"strings"
)

// report is the result of all attacks.
type report struct {
	Nodes   int      `json:"nodes"`
	Failed  int      `json:"failed"`
	Results []result `json:"results"`
}

// result is the result of one attack. Each figure is the worst of all daemons.
type result struct {
	Name          string  `json:"name"`
	By            string  `json:"by"`
	Seconds       float64 `json:"seconds"`
	MemoryMiB     float64 `json:"memory_mib"` // above idle
	AnswerSeconds float64 `json:"answer_seconds"`
	Descriptors   int     `json:"descriptors"`
	LogKiB        float64 `json:"log_kib"`
	WrongEntries  int     `json:"wrong_entries"`   // of the load balancers, at any reading of a map
	Trace         string  `json:"trace,omitempty"` // metric or log line
	Note          string  `json:"note,omitempty"`  // figures of the attack itself
	Harm          string  `json:"harm,omitempty"`  // empty: the attack did no harm
}

// columns is the width of the terminal, in characters.
const columns = 100

func (*report) header(out io.Writer) {
	fmt.Fprintf(out, "%-42s %-26s %6s %6s %6s %5s\n", "ATTACK", "BY", "MEMORY", "ANSWER", "LOG", "HARM")
}

func (r *result) row(out io.Writer) {
	harm := "none"
	if r.Harm != "" {
		harm = "HARM"
	}
	fmt.Fprintf(out, "%-42s %-26s %5.0fM %5.1fs %5.0fK %5s\n", r.Name, r.By, r.MemoryMiB, r.AnswerSeconds, r.LogKiB, harm)
	for line := range strings.SplitSeq(r.Note+"\n"+r.Harm, "\n") {
		for line != "" {
			n := min(len(line), columns-4)
			fmt.Fprintln(out, "   ", line[:n])
			line = line[n:]
		}
	}
}

func (r *report) summary(out io.Writer) {
	for i := range r.Results {
		if r.Results[i].Harm != "" {
			r.Failed++
		}
	}
	fmt.Fprintf(out, "%d attacks on %d daemons, %d did harm\n", len(r.Results), r.Nodes, r.Failed)
}

func (r *report) write(path string) error { return writeJSON(path, r) }

// list prints the names and adversaries of the attacks.
func list(out io.Writer, all []attack) error {
	for _, a := range all {
		if _, err := fmt.Fprintf(out, "%-42s %s\n", a.name, a.by); err != nil {
			return err
		}
	}
	return nil
}
