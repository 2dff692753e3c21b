package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/internal/vm"
	"mapsync/syncd/capture"
)

// vmrunFlag enables TestMachines, which needs two virtual machines at a time.
var vmrunFlag = flag.String("vmrun", "", "path of vmrun, for TestMachines")

// machineVariable is set in the machine that runs TestInMachines. pauseFor is how long the host pauses the other one when
// that test prints pauseWanted.
const (
	machineVariable = "CLUSTER_MACHINES"
	pauseWanted     = "PAUSE THE OTHER MACHINE"
	pauseFor        = 2 * time.Minute
)

// clockShown is the longest time until nodes show that a clock is wrong, or is right again, in emulated machines.
const clockShown = 30 * time.Second

// TestMachines runs TestInMachines in one of two virtual machines, and the other node in the other one.
func TestMachines(t *testing.T) {
	if *vmrunFlag == "" {
		t.Skip("pauses a machine for minutes: make chaos runs this test")
	}
	if os.Getenv(inMachine) != "" {
		t.Skip("runs outside virtual machines")
	}
	dir, err := os.MkdirTemp("", "machines") // keeps the paths of the sockets short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	link, monitor := filepath.Join(dir, "link"), filepath.Join(dir, "monitor")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(settings{Number: 1, Hooks: true, Control: net.JoinHostPort(machineAddress(1), controlPort), Dir: "/tmp/node"})
	if err != nil {
		t.Fatal(err)
	}
	vmrun := func(args ...string) *exec.Cmd {
		shared := []string{"-kernel", "6.1", "-mem", "2G", "-modules", "virtio_net", "-timeout", "40m", "-link", link}
		c := exec.CommandContext(t.Context(), *vmrunFlag, append(shared, args...)...)
		c.Stderr = os.Stderr
		return c
	}
	other := vmrun("-link-listen", "-monitor", monitor, "-env", roleVariable+"="+roleMachine, "-env", settingsVariable+"="+string(data), exe)
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = other.Process.Kill()
		_ = other.Wait()
	}()
	poll.Eventually(t, "the other machine listens", func() bool {
		_, err := os.Stat(link)
		return err == nil
	})
	test := vmrun("-env", inMachine+"=6.1", "-env", machineVariable+"=1", exe, "-test.v", "-test.run", "^TestInMachines$")
	out, err := test.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := test.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		fmt.Println(lines.Text())
		if strings.Contains(lines.Text(), pauseWanted) {
			if err := vm.Pause(t.Context(), monitor, pauseFor); err != nil {
				t.Error(err)
			}
		}
	}
	if err := test.Wait(); err != nil {
		t.Errorf("test in the machine: got %v, want success", err)
	}
}

// machines is a place with one node here and one in the other machine.
type machines struct{ here *processes }

func (m *machines) start(ctx context.Context, i int, s mapSettings) (address, control string, err error) {
	address = machineAddress(i)
	control = net.JoinHostPort(address, controlPort)
	if i == 0 {
		return address, control, startNode(m.here.t, settings{Map: s, Hooks: true, Control: control, Dir: filepath.Join(m.here.t.TempDir(), "node")}, (*exec.Cmd).Start)
	}
	poll.Within(m.here.t, time.Minute, "the other machine is up", func() bool {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", control)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	return address, control, nil
}

// TestInMachines: a standby in a machine whose clock is set back and forth, and that is paused for two minutes and whose
// clock is set right afterwards, loses nothing, not even for a moment: neither its own entries nor those of the other node.
// TestMachines runs it.
func TestInMachines(t *testing.T) {
	if os.Getenv(machineVariable) == "" {
		t.Skip("TestMachines runs this test in a virtual machine")
	}
	if err := linkUp(0); err != nil {
		t.Fatal(err)
	}
	tr := newTrial(t, &machines{&processes{t: t, attach: capture.AttachFexit}}, 2, mapSettings{}, func(_ int, r *startRequest) {
		r.Config.Attach, r.Config.DeadTime = string(capture.AttachFexit), 15*time.Second
	})
	l := load{
		Flows: 500, Interval: 400 * time.Millisecond,
		Stable: stableLoad{Flows: 64, Nodes: 2, Period: 6 * time.Second, Reading: 50 * time.Millisecond},
	}
	tr.load(l)
	tr.awaitStable()
	for _, ahead := range []time.Duration{-20 * time.Minute, 20 * time.Minute, -50 * time.Second, 0} {
		t.Logf("set the clock of %s to %v ahead", tr.nodes[1].name, ahead)
		tr.setOtherClock(ahead)
		tr.withClock(ahead.Abs() > tr.start[1].Config.MaxClockAhead)
	}
	tr.complete()
	tr.load(l)
	tr.pauseOther()
	tr.correctClock()
	tr.pauseOther()
	tr.load(l) // the standby refuses these changes
	tr.correctClock()
}

// correctClock ends a time under load in which the clock of the other machine is wrong, and the load.
func (tr *trial) correctClock() {
	tr.t.Helper()
	tr.withClock(true)
	tr.setOtherClock(0)
	tr.withClock(false)
	tr.complete()
}

// pauseOther makes the host pause the other machine, and waits until that is over.
func (tr *trial) pauseOther() {
	tr.t.Helper()
	began := time.Now()
	fmt.Println(pauseWanted)
	poll.Within(tr.t, pauseFor+2*time.Minute, "the other machine was paused and continues", func() bool {
		ctx, cancel := context.WithTimeout(tr.t.Context(), 5*time.Second)
		defer cancel()
		_, err := tr.nodes[1].status(ctx)
		return err == nil && time.Since(began) > pauseFor
	})
}

// withClock runs the load for a while with the present clock of the other machine. Both nodes must show whether it is
// wrong, and no entry may be missing meanwhile.
func (tr *trial) withClock(wrong bool) {
	tr.t.Helper()
	shown := func(ctx context.Context) error {
		for _, n := range tr.nodes {
			s, err := n.status(ctx)
			if err == nil && wrong != (len(s.ClockProblems) > 0) {
				err = fmt.Errorf("%s: got clock problems %q, want some: %v", n.name, s.ClockProblems, wrong)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	tr.eventually(clockShown, shown)
	time.Sleep(15 * time.Second)     // under load: several comparisons of digests and their repairs
	tr.eventually(clockShown, shown) // a node without a stream to the other one cannot show it
	tr.noneEnded()
	tr.stableStayed()
}

// setOtherClock sets the clock of the second machine relative to the one here.
func (tr *trial) setOtherClock(ahead time.Duration) {
	tr.t.Helper()
	tr.must(tr.nodes[1].call(tr.t.Context(), http.MethodPost, "/clock", time.Now().Add(ahead), nil))
}

// noneEnded fails if the kernel map of a node lacks an entry of its own load balancer. The load continues.
func (tr *trial) noneEnded() {
	tr.t.Helper()
	for _, n := range tr.nodes {
		var missing int
		tr.must(n.call(tr.t.Context(), http.MethodGet, "/missing", nil, &missing))
		if missing != 0 {
			tr.t.Errorf("kernel map of %s: %d entries of its own load balancer are missing, want none", n.name, missing)
		}
	}
}

// complete ends the load and waits until both nodes hold the same entries.
func (tr *trial) complete() {
	tr.t.Helper()
	tr.eachPost("/unload")
	tr.awaitConverged()
	tr.stableStayed()
}
