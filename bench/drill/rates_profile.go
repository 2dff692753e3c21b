package drill

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	benchprocess "mapsync/bench/process"
)

// Profile is the processor time of a connection, in µs. The times of programs are parts of the rest: programs run in the processes
// that cause them.
type Profile struct {
	Total float64 `json:"total_us"` // of all CPUs
	Syncd float64 `json:"syncd_us"` // the active node's process
	Peer  float64 `json:"peer_us"`  // the other node's process
	Hooks float64 `json:"hooks_us"` // programs of the active node's process: the hooks, and a little for reads of its map
	XDP   float64 `json:"xdp_us"`   // programs of the load balancer, with the code of the hooks in the way [WayReports]
}

// profile measures each way once more, with the largest number of clients and with the kernel's statistics of programs. They slow
// down each program, so that the rates of the rounds are without them.
func (m *rateMeasurement) profile(ctx context.Context) (err error) {
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return fmt.Errorf("measure the run time of programs: %w", err)
	}
	defer func() { err = errors.Join(err, stats.Close()) }()
	threads := slices.Max(m.options.Threads)
	for i, way := range append([]string{WayOff}, m.options.Ways...) {
		m.run.name = fmt.Sprintf("profile%d", i)
		m.run.log.Info("measuring the processor time of a connection", "syncd", way)
		err := m.withSyncd(ctx, way, func(s *rateSyncd) (err error) {
			m.rate(way, threads).Profile, err = m.profileWay(ctx, s, threads)
			return err
		})
		if err != nil {
			return fmt.Errorf("measure the processor time of a connection with %s: %w", way, err)
		}
	}
	return nil
}

func (m *rateMeasurement) profileWay(ctx context.Context, s *rateSyncd, threads int) (_ *Profile, err error) {
	var finish [3]func(*error) benchprocess.Usage
	for i, pid := range []int{s.pid(active), s.pid(standby), m.run.balancers[active].cmd.Process.Pid} {
		meter := new(benchprocess.Meter)
		if pid != 0 {
			if meter, err = benchprocess.NewMeter(pid); err != nil {
				return nil, err
			}
		}
		defer func() { err = errors.Join(err, meter.Close()) }()
		finish[i] = meter.Since()
	}
	before, err := busyTime()
	if err != nil {
		return nil, err
	}
	perSecond, err := m.connect(ctx, threads)
	if err != nil {
		return nil, err
	}
	after, err := busyTime()
	syncd, peer, balancer := finish[0](&err), finish[1](&err), finish[2](&err)
	each := func(d time.Duration) float64 {
		return float64(d.Nanoseconds()) / 1e3 / (perSecond * m.options.Window.Seconds())
	}
	return &Profile{
		Total: each(after - before), Syncd: each(syncd.Process), Peer: each(peer.Process), Hooks: each(syncd.Programs), XDP: each(balancer.Programs),
	}, err
}

// busyTime returns the time for which all CPUs together have not been idle.
func busyTime() (busy time.Duration, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("read processor times: %w", err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	var user, nice, system, idle, wait, irq, softirq int64
	if _, err := fmt.Sscanf(line, "cpu %d %d %d %d %d %d %d", &user, &nice, &system, &idle, &wait, &irq, &softirq); err != nil {
		return 0, fmt.Errorf("parse processor times %q: %w", line, err)
	}
	return time.Duration(user+nice+system+irq+softirq) * userTick, nil
}
