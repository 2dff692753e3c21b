package main

import (
	"fmt"
	"slices"
	"strconv"

	"mapsync/syncd/capture"
)

const (
	defaultPages = capture.DefaultRingBytes / pageBytes // of the default buffer size
	pageBytes    = 4096
	// eventBytes are the bytes that an event occupies in a ring buffer: its header of 24 bytes, the entry of 48 + 176 bytes, and
	// the 8 bytes of the ring's record. A perf buffer takes slightly more.
	eventBytes = 24 + 48 + 176 + 8
	// decisiveFills is the number of times that a run must fill the buffer before the lack of losses says something: the first fill
	// needs no reader.
	decisiveFills = 4
)

// fills is the number of times that the sent events would fill the buffer.
func (r *bufferRun) fills() float64 {
	return float64(r.Events) * eventBytes / (float64(r.Pages) * pageBytes)
}

// tooShort reports whether the run says nothing about losses.
func (r *bufferRun) tooShort() bool { return r.Lost == 0 && r.fills() < decisiveFills }

// percent returns the part of the events that was lost.
func (r *bufferRun) percent() float64 { return 100 * float64(r.Lost) / float64(max(1, r.Events)) }

// losses is the text for the part of the events that was lost.
func (r *bufferRun) losses() string {
	if r.tooShort() {
		return "too short to decide"
	}
	return fmt.Sprintf("%.2f %%", r.percent())
}

func (p *page) buffers(b *buffers) {
	p.heading("Losses by size of the buffer and number of threads")
	p.paragraph("Threads write the watched map and report each write, 100,000 a second in total (25,000 connections), or as many as they\n" +
		"can. A page has 4 KiB; a perf buffer has a part of its pages for each CPU. Published: no losses from 32,768 pages on.")
	if b == nil {
		p.absent("The buffer")
		return
	}
	p.shortRuns(b)
	p.lossCharts(b)
	p.table("buffer", "pages", "threads", "offered/s", "events/s", "lost", "reader CPU")
	for _, r := range b.Runs {
		p.row(r.Buffer, strconv.Itoa(r.Pages), strconv.Itoa(r.Threads), offered(r.Offered), number(r.Rate), r.losses(), percent(r.ReaderCPU))
	}
	p.line("")
	p.defaultSize(b)
	p.line("")
	p.table("overflow", "events", "lost", "entries that differed", "after 2 s", "equal after")
	for _, o := range b.Overflows {
		p.row(o.Buffer, number(float64(o.Events)), number(float64(o.Lost)), number(float64(o.Divergent)), number(float64(o.DivergentLate)), fmt.Sprintf("%.2f s", o.Seconds))
	}
	p.line("")
	for _, o := range b.Overflows {
		p.goal(o.DivergentLate == 0, "no entry differs 2 s after an overflow of %s", o.Buffer)
	}
}

// shortRuns lists the sizes of the runs that are too short.
func (p *page) shortRuns(b *buffers) {
	p.line("An event takes %d bytes of a ring buffer. A run without losses is too short to decide if it sends less than %d times the bytes of", eventBytes, decisiveFills)
	p.line("the buffer, because the first of them need no reader.")
	p.line("")
	for _, offeredRate := range []int{100_000, 0} {
		rate := "100,000 a second"
		if offeredRate == 0 {
			rate = "full speed"
		}
		for _, buffer := range []string{"ring", "perf"} {
			var sizes []int
			for _, r := range b.Runs {
				if r.Buffer == buffer && r.Offered == offeredRate && r.tooShort() {
					sizes = append(sizes, r.Pages)
				}
			}
			if sizes != nil {
				p.line("- Too short to decide at %s: %d runs of %s, from %s to %s pages. The chart lacks them.", rate, len(sizes), buffer,
					number(float64(slices.Min(sizes))), number(float64(slices.Max(sizes))))
			}
		}
	}
	p.line("")
}

// defaultSize states the losses of the default size.
func (p *page) defaultSize(b *buffers) {
	runs, lost, short := 0, uint64(0), (*bufferRun)(nil)
	for _, r := range b.Runs {
		if r.Pages != defaultPages || r.Offered == 0 {
			continue
		}
		runs++
		lost += r.Lost
		if r.tooShort() && (short == nil || r.Events > short.Events) {
			short = &r
		}
	}
	const goal = "no event lost at the default size (%d pages) at 100,000 events a second; "
	switch {
	case runs == 0:
		p.undecided(goal+"this run did not measure it", defaultPages)
	case lost == 0 && short != nil:
		p.undecided(goal+"the runs are too\n  short to decide: at most %s events, %.1f MB. The buffer has %.1f MB", defaultPages,
			number(float64(short.Events)), float64(short.Events)*eventBytes/1e6, defaultPages*pageBytes/1e6)
	default:
		p.goal(lost == 0, goal+"lost: %d", defaultPages, lost)
	}
	for _, r := range b.Runs {
		if r.Pages == defaultPages && r.Offered == 0 {
			p.line("- The default size at full speed, %s, threads: %d: %s.", r.Buffer, r.Threads, r.losses())
		}
	}
}

// lossCharts shows the losses of the runs that are long enough: a colour for each number of threads, dashes for perf buffers.
func (p *page) lossCharts(b *buffers) {
	for _, offeredRate := range []int{100_000, 0} {
		c := chart{
			file: "losses-paced.svg", title: "Lost events, 100,000 a second offered", x: "buffer, pages of 4 KiB (log scale)", y: "lost, %", logX: true, most: 100,
		}
		if offeredRate == 0 {
			c.file, c.title = "losses-fast.svg", "Lost events, as many offered as the threads can send"
		}
		var threads []int
		for _, r := range b.Runs {
			if r.Offered != offeredRate || r.tooShort() {
				continue
			}
			if !slices.Contains(threads, r.Threads) {
				threads = append(threads, r.Threads)
			}
			s := c.of(fmt.Sprintf("%s, threads: %d", r.Buffer, r.Threads))
			s.colour, s.dashed = slices.Index(threads, r.Threads), r.Buffer == "perf"
			s.x, s.y = append(s.x, float64(r.Pages)), append(s.y, r.percent())
		}
		p.figure(c)
	}
}
