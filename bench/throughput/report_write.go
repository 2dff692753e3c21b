package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// nameWidth is the width of the longest name in the table, in characters.
const nameWidth = 70

// textTable is a table with names in the left column and figures in the others.
type textTable struct {
	w *tabwriter.Writer
}

func (s textTable) line(format string, args ...any) {
	name, cells, _ := strings.Cut(fmt.Sprintf(format, args...), "\t")
	fmt.Fprintf(s.w, "%-*s\t%s\t\n", nameWidth, name, cells)
}

// write prints the report as tables.
func (r *Report) write(out io.Writer) error {
	fmt.Fprintf(out, "%d entries of %d + %d bytes, %d CPUs, kernel %s, %s\n",
		r.Entries, r.KeySize, r.ValueSize, r.CPUs, r.Kernel, r.Go)
	for _, section := range []struct {
		there bool
		write func(textTable)
	}{
		{true, r.writeParts},
		{r.EndToEnd != nil, r.writeEndToEnd},
		{len(r.Steps) > 0, r.writeSteps},
		{len(r.Latencies) > 0, r.writeLatencies},
		{r.Join != nil, r.writeJoin},
		{len(r.Idle) > 0, r.writeIdle},
		{len(r.Jitter) > 0, r.writeJitter},
		{len(r.Followed) > 0, r.writeFollowed},
		{r.Buffers != nil, r.writeBuffers},
		{len(r.Notification) > 0, r.writeNotification},
		{true, r.writeTargets},
	} {
		if !section.there {
			continue
		}
		s := textTable{tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)}
		fmt.Fprintln(out)
		section.write(s)
		if err := s.w.Flush(); err != nil {
			return err
		}
	}
	return nil
}

func (r *Report) writeParts(s textTable) {
	s.line("part\tseconds\tCPU of other processes")
	for _, p := range r.Parts {
		s.line("%s\t%.0f\t%.0f %%", p.Name, p.Seconds, p.OtherLoad)
	}
}

func (r *Report) writeEndToEnd(s textTable) {
	s.line("end to end, medians of %d\tdeltas/s\tof the ceiling\tCPU s\tof that the injector\tallocs/delta", r.Rounds)
	pass := func(name string, p Pass, ceiling Rate) {
		s.line("%s\t%.0f\t%.1f %%\t%.2f\t%.2f\t%.3f", name, p.DeltasPerSecond,
			100*p.DeltasPerSecond/ceiling.DeltasPerSecond, p.CPUSeconds, p.InjectorCPUSeconds, p.Allocations)
	}
	pass("new entries", r.EndToEnd.New, r.CeilingNew)
	pass("updates", r.EndToEnd.Updated, r.CeilingUpdate)
	s.line("ceiling: bpf(2) batches, new\t%.0f", r.CeilingNew.DeltasPerSecond)
	s.line("ceiling: bpf(2) batches, updates\t%.0f", r.CeilingUpdate.DeltasPerSecond)
	s.line("")
	s.line("alternatives\tdeltas/s\tend to end is\tallocs/delta")
	for _, v := range r.Alternatives {
		s.line("%s\t%.0f\t%.1f times\t%.2f", v.Name, v.DeltasPerSecond,
			r.EndToEnd.New.DeltasPerSecond/v.DeltasPerSecond, v.Allocations)
	}
	s.line("")
	s.line("memory\tbytes/entry")
	s.line("Go heap of a node\t%.0f", r.EndToEnd.HeapPerEntry)
	s.line("of that the table\t%.0f", r.EndToEnd.TablePerEntry)
}

func (r *Report) writeSteps(s textTable) {
	s.line("step, medians of %d\tns/delta\tallocs/delta", r.Rounds)
	for _, step := range r.Steps {
		s.line("%s\t%.0f\t%.4f", step.Name, step.Nanoseconds, step.Allocations)
	}
}

func (r *Report) writeLatencies(s textTable) { writeLatencies(s, r.Latencies) }

func (r *Report) writeNotification(s textTable) { writeLatencies(s, r.Notification) }

func writeLatencies(s textTable, list []Latency) {
	s.line("latency to the peer's kernel map, ms\tp50\tp99\tp99.9\tmax\tsamples\tchanges/s\tsender\treceiver")
	for _, l := range list {
		s.line("%s\t%.2f\t%.2f\t%.2f\t%.2f\t%d\t%.0f\t%.0f %%\t%.0f %%",
			l.Name, l.P50, l.P99, l.P999, l.Max, l.Samples, l.Rate, l.SenderCPU, l.ReceiverCPU)
	}
}

func (r *Report) writeJoin(s textTable) {
	s.line("join, median of %d\tseconds\tof a bare copy\tjoiner CPU s\tsender CPU s", r.Rounds)
	s.line("empty map to ready, %d changes/s meanwhile\t%.2f\t%.2f times\t%.2f\t%.2f",
		r.Join.Traffic, r.Join.Seconds, r.Join.Ratio, r.Join.JoinerCPU, r.Join.SenderCPU)
	s.line("bare copy: bpf(2) batch lookup and update\t%.2f", r.Join.BareSeconds)
}

func (r *Report) writeIdle(s textTable) {
	s.line("idle, no changes\tof a core\tscans\tscan, s\tevery, s\theap bytes/entry\tof that the table")
	for _, i := range r.Idle {
		s.line("node that %s\t%.2f %%\t%.2f %%\t%.1f\t%.1f\t%.0f\t%.0f", i.Kind, i.CPU, i.Scans, i.ScanTime, i.ScanInterval, i.HeapPerEntry, i.TablePerEntry)
	}
}

func (r *Report) writeBuffers(s textTable) {
	s.line("events through a buffer\tpages\tthreads\tevents/s\tlost\treader CPU")
	for _, b := range r.Buffers.Runs {
		offered := "at the paced rate"
		if b.Offered == 0 {
			offered = "as fast as possible"
		}
		s.line("%s, %s\t%d\t%d\t%.0f\t%.2f %%\t%.0f %%", b.Buffer, offered, b.Pages, b.Threads, b.Rate, 100*float64(b.Lost)/float64(b.Events), b.ReaderCPU)
	}
	s.line("")
	s.line("an event\tns\tp50 ms\tp99 ms\tsender\treceiver")
	for _, c := range r.Buffers.Costs {
		s.line("%s\t%.0f\t%.2f\t%.2f\t%.0f %%\t%.0f %%", c.Buffer, c.Nanoseconds, c.Latency.P50, c.Latency.P99, c.Latency.SenderCPU, c.Latency.ReceiverCPU)
	}
	s.line("")
	s.line("overflow\tlost\tdivergent at once\tafter 2 s\tequal after, s")
	for _, o := range r.Buffers.Overflows {
		s.line("%s\t%d\t%d\t%d\t%.2f", o.Buffer, o.Lost, o.Divergent, o.DivergentLate, o.Seconds)
	}
}

func (r *Report) writeJitter(s textTable) {
	s.line("pings through the load balancer, ms, medians of %d\tp50\tp99\tp99.9\tover idle\tmax\tpings", min(r.Rounds, maxJitterRounds))
	for _, j := range r.Jitter {
		s.line("%s\t%.3f\t%.3f\t%.3f\t%+.3f\t%.3f\t%d", j.Name, j.P50, j.P99, j.P999, j.Over, j.Max, j.Samples)
	}
}

func (r *Report) writeFollowed(s textTable) {
	s.line("pings while a map is followed, ms\tp50\tp99\tp99.9\tover idle\tmax\tpings\tlongest call")
	for _, f := range r.Followed {
		s.line("%s\t%.3f\t%.3f\t%.3f\t%+.3f\t%.3f\t%d\t%.3f", f.Name, f.P50, f.P99, f.P999, f.Over, f.Max, f.Samples, f.LongestCall)
	}
}

func (r *Report) writeTargets(s textTable) {
	s.line("target\tbound\tgot\t")
	for _, t := range r.Targets {
		result := "met"
		if !t.Met {
			result = "NOT MET"
		}
		s.line("%s\t%.4g %s\t%.4g\t%s", t.Name, t.Bound, t.Unit, t.Got, result)
	}
}
