package drill

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// tools are programs that the drill uses if the machine has them.
type tools struct {
	tcpkali   string // empty unless tcpkali is the load
	netperf   string // empty if netperf or netserver is missing, which only LoadNetperf needs
	netserver string
}

// netperfTime is the duration of the connection rate measurement.
const netperfTime = 5 * time.Second

func findTools(load Load) (*tools, error) {
	t := new(tools)
	if load == LoadTcpkali {
		path, err := exec.LookPath("tcpkali")
		if err != nil {
			return nil, fmt.Errorf("find load %s: %w: install it or use --load %s", load, err, LoadBuiltin)
		}
		t.tcpkali = path
	}
	netperf, err := exec.LookPath("netperf")
	netserver, err2 := exec.LookPath("netserver")
	if err := errors.Join(err, err2); err == nil {
		t.netperf, t.netserver = netperf, netserver
	} else if load == LoadNetperf {
		return nil, fmt.Errorf("find load %s: %w: install it, for example by scripts/install-deps netperf, or use --load %s", load, err, LoadBuiltin)
	}
	return t, nil
}

// tcpkaliMessage is the message that every tcpkali connection sends repeatedly.
const tcpkaliMessage = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-."

// pattern returns the pattern that the backends expect; empty for the built-in load.
func (t *tools) pattern() string {
	if t.tcpkali == "" {
		return ""
	}
	return tcpkaliMessage
}

// startTcpkali opens the sessions and makes each send one message per second. It runs until it is
// killed.
func (t *tools) startTcpkali(r *run) (*process, error) {
	n := r.opts.Sessions
	args := []string{
		"--connections", strconv.Itoa(n),
		"--connect-rate", strconv.Itoa(max(200, n/100)),
		"--duration", "1h",
		"--message-rate", "1",
		"--message", tcpkaliMessage,
	}
	for _, addr := range sources(n) {
		args = append(args, "--source-ip", addr.String())
	}
	return startProgram(r.net.clients, traffic, "tcpkali", t.tcpkali, append(args, service().String())...)
}

// measureRate runs netperf's TCP_CRR between clients and a backend, through the router, and returns
// its connections per second. Netperf uses its own control connection and data ports, so that its
// packets bypass the load balancer: the figure is the limit of the network of namespaces.
func (t *tools) measureRate(ctx context.Context, r *run) float64 {
	if t.netperf == "" {
		return 0
	}
	rate, err := t.netperfRate(ctx, r)
	if err != nil {
		r.log.Warn("netperf gave no connection rate", "error", err)
		return 0
	}
	r.log.Info("netperf TCP_CRR", "connections_per_second", rate)
	return rate
}

func (t *tools) netperfRate(ctx context.Context, r *run) (rate float64, err error) {
	server, err := startProgram(r.net.backends, traffic, "netserver", t.netserver, "-D", "-4", "-L", "10.12.0.1")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, server.kill()) }()
	ctx, cancel := context.WithTimeout(ctx, 4*netperfTime)
	defer cancel()
	time.Sleep(netperfTime / 10) // netserver does not signal that it listens
	var out strings.Builder
	cmd := exec.CommandContext(ctx, t.netperf, "-4", "-H", "10.12.0.1", "-t", "TCP_CRR", "-P", "0",
		"-l", strconv.Itoa(int(netperfTime/time.Second)))
	cmd.Stdout = &out
	if err := r.net.clients.Start(cmd); err != nil {
		return 0, fmt.Errorf("start netperf: %w", err)
	}
	if err := cmd.Wait(); err != nil {
		return 0, fmt.Errorf("run netperf: %w", err)
	}
	return parseCRR(out.String())
}

// parseCRR reads the first line of TCP_CRR's output without headers: socket sizes, request and
// response size, elapsed time, transactions per second.
func parseCRR(out string) (float64, error) {
	line, _, _ := strings.Cut(strings.TrimSpace(out), "\n")
	fields := strings.Fields(line)
	if len(fields) != 6 {
		return 0, fmt.Errorf("read netperf output %q: not six columns", line)
	}
	rate, err := strconv.ParseFloat(fields[5], 64)
	if err != nil {
		return 0, fmt.Errorf("read netperf output %q: %w", line, err)
	}
	return rate, nil
}
