package main

import (
	"fmt"
	"regexp"
	"strings"
)

// page is the report as Markdown.
type page struct {
	text               strings.Builder
	charts             []chart
	held, missed, open int // goals
}

func newPage(d *data, quick bool) *page {
	p := new(page)
	t := d.Throughput
	p.line("# Report: the experiments of the LoxiLB article")
	p.line("")
	p.line("This page has the experiments of the article on LoxiLB's state synchronisation, repeated with mapsync. `make report`")
	p.line("writes it. [comparison.md](../comparison.md) describes the article and its figures. [data.json](data.json) has all results.")
	p.line("`go -C bench run ./report -from ../docs/report -to ../docs/report` writes the page and the charts again from these results.")
	p.line("")
	kernel, _, _ := strings.Cut(t.Kernel, "-")
	p.line("- Machine: %s, %d CPUs, kernel %s, %s.", d.Machine, t.CPUs, kernel, t.Go)
	p.line("- Only ratios within a table are meaningful. Connections per second with and without syncd, and the ways of net/rpc or gRPC,")
	p.line("  took turns. The other measurements of a table were made one after the other.")
	if t.TLS {
		p.line("- All nodes of mapsync use mutual TLS.")
	} else {
		p.line("- The nodes use mutual TLS in the measurements of connections per second, of deltas from map to map in the section on net/rpc or")
		p.line("  gRPC, and of sessions. Those of losses, of ring buffer or perf buffer, and of notification have no TLS.")
	}
	for _, part := range t.Parts {
		if part.OtherLoad > 10 {
			p.line("- Other processes used %.0f %% of the CPUs during part `%s`.", part.OtherLoad, part.Name)
		}
	}
	if quick {
		p.line("- This is the quick form (`QUICK=1`): few rounds and sizes.")
	}
	p.rates(d)
	p.buffers(t.Buffers)
	p.ringOrPerf(t.Buffers)
	p.frameworks(t)
	p.notification(t.Notification)
	p.sessions(d)
	return p
}

// markdown returns the text, without repeated empty lines.
func (p *page) markdown() []byte {
	return regexp.MustCompile("\n{3,}").ReplaceAll([]byte(p.text.String()), []byte("\n\n"))
}

func (p *page) line(format string, args ...any) { fmt.Fprintf(&p.text, format+"\n", args...) }

func (p *page) heading(text string) {
	p.line("")
	p.line("## %s", text)
	p.line("")
}

func (p *page) paragraph(text string) {
	p.line("%s", text)
	p.line("")
}

// table starts a table. The first column is aligned to the left, the others to the right.
func (p *page) table(columns ...string) {
	p.row(columns...)
	p.line("| --- |%s", strings.Repeat(" ---: |", len(columns)-1))
}

func (p *page) row(cells ...string) { p.line("| %s |", strings.Join(cells, " | ")) }

func (p *page) figure(c chart) {
	p.charts = append(p.charts, c)
	p.line("")
	p.line("![%s](%s)", c.title, c.file)
	p.line("")
}

// goal states whether a goal is held.
func (p *page) goal(held bool, format string, args ...any) {
	word := "held"
	if held {
		p.held++
	} else {
		word = "**missed**"
		p.missed++
	}
	p.line("- Goal %s: %s.", word, fmt.Sprintf(format, args...))
}

// undecided states that the results do not show whether a goal is held.
func (p *page) undecided(format string, args ...any) {
	p.open++
	p.line("- Goal **open**: %s.", fmt.Sprintf(format, args...))
}

func (p *page) absent(what string) {
	p.line("%s was not measured in this run.", what)
}
