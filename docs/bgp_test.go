package docs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"mapsync/internal/handbook"
	"mapsync/internal/netns"
	"mapsync/internal/poll"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
)

// The longest times until the route is withdrawn, according to bgp.md.
const (
	removalTime = 3 * time.Second // by the watcher
	lifetime    = 7 * time.Second // of an address without a watcher
)

// serviceRoute is the route of bgp.md.
const serviceRoute = "192.0.2.10/32"

// routerSettings are those of the router that receives the route.
//
//nolint:misspell // a keyword of BIRD
const routerSettings = `
router id 10.0.0.254;
protocol device {}
protocol bgp node {
	local 10.0.0.254 as 65000;
	neighbor 10.0.0.1 as 65001;
	ipv4 { import all; export none; };
}
`

// syncdSettings are those of the node. No hook is needed: the test changes only readiness.
const syncdSettings = `
map: [%s]
attach: none
node-name: lb1
sync-timeout: 1s
`

// announcement is a node that announces its service address to a router as on bgp.md.
type announcement struct {
	*testing.T
	dir          string
	node, router *netns.NS
	syncd, watch *exec.Cmd
}

// TestServiceAddressIsAnnouncedWhileReady runs the watcher and the settings of bgp.md with BIRD, a router in another network
// namespace, and syncd. The router has the route only while syncd is ready and the watcher runs.
func TestServiceAddressIsAnnouncedWhileReady(t *testing.T) {
	t.Parallel()
	a := newAnnouncement(t)
	a.createMap()
	a.startSyncd()
	a.startWatcher()
	a.routed(true, poll.Limit)
	for _, event := range []struct {
		name       string
		end, begin func()
		limit      time.Duration // until the route is withdrawn
	}{
		{"drain", func() { a.run("syncd", "drain", "--force") }, func() { a.run("syncd", "drain", "--undo") }, removalTime},
		{"not ready", a.removeMap, a.createMap, removalTime},
		{"crash of syncd", func() { a.kill(a.syncd) }, a.startSyncd, removalTime},
		{"crash of the watcher", func() { a.kill(a.watch) }, a.startWatcher, lifetime},
		{"stopped watcher", func() { a.signal(a.watch, syscall.SIGSTOP) }, func() { a.signal(a.watch, syscall.SIGCONT) }, lifetime},
	} {
		t.Log(event.name)
		event.end()
		a.routed(false, event.limit)
		a.reload()
		poll.Stays(t, 2*time.Second, "no route after a reload of BIRD", func() bool { return !a.hasRoute() })
		event.begin()
		a.routed(true, poll.Limit)
	}
	a.reload()
	poll.Stays(t, lifetime, "route after a reload of BIRD", a.hasRoute)
}

func (a *announcement) startSyncd() {
	a.Helper()
	a.syncd = a.start(a.node, "syncd", "run", "--config", "syncd.yaml", "--state-dir", a.dir)
}

func (a *announcement) startWatcher() {
	a.Helper()
	a.watch = a.start(a.node, filepath.Join(a.dir, "announce-vip"))
}

// reload reloads the settings of BIRD on the node.
func (a *announcement) reload() {
	a.Helper()
	a.run("birdc", "-s", "node.ctl", "configure")
}

// newAnnouncement starts BIRD on the node and on the router, without a map.
func newAnnouncement(t *testing.T) *announcement {
	t.Helper()
	needTool(t, "bird")
	needTool(t, "birdc")
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	a := &announcement{T: t, dir: t.TempDir(), node: namespace(t, "node"), router: namespace(t, "router")}
	if err := netns.Join(a.node, "eth0", "10.0.0.1/24", a.router, "eth0", "10.0.0.254/24"); err != nil {
		t.Fatal(err)
	}
	a.mountPins()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(a.dir, "real"), "../syncd")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build syncd: got error %v, want none\n%s", err, out)
	}
	socket := filepath.Join(a.dir, "syncd.sock")
	a.write("syncd", fmt.Sprintf("#!/bin/sh\nexec %s/real \"$@\" --control-socket %s\n", a.dir, socket))
	a.write("syncd.yaml", fmt.Sprintf(syncdSettings, a.pin()))
	a.write("announce-vip", pageFile(t, "watcher", "bash"))
	a.write("node.conf", pageFile(t, "bird", "bird"))
	a.write("router.conf", routerSettings)
	for name, ns := range map[string]*netns.NS{"node": a.node, "router": a.router} {
		a.start(ns, "bird", "-f", "-c", name+".conf", "-s", name+".ctl", "-P", name+".pid")
	}
	return a
}

func namespace(t *testing.T, name string) *netns.NS {
	t.Helper()
	ns, err := netns.New(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	return ns
}

// pageFile returns the first block of a language in a section of bgp.md.
func pageFile(t *testing.T, anchor, language string) string {
	t.Helper()
	page, err := handbook.Read("bgp.md")
	if err != nil {
		t.Fatal(err)
	}
	if s := page.Find(anchor); s != nil {
		for _, b := range s.Blocks {
			if b.Language == language {
				return b.Text
			}
		}
	}
	t.Fatalf("bgp.md#%s: got no block %s, want one", anchor, language)
	return ""
}

func (a *announcement) write(name, text string) {
	a.Helper()
	if err := os.WriteFile(filepath.Join(a.dir, name), []byte(text), 0o755); err != nil {
		a.Fatal(err)
	}
}

// command returns a command in the directory of the test, with its syncd.
func (a *announcement) command(name string, args ...string) *exec.Cmd {
	if name == "syncd" {
		name = filepath.Join(a.dir, name)
	}
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = a.dir, append(os.Environ(), "PATH="+a.dir+":"+os.Getenv("PATH"))
	return cmd
}

// start starts a command in a process group of its own, which is killed at the end of the test.
func (a *announcement) start(ns *netns.NS, name string, args ...string) *exec.Cmd {
	a.Helper()
	c := a.command(name, args...)
	c.Stdout, c.Stderr = a.Output(), a.Output()
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := ns.Start(c); err != nil {
		a.Fatal(err)
	}
	a.Cleanup(func() {
		if c.ProcessState == nil {
			a.kill(c)
		}
	})
	return c
}

// kill kills a command and its children, and waits for its end.
func (a *announcement) kill(c *exec.Cmd) {
	a.Helper()
	a.signal(c, syscall.SIGKILL)
	_ = c.Wait() // the error is the signal
}

func (a *announcement) signal(c *exec.Cmd, s syscall.Signal) {
	a.Helper()
	if err := syscall.Kill(-c.Process.Pid, s); err != nil {
		a.Errorf("signal %v to %s: got error %v, want none", s, c.Path, err)
	}
}

// run executes a command on the node, which must succeed.
func (a *announcement) run(name string, args ...string) {
	a.Helper()
	var out bytes.Buffer
	c := a.command(name, args...)
	c.Stdout, c.Stderr = &out, &out
	if err := a.node.Do(c.Run); err != nil {
		a.Fatalf("%s %q: got error %v, want none\n%s", name, args, err, out.String())
	}
}

func (a *announcement) pin() string { return filepath.Join(a.dir, "bpf", "ct") }

// createMap creates the map of the node.
func (a *announcement) createMap() {
	a.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "ct", Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 16})
	if err != nil {
		a.Fatal(err)
	}
	defer m.Close()
	if err := m.Pin(a.pin()); err != nil {
		a.Fatal(err)
	}
}

// removeMap removes the map of the node.
func (a *announcement) removeMap() {
	a.Helper()
	if err := os.Remove(a.pin()); err != nil {
		a.Fatal(err)
	}
}

// mountPins mounts a BPF file system for the pin of the map.
func (a *announcement) mountPins() {
	a.Helper()
	dir := filepath.Dir(a.pin())
	if err := errors.Join(os.Mkdir(dir, 0o700), syscall.Mount("bpf", dir, "bpf", 0, "")); err != nil {
		a.Fatal(err)
	}
	a.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			a.Error(err)
		}
	})
}

// routes returns the routes that the router has, or the error of the router.
func (a *announcement) routes() string {
	out, err := a.command("birdc", "-s", filepath.Join(a.dir, "router.ctl"), "show", "route").CombinedOutput()
	if err != nil {
		return err.Error()
	}
	return string(out)
}

func (a *announcement) hasRoute() bool { return strings.Contains(a.routes(), serviceRoute) }

// routed waits until the router has the route, or lacks it.
func (a *announcement) routed(want bool, limit time.Duration) {
	a.Helper()
	begun := time.Now()
	poll.Within(a, limit, fmt.Sprintf("the router has the route: %v", want), func() bool { return a.hasRoute() == want },
		func() any { return a.routes() })
	a.Logf("route %v after %v", want, time.Since(begun).Round(10*time.Millisecond))
}

// TestAnnouncementUnitIsValid verifies the unit of the watcher. systemd-analyze reports a misspelt key on standard error only.
func TestAnnouncementUnitIsValid(t *testing.T) {
	t.Parallel()
	needTool(t, "systemd-analyze")
	unit := strings.Replace(pageFile(t, "watcher", "ini"), "/usr/local/sbin/announce-vip", "/bin/true", 1)
	for text, valid := range map[string]bool{unit: true, strings.Replace(unit, "RestartSec", "RestartSecs", 1): false} {
		path := filepath.Join(t.TempDir(), "announce-vip.service")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", path).CombinedOutput()
		if (err == nil && len(out) == 0) != valid {
			t.Errorf("unit: got error %v, output %q, want a valid one: %v\n%s", err, out, valid, text)
		}
	}
}
