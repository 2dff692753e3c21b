package docs

import (
	"math"
	"slices"
	"testing"
)

func loxilbRows(t *testing.T) (rows []comparisonRow) {
	t.Helper()
	d := readReportData(t)
	at := func(paths ...string) (values []float64) {
		for _, path := range paths {
			values = append(values, d.at(path))
		}
		return values
	}
	rates := func(path string) []float64 { return at(path+"/ratio", path+"/lowest_ratio", path+"/highest_ratio") }
	per := func(a, b string) float64 { return d.at(a) / d.at(b) }
	const format = "%.3f (50 clients; rounds from %.3f to %.3f)"
	const vm, notification = "rates_vm/", "throughput/notification/"
	rows = []comparisonRow{
		{"LoxiLB: connections a second with synchronisation, of those without; code of the hooks, natively", format, "%.2f", 0.95, rates("rates_native/way=reports;threads=50")},
		{"LoxiLB: the same, kprobe in a virtual machine", format, "%.2f", 0.95, rates(vm + "way=kprobe;threads=50")},
		{"LoxiLB: the same, fexit in a virtual machine", format, "%.2f", 0.95, rates(vm + "way=fexit;threads=50")},
		{"LoxiLB: the same with 1 and 10 clients", "natively %.3f, %.3f; kprobe %.3f, %.3f; fexit %.3f, %.3f", "", 0, at(
			"rates_native/way=reports;threads=1/ratio", "rates_native/way=reports;threads=10/ratio",
			vm+"way=kprobe;threads=1/ratio", vm+"way=kprobe;threads=10/ratio", vm+"way=fexit;threads=1/ratio", vm+"way=fexit;threads=10/ratio",
		)},
		{"LoxiLB: cost of an event, perf buffer of ring buffer", "%.1f (%d of %d ns)", "", 0, []float64{
			per("throughput/buffers/costs/buffer=perf/ns_per_event", "throughput/buffers/costs/buffer=ring/ns_per_event"),
			d.at("throughput/buffers/costs/buffer=perf/ns_per_event"), d.at("throughput/buffers/costs/buffer=ring/ns_per_event"),
		}},
		{"LoxiLB: calls a second, net/rpc of gRPC with `Any` and JSON", "%.1f", "", 0, []float64{
			d.deltas("net/rpc, one call each") / d.deltas("gRPC unary, Any with JSON"),
		}},
		{"LoxiLB: calls a second, net/rpc of gRPC with typed messages", "%.1f", "", 0, []float64{
			d.deltas("net/rpc, one call each") / d.deltas("gRPC unary, typed"),
		}},
		{"LoxiLB: deltas a second from map to map, syncd of net/rpc in blocks", "%.2f", "", 0, []float64{
			d.at("throughput/end_to_end/new/deltas_per_second") / d.deltas("net/rpc, blocks of 8192 from map to map"),
		}},
		{"LoxiLB: delay at p50, traversal of notification", "%d (scans every second), %d (default settings)", "", 0, []float64{
			per(notification+"name=scans every second/p50_ms", notification+"name=notification by an injector/p50_ms"),
			per(notification+"name=scans, default settings/p50_ms", notification+"name=notification by an injector/p50_ms"),
		}},
		{"LoxiLB: sessions that a failover keeps", "%d, the built-in load", "%.2f", 50_000, at("sessions_builtin/real/survived")},
	}
	return append(rows, lossRows(d)...)
}

// lossRows are the rows of the losses of a ring.
func lossRows(d reportData) []comparisonRow {
	var large, standard, fills []float64
	lostPaced, pacedFills := 0.0, math.Inf(1)
	for _, threads := range []string{"1", "10", "30", "50"} {
		lost, times := d.run("16384", threads, "0")
		large, fills = append(large, lost), append(fills, times)
		lost, _ = d.run("1024", threads, "0")
		standard = append(standard, lost)
		lost, times = d.run("1024", threads, "100000")
		lostPaced, pacedFills = max(lostPaced, lost), min(pacedFills, times)
	}
	lost, times := d.run("32768", "30", "0")
	slow, slowTimes := d.run("32768", "30", "100000")
	const full = "%.2f %% at full speed (the ring received %.1f times its bytes)"
	return []comparisonRow{
		{"LoxiLB: drops with 32,768 pages and 30 threads", full + "; %.2f %% at 100,000 events a second (%.1f times)", "", 0, []float64{lost, times, slow, slowTimes}},
		{"LoxiLB: drops with 16,384 pages and more and more threads", "%.2f, %.2f, %.2f and %.2f %% with 1, 10, 30 and 50 threads at full speed. " +
			"The ring received %.1f, %.1f, %.1f and %.1f times its bytes", "", 0, slices.Concat(large, fills)},
		{"LoxiLB: the same with 1,024 pages, the default", "%.2f, %.2f, %.2f and %.2f %%", "", 0, standard},
		{
			"LoxiLB: drops with 1,024 pages at 100,000 events a second", "%.2f %%. The ring received at least %.1f times its bytes",
			"", 0,
			[]float64{lostPaced, pacedFills},
		},
	}
}

func turnRows(t *testing.T) []comparisonRow {
	t.Helper()
	p := readPrinted(t, "examples/turn/README.md")
	const medians = ` +(\S+) +(\S+) +(\S+)\n`
	idle, loaded := p.at("round trip, ms"+medians), p.at("round trip under load, ms"+medians)
	packets, cpu := p.at("packets a second"+medians), p.at("server's CPU for 1M packets, s"+medians)
	return []comparisonRow{
		{"TURN: delay, without of with offload", "%.1f idle, %.1f under load", "%.2f, %.2f", 3.944 / 0.033, []float64{idle[2], loaded[2]}},
		{"TURN: packets a second, with of without offload", "%.1f (%d of %d)", "%.2f", 227_378.0 / 36_493, []float64{packets[2], packets[1], packets[0]}},
		{"TURN: CPU of the server, without of with offload", "%d (%.3f of %.3f s in the whole process)", "%d", 47.9 / 0.96, []float64{cpu[2], cpu[0], cpu[1]}},
		{"TURN: channels that survive the failure of a server", "%d of %d; %d without syncd", "", 0, p.at(`survived=(\d+) refreshed=(\d+) .* control_survived=(\d+)`)},
	}
}

func bundlingRows(t *testing.T) []comparisonRow {
	t.Helper()
	p := readPrinted(t, "examples/bundling/README.md")
	const format, ratio = "%.1[2]f to %.1[1]f %%", "%.2f"
	tracer := []int{columnTracer}
	without := []int{columnTracer, columnSyncd, columnPrograms}
	ratios := p.at(`ratio=(\S+) ratio_with_all_programs=(\S+)`)
	many := p.at(`short +1000 +10000 +(\d+) +bundle .* (\S+) +\S+\n`)
	return []comparisonRow{
		{"Flow: CPU of streaming each connection, short TCP", format, ratio, 21.3, p.bundling("short", "stream", columnAll)},
		{"Flow: CPU of streaming each connection, persistent TCP", format, "", 0, p.bundling("persistent", "stream", columnAll)},
		{"Flow: CPU of aggregation by connection, short TCP", format, ratio, 11.5, p.bundling("short", "aggregate", columnAll)},
		{"Flow: CPU of aggregation by connection, persistent TCP", format, ratio, 5.0, p.bundling("persistent", "aggregate", columnAll)},
		{"Flow: CPU of bundling, short TCP, with syncd and its BPF programs", format, ratio, 1.2, p.bundling("short", "bundle", columnAll)},
		{"Flow: the same without syncd's own BPF programs", format, ratio, 1.2, p.bundling("short", "bundle", without...)},
		{"Flow: the same, the process of the tracer only", format, ratio, 1.2, p.bundling("short", "bundle", tracer...)},
		{"Flow: CPU of bundling, persistent TCP, with syncd and its BPF programs", format, ratio, 2.2, p.bundling("persistent", "bundle", columnAll)},
		{"Flow: the same without syncd's own BPF programs, persistent TCP", format, ratio, 2.2, p.bundling("persistent", "bundle", without...)},
		{"Flow: the same, the process of the tracer only, persistent TCP", format, ratio, 2.2, p.bundling("persistent", "bundle", tracer...)},
		{"Flow: short TCP, streaming of bundling", "%.1f; %.1f with syncd's BPF programs", "%.2f, %.2f", 21.3 / 1.2, ratios},
		{"Flow: time added to a round trip by the tracer's programs", "%.1[2]f to %.1[1]f µs of program run time, persistent TCP", ratio, 6, p.bundling("persistent", "bundle", columnRoundTrip)},
		{"Flow: CPU of bundling with many services at 10,000 connections a second", "%.1[2]f %% with 1,000 clients at %[1]d connections a second", "", 0, many},
	}
}

func counterRows(t *testing.T) []comparisonRow {
	t.Helper()
	p := readPrinted(t, "examples/counters/README.md")
	const ratio = "%.2f"
	variant := func(name string) []float64 { return p.at(name + ` +\d+ +(\S+) +(\S+) `) }
	native, vm := `counters: kernel=\S+ .*_tracepoint=.*`, `counters: kernel=\S+ .*_fexit=.*`
	layer2 := slices.Concat(p.at(native+`layer_2=(\S+)`), p.at(vm+`layer_2=(\S+)`))
	synchronised := []float64{variant("sync tracepoint")[0], variant("sync fexit")[0]}
	seconds := func(pattern string) []float64 {
		ms := p.at(pattern + `start_ms=(\d+) start_max_ms=(\d+)`)
		return []float64{ms[0] / 1000, ms[1] / 1000}
	}
	others := p.at(`had (\S+) and (\S+) MB, and an earlier one (\S+) MB`)
	return []comparisonRow{
		{"Accounting: throughput with accounting, of that without; tracepoint, natively", "%.3f ± %.3f", ratio, 1, variant("export tracepoint")},
		{"Accounting: the same, fexit in a virtual machine", "%.3f ± %.3f", ratio, 1, variant("export fexit")},
		{"Accounting: the same, kprobe in a virtual machine", "%.3f ± %.3f", ratio, 1, variant("export kprobe")},
		{"Accounting: the same with a second syncd that receives all entries", "%.3f natively, %.3f with fexit in a virtual machine", "", 0, synchronised},
		{"Accounting: throughput with a program at layer 2, natively", "%.3f, with 8 writes of a map for each packet", ratio, 0.8, layer2[:1]},
		{"Accounting: the same in a virtual machine", "%.3f", ratio, 0.8, layer2[1:]},
		{"Accounting: time of the program at layer 2", "%.3f µs a packet", ratio, 1.17, []float64{p.at(`layer 2 +(\d+) +\d+ +\S+ %`)[0] / 1000}},
		{"Accounting: start of the daemon until its hooks are attached, natively, `attach: syscall`", "%.3f s, at most %.3f s", ratio, 1.75, seconds(native)},
		{"Accounting: the same with hooks in a virtual machine", "%.3f s, at most %.3f s", ratio, 1.75, seconds(vm)},
		{"Accounting: resident memory, natively, a ring of 1 MiB", "%.1f MB", ratio, 63, p.at(native + ` resident_mb=(\S+)`)},
		{"Accounting: the same with the default ring", "%.1f MB", ratio, 63, p.at(native + ` resident_default_ring_mb=(\d+\.\d)`)},
		{
			"Accounting: resident memory with hooks in a virtual machine, a ring of 1 MiB", "%.1f MB in the complete run; %.1f, %.1f and %.1f MB in others",
			ratio, 63, slices.Concat(p.at(vm+` resident_mb=(\S+)`), others),
		},
	}
}

func jitterRows(t *testing.T) []comparisonRow {
	t.Helper()
	p := readPrinted(t, "../bench/jitter/README.md")
	last := p.at(`jitter: \S+ estimation_timer_ms=(\S+) syncd_call_ms=\S+ ratio=(\S+)\n`)
	one := p.at(`With one possible CPU and 30,000 services it takes (\S+) ms, (\d+) times`)
	few := p.at(`estimation_timer, 10 services +(\S+) +\d+\n +estimation_timer, 10000 services +(\S+)`)
	calls := p.at(`calls of syncd, 1000000 entries +(\S+) .*\n +calls of syncd, 10000000 entries +(\S+)`)
	later := p.at(`estimation_timer=none syncd_call_ms=(\S+)`)
	return []comparisonRow{
		{"Latency: longest run of the timer of IPVS, 30,000 services", "%.1f ms with 32 possible CPUs; %.1f ms with one", "%.2f, %.2f", 119, []float64{last[0], one[0]}},
		{"Latency: the same with 10 and 10,000 services", "%.2f and %.1f ms", "", 0, few},
		{"Latency: longest call of syncd while it scans, 1M and 10M entries", "%.2f and %.2f ms", "%.3f, %.3f", 119, calls},
		{"Latency: the timer, of the longest call of syncd while it scans", "%d with 32 possible CPUs; %d with one", "", 0, []float64{last[1], one[1]}},
		{"Latency: longest call of syncd with kernel 6.12, 10M entries", "%.1f ms, where IPVS has no timer any more", "", 0, later},
	}
}
