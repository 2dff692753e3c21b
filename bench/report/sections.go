package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"mapsync/bench/drill"
)

// goals are the lowest ratios of the rates of connections.
var goals = map[string]float64{drill.WayFexit: 0.98, drill.WayKprobe: 0.95}

func (p *page) rates(d *data) {
	p.heading("Connections per second")
	p.paragraph("netperf's TCP_CRR through the load balancer, with and without syncd in turn. Each connection makes four events: two new\n" +
		"entries and two deletes. Published: −5 % with syncd (ratio 0.95).")
	if d.RatesNative == nil && d.RatesVM == nil {
		p.absent("The rate of connections")
		return
	}
	c := chart{
		file: "connections.svg", title: "Connections per second with syncd, ratio to without", x: "netperf clients", y: "ratio, lowest to highest round", step: 0.2,
		bounds: []bound{{goals[drill.WayKprobe], "goal of kprobe, published: 0.95"}, {goals[drill.WayFexit], "goal of fexit: 0.98"}},
	}
	p.table("syncd", "clients", "connections/s", "ratio", "lowest", "highest", "syncd CPU", "events", "lost")
	p.ratesOf("natively", d.RatesNative, &c)
	p.ratesOf("virtual machine", d.RatesVM, &c)
	p.figure(c)
	p.line("`reports`: the machine's own kernel attaches no hooks. The load balancer runs the code of the hooks itself, so that the")
	p.line("ratio has the cost of events and of the daemon on a real processor. The entry of a hook comes on top. Under emulation, where an")
	p.line("update without a hook takes 490 ns, fexit adds 390 ns to it, and a kprobe with its return probe 1,560 ns, in a map that is not")
	p.line("watched ([return probes](../capture.md#return-probes)). In the virtual")
	p.line("machine the processor is emulated, and the hooks are real. The events are those of all rounds and clients. Both nodes, their")
	p.line("load balancers and netperf share the two CPUs, so that the ratio also has the cost of the peer. The columns lowest and highest")
	p.line("are the ratios of single rounds: they show how much the rate varies by itself.")
	p.line("")
	p.profiles("natively", d.RatesNative)
	p.profiles("virtual machine", d.RatesVM)
	p.line("")
	p.nativeLosses(d.RatesNative)
	for _, r := range slices.Concat(d.RatesNative, d.RatesVM) {
		if bound := goals[r.Way]; bound > 0 {
			p.goal(r.Ratio >= bound, "%s with %d clients: %.3f of off, at least %.2f", r.Way, r.Threads, r.Ratio, bound)
		}
	}
}

// nativeLosses states whether the default buffer lost events of the native measurement.
func (p *page) nativeLosses(list []drill.Rate) {
	i := slices.IndexFunc(list, func(r drill.Rate) bool { return r.Events > 0 })
	if i < 0 {
		return
	}
	lost, events := float64(list[i].Lost), float64(list[i].Events)
	p.goal(lost == 0, "no event lost at the default size and the rates of this table, natively: %s of %s lost", number(lost), number(events))
}

// profiles shows the processor time of a connection by part, and how much each part adds to that without syncd.
func (p *page) profiles(place string, list []drill.Rate) {
	var off *drill.Profile
	for _, r := range list {
		if r.Profile == nil {
			continue
		}
		if r.Way == drill.WayOff {
			off = r.Profile
			p.line("Processor time of a connection in µs, %s, %d clients, in a further measurement with the kernel's statistics of", place, r.Threads)
			p.line("programs. Programs run in the rest. The rest is netperf, the network and programs.")
			p.line("")
			p.table("syncd", "all CPUs", "syncd", "syncd of the peer", "rest", "programs of hooks", "programs of the load balancer", "ratio that follows")
		}
		if off == nil {
			continue
		}
		f := r.Profile
		p.row(r.Way+", "+place, number(f.Total), number(f.Syncd), number(f.Peer), number(f.Total-f.Syncd-f.Peer), number(f.Hooks), number(f.XDP),
			fmt.Sprintf("%.3f", off.Total/f.Total))
	}
	p.line("")
}

func (p *page) ratesOf(place string, list []drill.Rate, c *chart) {
	for _, r := range list {
		p.row(r.Way+", "+place, strconv.Itoa(r.Threads), number(r.Rate), fmt.Sprintf("%.3f", r.Ratio),
			fmt.Sprintf("%.3f", r.Lowest), fmt.Sprintf("%.3f", r.Highest), percent(r.CPU), number(float64(r.Events)), number(float64(r.Lost)))
		if r.Way == drill.WayOff {
			continue
		}
		if label := strconv.Itoa(r.Threads); !slices.Contains(c.names, label) {
			c.names = append(c.names, label)
		}
		s := c.of(r.Way + ", " + place)
		s.y, s.low, s.high = append(s.y, r.Ratio), append(s.low, r.Lowest), append(s.high, r.Highest)
	}
}

// injected names the source of the events of measurements without hooks.
const injected = "An injector writes the map and emits the events with the\nhooks' own code. The entry of a hook comes on top."

func (p *page) ringOrPerf(b *buffers) {
	p.heading("Ring buffer or perf buffer")
	p.paragraph("The article left this comparison open. Equal bytes in total; the latency is that to the peer's kernel map at 100,000\n" +
		"changes a second. " + injected)
	if b == nil {
		p.absent("The buffer")
		return
	}
	p.table("buffer", "event, ns", "p50, ms", "p99, ms", "sender CPU", "receiver CPU")
	c := chart{file: "event-cost.svg", title: "Processor time of an event in the thread that writes", x: "buffer", y: "ns"}
	cost := series{}
	for _, b := range b.Costs {
		p.row(b.Buffer, number(b.Nanoseconds), milliseconds(b.Latency.P50), milliseconds(b.Latency.P99), percent(b.Latency.SenderCPU), percent(b.Latency.ReceiverCPU))
		c.names, cost.y = append(c.names, b.Buffer), append(cost.y, b.Nanoseconds)
	}
	c.series = []series{cost}
	p.figure(c)
	p.line("%s", recommendation(b))
}

// recommendation follows from the measured cost of an event.
func recommendation(b *buffers) string {
	if len(b.Costs) != 2 {
		return ""
	}
	ring, perf := &b.Costs[0], &b.Costs[1]
	measured := fmt.Sprintf("An event costs the writer %s ns in a ring buffer and %s ns in a perf buffer, %.1f times as much. The p99 of the delay is %s and %s ms,\n"+
		"the CPU of the receiver %s and %s. At the default size and full speed, the threads sent up to\n%s; with a perf buffer, up to %s.", number(ring.Nanoseconds), number(perf.Nanoseconds), perf.Nanoseconds/ring.Nanoseconds,
		milliseconds(ring.Latency.P99), milliseconds(perf.Latency.P99), percent(ring.Latency.ReceiverCPU), percent(perf.Latency.ReceiverCPU),
		b.atFullSpeed("ring"), b.atFullSpeed("perf"))
	if ring.Nanoseconds > perf.Nanoseconds {
		return "Recommendation: `buffer: perf` where the cost of an event matters.\n" + measured
	}
	return "Recommendation: `buffer: ring`, the default. A perf buffer cannot lend the unused part of one CPU to another, and it slows the\n" +
		"writer: it loses less at full speed because it receives less. `buffer: perf` is for kernels before 5.8, which have no ring buffer.\n" + measured
}

// atFullSpeed describes the runs of a buffer of the default size with as many events as the threads can send.
func (b *buffers) atFullSpeed(buffer string) string {
	rate, lost := 0.0, 0.0
	for _, r := range b.Runs {
		if r.Buffer == buffer && r.Pages == defaultPages && r.Offered == 0 {
			rate, lost = max(rate, r.Rate), max(lost, r.percent())
		}
	}
	return fmt.Sprintf("%s events a second and lost up to %.2f %%", number(rate), lost)
}

func (p *page) frameworks(t *throughput) {
	p.heading("net/rpc or gRPC")
	p.paragraph("One entry of 48 + 176 bytes a delta, over loopback TCP between two processes. Only the two lines from map to map include\n" +
		"reading and writing kernel maps. syncd is measured end to end, with mutual TLS; the others have no TLS. Published: net/rpc\n" +
		"is better than gRPC with JSON in an `Any`; typed messages equal it.")
	if t.EndToEnd == nil {
		p.absent("The transport")
		return
	}
	p.table("way", "deltas/s", "syncd is", "allocations a delta")
	c := chart{file: "frameworks.svg", title: "Deltas per second (log scale)", y: "deltas/s", logY: true}
	bars := series{}
	add := func(name, short string, r rate) {
		p.row(name, number(r.DeltasPerSecond), fmt.Sprintf("%.1f ×", t.EndToEnd.New.DeltasPerSecond/r.DeltasPerSecond), fmt.Sprintf("%.2f", r.Allocations))
		c.names, bars.y = append(c.names, short), append(bars.y, r.DeltasPerSecond)
	}
	for _, a := range t.Alternatives {
		add(a.Name, strings.NewReplacer(", ", ",\n", " of 8192", "", " from map to map", "\nmap to map", " with ", "\nwith ", " unary", "", "one call", "a call").Replace(a.Name), a)
	}
	add("syncd, new entries, from map to map", "syncd, TLS\nmap to map", rate{DeltasPerSecond: t.EndToEnd.New.DeltasPerSecond})
	add("ceiling: bpf(2) batches into one map", "bpf(2)\nbatches", t.CeilingNew)
	c.series = []series{bars}
	p.figure(c)
	p.line("The factors:")
	p.line("")
	p.factors(t)
}

// factors explains the differences between the ways, each by the ratio of two of them.
func (p *page) factors(t *throughput) {
	by := make(map[string]float64)
	for _, a := range t.Alternatives {
		by[a.Name] = a.DeltasPerSecond
	}
	syncd := t.EndToEnd.New.DeltasPerSecond
	p.line("- A call for each delta waits for its answer: blocks of 8192 are %.0f times as fast with the same framework.", by["net/rpc, blocks of 8192"]/by["net/rpc, one call each"])
	p.line("- A gRPC call has HTTP/2 frames and headers: net/rpc is %.1f times as fast a call.", by["net/rpc, one call each"]/by["gRPC unary, typed"])
	p.line("- JSON in an `Any` is text inside of protobuf: typed messages are %.1f times as fast.", by["gRPC unary, typed"]/by["gRPC unary, Any with JSON"])
	p.line("- Kernel maps at both ends: blocks from map to map have %.2f of the rate of blocks from memory to memory.", by["net/rpc, blocks of 8192 from map to map"]/by["net/rpc, blocks of 8192"])
	p.line("- syncd has %.2f of the rate of blocks from map to map. It also makes an event for each write, keeps a record of each entry with", syncd/by["net/rpc, blocks of 8192 from map to map"])
	p.line("  version and owner, converts time stamps, resumes after a broken connection, and encrypts.")
}

func (p *page) notification(list []latency) {
	p.heading("Notification or traversal")
	p.paragraph("The time until a change is in the peer's kernel map, with 2,000 changes a second in a map of 100,000 entries. The article\n" +
		"prefers notification without figures. " + injected)
	if len(list) == 0 {
		p.absent("Notification")
		return
	}
	p.table("way", "p50, ms", "p99, ms", "sender CPU", "receiver CPU")
	c := chart{file: "notification.svg", title: "Time until a change is in the peer's map (log scale)", y: "ms", logY: true}
	p50, p99 := series{name: "p50"}, series{name: "p99", colour: 1}
	for _, l := range list {
		p.row(l.Name, milliseconds(l.P50), milliseconds(l.P99), percent(l.SenderCPU), percent(l.ReceiverCPU))
		c.names = append(c.names, l.Name)
		p50.y, p99.y = append(p50.y, l.P50), append(p99.y, l.P99)
	}
	c.series = []series{p50, p99}
	p.figure(c)
}

func (p *page) sessions(d *data) {
	p.heading("Sessions that survive")
	p.paragraph("The active load balancer is killed under open connections. Published: 50,000 sessions synchronised, with tcpkali.")
	if d.Builtin == nil && d.Tcpkali == nil {
		p.absent("The failover")
		return
	}
	p.table("load", "kernel", "attach", "sessions", "survived", "survived without syncd", "longest stall")
	for _, r := range []*drill.Result{d.Builtin, d.Tcpkali} {
		if r == nil || r.Real == nil || r.Control == nil {
			continue
		}
		p.row(string(r.Load), r.Kernel, r.Attach, number(float64(r.Real.Sessions)), number(float64(r.Real.Survived)), number(float64(r.Control.Survived)), fmt.Sprintf("%d ms", r.Real.MaxStallMS))
	}
	p.line("")
	for _, r := range []*drill.Result{d.Builtin, d.Tcpkali} {
		if r != nil {
			p.goal(r.Err() == nil, "all sessions of load %s survive", r.Load)
		}
	}
	if d.Tcpkali == nil {
		p.line("")
		p.line("tcpkali was not in a folder of `PATH`.")
	}
}

func offered(rate int) string {
	if rate == 0 {
		return "all"
	}
	return number(float64(rate))
}

// number formats a number with separators.
func number(v float64) string {
	digits := strconv.FormatInt(int64(v+0.5), 10)
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return digits
}

func percent(v float64) string      { return fmt.Sprintf("%.0f %%", v) }
func milliseconds(v float64) string { return fmt.Sprintf("%.2f", v) }
