package drill

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cilium/ebpf/rlimit"

	benchprocess "mapsync/bench/process"
	"mapsync/internal/tool"
)

// The ways in which syncd detects the load balancer's writes while connection rates are measured.
const (
	WayOff     = "off" // no syncd; measured in any case
	WayKprobe  = "kprobe"
	WayFexit   = "fexit"
	WayReports = "reports" // no hooks: the load balancer itself runs the code of the hooks
)

// RateOptions configures [MeasureRates]. A zero field takes the default at the end of its comment.
type RateOptions struct {
	Ways    []string      // what to compare with the load balancer alone
	Threads []int         // numbers of netperf clients; 1, 10, 50
	Rounds  int           // 5
	Window  time.Duration // of each measurement, whole seconds; 5 s
	Syncd   string        // path of the syncd program, for the ways with hooks
	Logger  *slog.Logger  // required
}

// Rate is a rate of connections through the load balancer.
type Rate struct {
	Way     string  `json:"way"`
	Threads int     `json:"threads"`
	Rate    float64 `json:"connections_per_second"` // median of the rounds
	Ratio   float64 `json:"ratio"`                  // to the rate without syncd of the same round, median
	Lowest  float64 `json:"lowest_ratio"`
	Highest float64 `json:"highest_ratio"`
	CPU     float64 `json:"syncd_cpu_percent"` // of one core, of the active node's syncd, median
	Events  uint64  `json:"events"`            // of all rounds and threads of this way
	Lost    uint64  `json:"lost"`
	// Profile is nil except for the largest number of clients.
	Profile *Profile `json:"profile,omitempty"`

	rates, ratios, cpus []float64
}

// MeasureRates measures netperf's TCP_CRR, through the load balancer, with and without syncd in turn.
func MeasureRates(ctx context.Context, o RateOptions) (_ []*Rate, err error) {
	setDefault(&o.Rounds, 5)
	setDefault(&o.Window, 5*time.Second)
	if len(o.Threads) == 0 {
		o.Threads = []int{1, 10, 50}
	}
	opts := &Options{Sessions: slices.Max(o.Threads), Load: LoadNetperf, Syncd: o.Syncd, Logger: o.Logger}
	opts.setDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	tools, err := findTools(opts.Load)
	if err != nil {
		return nil, err
	}
	if err := rlimit.RemoveMemlock(); err != nil { // for the router's program, before kernel 5.11
		return nil, fmt.Errorf("raise memory lock limit: %w", err)
	}
	place, err := newWorkDir()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, place.remove()) }()
	m := &rateMeasurement{options: &o, run: &run{opts: opts, tools: tools, workDir: place, log: o.Logger}}
	defer func() { err = errors.Join(err, m.run.end()) }()
	if m.run.net, err = newNetwork(opts.Sessions, false); err != nil {
		return nil, err
	}
	if err := m.run.startBackends(); err != nil {
		return nil, err
	}
	for round := range o.Rounds {
		if err := m.round(ctx, round); err != nil {
			return nil, err
		}
	}
	return m.rates, errors.Join(m.setMedians(), m.profile(ctx))
}

// rateMeasurement is the state of [MeasureRates].
type rateMeasurement struct {
	options *RateOptions
	run     *run
	rates   []*Rate
}

// rate returns the rate of a way and a number of threads.
func (m *rateMeasurement) rate(way string, threads int) *Rate {
	i := slices.IndexFunc(m.rates, func(r *Rate) bool { return r.Way == way && r.Threads == threads })
	if i < 0 {
		m.rates = append(m.rates, &Rate{Way: way, Threads: threads})
		i = len(m.rates) - 1
	}
	return m.rates[i]
}

func (m *rateMeasurement) round(ctx context.Context, round int) error {
	ways := append([]string{WayOff}, m.options.Ways...)
	for i := range ways {
		// Each round starts with another way, so that a drift of the machine affects all of them.
		way := ways[(i+round)%len(ways)]
		m.run.name = fmt.Sprintf("rate%d-%d", round, i)
		m.run.log.Info("measuring connection rates", "round", round+1, "of", m.options.Rounds, "syncd", way)
		if err := m.withSyncd(ctx, way, func(s *rateSyncd) error { return m.measureWay(ctx, way, s) }); err != nil {
			return fmt.Errorf("measure connection rates with %s: %w", way, err)
		}
	}
	for _, threads := range m.options.Threads {
		off := m.rate(WayOff, threads).rates[round]
		for _, way := range ways {
			r := m.rate(way, threads)
			r.ratios = append(r.ratios, r.rates[round]/off)
		}
	}
	return nil
}

// withSyncd starts load balancers with new maps, and syncd beside them, and then measures.
func (m *rateMeasurement) withSyncd(ctx context.Context, way string, measure func(*rateSyncd) error) (err error) {
	r := m.run
	for i := range r.net.nodes {
		if err := r.startBalancer(i, false, false); err != nil {
			return err
		}
	}
	syncd, err := m.startSyncd(ctx, way)
	defer func() { err = errors.Join(err, syncd.close(), r.balancers[active].kill(), r.balancers[standby].kill()) }()
	if err != nil {
		return err
	}
	if err := r.net.clients.Do(func() error { return awaitNetserver(service().Addr(), r.opts.StallTimeout) }); err != nil {
		return err
	}
	return measure(syncd)
}

// measureWay measures all numbers of threads.
func (m *rateMeasurement) measureWay(ctx context.Context, way string, syncd *rateSyncd) error {
	for _, threads := range m.options.Threads {
		used, began := processTime(syncd.pid(active)), time.Now()
		perSecond, err := m.connect(ctx, threads)
		if err != nil {
			return err
		}
		rate := m.rate(way, threads)
		rate.rates = append(rate.rates, perSecond)
		rate.cpus = append(rate.cpus, 100*float64(processTime(syncd.pid(active))-used)/float64(time.Since(began)))
	}
	events, lost, err := syncd.settledEvents(ctx)
	for _, threads := range m.options.Threads {
		m.rate(way, threads).Events += events
		m.rate(way, threads).Lost += lost
	}
	return err
}

// connect runs netperf's TCP_CRR with a number of clients at the same time, and returns the sum of their rates.
func (m *rateMeasurement) connect(ctx context.Context, threads int) (perSecond float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, m.options.Window+time.Minute)
	defer cancel()
	var mu sync.Mutex
	var group sync.WaitGroup
	for i := range threads {
		group.Go(func() {
			rate, e := m.netperf(ctx, i)
			mu.Lock()
			defer mu.Unlock()
			perSecond, err = perSecond+rate, errors.Join(err, e)
		})
	}
	group.Wait()
	return perSecond, err
}

func (m *rateMeasurement) netperf(ctx context.Context, i int) (float64, error) {
	var out, stderr strings.Builder
	seconds := strconv.Itoa(int(m.options.Window / time.Second))
	cmd := exec.CommandContext(ctx, m.run.tools.netperf, netperfArgs(service().Addr(), i, "TCP_CRR", "-l", seconds)...)
	cmd.Stdout, cmd.Stderr = &out, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.run.net.clients.Do(func() error { return traffic.startOn(cmd) }); err != nil {
		return 0, fmt.Errorf("start netperf: %w", err)
	}
	if err := cmd.Wait(); err != nil {
		return 0, fmt.Errorf("run netperf: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return parseCRR(out.String())
}

// setMedians sets the medians.
func (m *rateMeasurement) setMedians() error {
	for _, r := range m.rates {
		if r.Lost > 0 {
			m.run.log.Warn("events were lost", "syncd", r.Way, "lost", r.Lost, "events", r.Events)
		}
		r.Rate, r.Ratio, r.CPU = tool.Median(r.rates), tool.Median(r.ratios), tool.Median(r.cpus)
		r.Lowest, r.Highest = slices.Min(r.ratios), slices.Max(r.ratios)
		if r.Rate == 0 {
			return fmt.Errorf("measure connection rates with %s: netperf opened no connection", r.Way)
		}
	}
	return nil
}

// rateSyncd is syncd on both nodes: the program with hooks, or without hooks this program in another role. The receiver of
// its methods may be nil: there is none.
type rateSyncd struct {
	run     *run
	hooked  bool
	reports [2]*benchprocess.Syncd
}

func (m *rateMeasurement) startSyncd(ctx context.Context, way string) (*rateSyncd, error) {
	s := &rateSyncd{run: m.run}
	switch way {
	case WayOff:
		return nil, nil
	case WayReports:
		return s, s.startReports(ctx)
	}
	s.hooked = true
	m.run.opts.Attach = way
	return s, m.run.startDaemons(ctx)
}

// pid returns the process of a node's syncd, 0 without syncd.
func (s *rateSyncd) pid(node int) int {
	switch {
	case s == nil:
		return 0
	case s.hooked:
		return s.run.daemons[node].process.cmd.Process.Pid
	}
	return s.reports[node].Pid()
}

// userTick is the unit of times in /proc, on all architectures (USER_HZ).
const userTick = 10 * time.Millisecond

// processTime returns the processor time of a process, 0 if it has ended or does not exist.
func processTime(pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The name of the program, in parentheses, may contain spaces.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * userTick
}

// events returns the number of events that syncd has received and lost.
func (s *rateSyncd) events(ctx context.Context) (events, lost uint64, err error) {
	if s == nil {
		return 0, 0, nil
	}
	if s.hooked {
		status, err := s.run.queryStatus(ctx, s.run.daemons[active])
		return status.Capture.Events, status.Capture.Lost, err
	}
	status, err := s.reports[active].Client.Status(ctx)
	return status.Capture.Events, status.Capture.Lost, err
}

// The number of events has settled when it has not grown for settleTime, at the latest after settleLimit.
const (
	settleTime  = time.Second
	settleLimit = 20 * time.Second
)

// settledEvents returns the number of events that syncd has received and lost after it has read the last ones.
func (s *rateSyncd) settledEvents(ctx context.Context) (events, lost uint64, err error) {
	if s == nil {
		return 0, 0, nil
	}
	var last uint64
	for began, grown := time.Now(), time.Now(); time.Since(grown) < settleTime && time.Since(began) < settleLimit; {
		if events, lost, err = s.events(ctx); err != nil {
			return 0, 0, err
		}
		if events+lost != last {
			last, grown = events+lost, time.Now()
		}
		if err := tool.Pause(ctx, pollInterval); err != nil {
			return 0, 0, err
		}
	}
	return events, lost, nil
}

func (s *rateSyncd) close() error {
	if s == nil {
		return nil
	}
	var errs []error
	for i := range s.reports {
		errs = append(errs, s.reports[i].Close())
		if d := s.run.daemons[i]; d != nil {
			errs = append(errs, d.process.kill())
			s.run.daemons[i] = nil
		}
	}
	return errors.Join(errs...)
}
