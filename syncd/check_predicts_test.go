package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/internal/testcert"
	"mapsync/syncd/daemon"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// prediction is a node with settings or privileges that may be wrong.
type prediction struct {
	flags    []string // PIN stands for the pin of the map with types, DIR for the directory of the workplace
	prepare  func(w *workplace)
	limits   []string // arguments of setpriv
	filtered bool     // bpf(2) is denied
	// problem is the problem that run has; "exit": it does not start; empty: all is well.
	problem string
	texts   []string // the cause and the remedy in the output of check
}

const exits = "exit"

// predictions have one wrong setting or privilege each, except for the first ones.
var predictions = map[string]prediction{
	"good settings":             {},
	"good, as the unit":         {limits: []string{"--bounding-set=-all,+bpf,+perfmon,+syslog,+dac_override,+sys_admin"}},
	"good, a map without types": {flags: []string{"--map=opaque=DIR/bpf/ct"}, limits: []string{"--bounding-set=-all,+bpf,+perfmon,+syslog,+dac_override"}},
	"no capability for types": {
		limits: []string{"--bounding-set=-all,+bpf,+perfmon,+syslog,+dac_override"}, problem: "map-refused",
		texts: []string{"types cannot be read", "give syncd CAP_SYS_ADMIN"},
	},
	"no capability": {limits: []string{"--bounding-set=-bpf,-sys_admin"}, problem: exits, texts: []string{"neither CAP_BPF nor CAP_SYS_ADMIN", "run syncd as root"}},
	"seccomp filter": {
		filtered: true, limits: []string{"--bounding-set=-sys_resource"}, problem: exits,
		texts: []string{"a seccomp filter denies bpf(2)", "SystemCallFilter=bpf"},
	},
	"wrong field":                  {flags: []string{"--field=typed:key.prot=be"}, problem: "map-refused", texts: []string{"prot", "port"}},
	"field of a map without types": {flags: []string{"--map=opaque=DIR/bpf/ct", "--field=opaque:key.port=be"}, problem: "map-refused", texts: []string{"port"}},
	"certificate of another CA": {prepare: func(w *workplace) {
		other, err := testcert.NewCA(w.dir, "ca") // replaces the file
		if err != nil || other == nil {
			w.Fatal(err)
		}
	}, problem: exits, texts: []string{"tls-cert", "CA"}},
	"unreadable key": {
		prepare: func(w *workplace) { w.chmod(filepath.Base(w.pair.KeyFile), 0) }, limits: []string{"--bounding-set=-dac_override,-dac_read_search"},
		problem: exits, texts: []string{"permission denied", ".key"},
	},
	"no BPF file system": {flags: []string{"--map=ct=DIR/none/ct"}, problem: "bpf-file-system", texts: []string{"is not in a BPF file system", "mount -t bpf", "HostToContainer"}},
	"port in use": {
		flags: []string{"--grpc-listen=LISTENING"}, problem: exits, texts: []string{"grpc-listen", "address already in use", "ss -lntup"},
	},
	"one port for two settings": {
		flags: []string{"--grpc-listen=LISTENING", "--metrics-listen=LISTENING"}, problem: exits, texts: []string{"metrics-listen", "has the port of grpc-listen"},
	},
	"standalone, port of peers in use": {
		flags: []string{"--grpc-listen=LISTENING", "--tls-cert=", "--tls-key=", "--tls-ca=", "--gossip-key-file="},
	},
	"address of another host": {flags: []string{"--metrics-listen=192.0.2.7:9746"}, problem: exits, texts: []string{"metrics-listen", "no interface of this host has the address"}},
	"address of another host, any port": {
		flags: []string{"--grpc-listen=192.0.2.7:0"}, problem: exits, texts: []string{"grpc-listen", "no interface of this host has the address"},
	},
	"unknown host, any port": {flags: []string{"--metrics-listen=host.invalid:0"}, problem: exits, texts: []string{"metrics-listen", "host.invalid"}},
	"attach method without privilege": {
		flags: []string{"--map=opaque=DIR/bpf/ct", "--attach=fexit"}, limits: []string{"--bounding-set=-perfmon,-sys_admin"}, problem: exits, texts: []string{"lacks CAP_PERFMON", "set attach: none"},
	},
	"state directory not writable": {
		prepare: func(w *workplace) { w.mount("state", unix.MS_RDONLY, "") }, flags: []string{"--state-dir=DIR/state"}, problem: "state-not-saved",
		texts: []string{"state-dir", "read-only file system", "let the user of syncd write there"},
	},
	"state directory without files": {
		flags: []string{"--state-dir=/proc/syncd"}, problem: "state-not-saved", texts: []string{"state-dir", "/proc cannot be written", "let the user of syncd write there"},
	},
	"state directory without space": {
		prepare: func(w *workplace) { w.mount("state", 0, "size=4k"); w.write("state/full", strings.Repeat("x", 4096)) },
		flags:   []string{"--state-dir=DIR/state"}, problem: "state-not-saved", texts: []string{"state-dir", "no space left on device"},
	},
	"directory in place of the state file": {
		prepare: func(w *workplace) {
			if err := os.MkdirAll(w.path("lb1.state.json/x"), 0o700); err != nil {
				w.Fatal(err)
			}
		}, problem: "state-not-saved", texts: []string{"state-dir", "lb1.state.json is a directory: remove it"},
	},
	"time without its role": {
		prepare: (*workplace).pinSeen, flags: []string{"--map=seen=DIR/bpf/seen"}, problem: "field-role",
		texts: []string{"last_seen", "200 of 200 values are times of bpf_ktime_get_ns", "seen:last_seen=ktime,volatile"},
	},
	"time with the role of another clock": {
		prepare: (*workplace).pinSeen, flags: []string{"--map=seen=DIR/bpf/seen", "--field=seen:last_seen=seconds"}, problem: "field-role",
		texts: []string{"last_seen", "another content than its role", "seen:last_seen=ktime,volatile"},
	},
	"time with its role":    {prepare: (*workplace).pinSeen, flags: []string{"--map=seen=DIR/bpf/seen", "--field=seen:last_seen=ktime"}},
	"time that is silenced": {prepare: (*workplace).pinSeen, flags: []string{"--map=seen=DIR/bpf/seen", "--field=seen:last_seen=none"}},
	"time in a map without types": {
		prepare: (*workplace).pinSeen, flags: []string{"--map=seen=DIR/bpf/bytes"}, problem: "field-role", texts: []string{"seen:@0:8=ktime"},
	},
	"time in a map without types, with its role": {prepare: (*workplace).pinSeen, flags: []string{"--map=seen=DIR/bpf/bytes", "--field=seen:@0:8=ktime"}},
	"control socket without files": {
		flags: []string{"--control-socket=/proc/syncd/syncd.sock"}, problem: exits, texts: []string{"control-socket", "/proc cannot be written"},
	},
}

// predicted are the problems that a check predicts, besides a start that fails.
var predicted = []string{"map-refused", "bpf-file-system", "state-not-saved", "field-role"}

// pinSeen pins the map seen, whose values have a time of each entry's last use, and the map bytes with the same entries without types.
func (w *workplace) pinSeen() {
	w.Helper()
	u64 := &btf.Int{Name: "__u64", Size: 8}
	value := &btf.Struct{Name: "flow", Size: 16, Members: []btf.Member{{Name: "last_seen", Type: u64}, {Name: "count", Type: u64, Offset: 64}}}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		w.Fatal(err)
	}
	for name, spec := range map[string]*ebpf.MapSpec{"seen": {Key: &btf.Int{Name: "__u32", Size: 4}, Value: value}, "bytes": {}} {
		spec.Type, spec.KeySize, spec.ValueSize, spec.MaxEntries = ebpf.Hash, 4, 16, 200
		m, err := ebpf.NewMap(spec)
		if err != nil {
			w.Fatal(err)
		}
		defer m.Close()
		for i := range uint32(200) {
			if err := m.Put(i, [2]uint64{uint64(now.Nano()) - uint64(i)*1e6, uint64(i)}); err != nil {
				w.Fatal(err)
			}
		}
		if err := m.Pin(filepath.Join(filepath.Dir(w.pin), name)); err != nil {
			w.Fatal(err)
		}
	}
}

// TestCheckPredictsRun: check fails exactly if run does, or if run has a problem of the settings or privileges. Its output has the
// cause and the remedy.
func TestCheckPredictsRun(t *testing.T) {
	listening, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listening.Close()
	for name, p := range predictions {
		t.Run(name, func(t *testing.T) {
			w := newWorkplace(t)
			key, value := ctTypes()
			key.Members[0].Name = "port"
			pin := filepath.Join(filepath.Dir(w.pin), "typed")
			m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 16, ValueSize: 8, MaxEntries: 10, Key: key, Value: value})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			if err := m.Pin(pin); err != nil {
				t.Fatal(err)
			}
			if p.prepare != nil {
				p.prepare(w)
			}
			names := strings.NewReplacer("PIN", pin, "DIR", w.dir, "LISTENING", listening.Addr().String())
			flags := p.flags
			if !slices.ContainsFunc(flags, func(f string) bool { return strings.HasPrefix(f, "--map=") }) {
				flags = append([]string{"--map=typed=PIN"}, flags...)
			}
			flags = strings.Split(names.Replace(strings.Join(flags, "\n")), "\n")
			out, code := p.check(w, flags)
			if wrong := p.problem != ""; wrong != (code != 0) {
				t.Errorf("check: got exit code %d, want %q predicted\n%s", code, p.problem, out)
			}
			for _, text := range p.texts {
				if !strings.Contains(out, text) {
					t.Errorf("check: want %q in\n%s", text, out)
				}
			}
			if got, log := p.run(w, flags); got != p.problem {
				t.Errorf("run: got the problem %q, want %q\n%s", got, p.problem, log)
			}
		})
	}
}

// mount mounts a file system in memory.
func (w *workplace) mount(name string, flags uintptr, options string) {
	w.Helper()
	if err := os.Mkdir(w.path(name), 0o700); err != nil {
		w.Fatal(err)
	}
	if err := unix.Mount("tmpfs", w.path(name), "tmpfs", flags, options); err != nil {
		w.Fatalf("mount a file system (needs root): %v", err)
	}
	w.Cleanup(func() { _ = unix.Unmount(w.path(name), unix.MNT_DETACH) })
}

// command returns a process of syncd with the privileges of the prediction.
func (p *prediction) command(w *workplace, name string, flags []string) *exec.Cmd {
	w.Helper()
	cmd := program(w.T, append([]string{name, "--config", w.path("syncd.yaml")}, flags...)...)
	if p.filtered {
		cmd.Env = append(cmd.Env, filterVariable+"=1")
	}
	if len(p.limits) > 0 {
		setpriv, err := exec.LookPath("setpriv")
		if err != nil {
			w.Fatal(err)
		}
		cmd.Path, cmd.Args = setpriv, slices.Concat([]string{setpriv}, p.limits, cmd.Args)
	}
	return cmd
}

func (p *prediction) check(w *workplace, flags []string) (out string, code int) {
	w.Helper()
	cmd := p.command(w, "check", flags)
	text, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		w.Fatal(err)
	}
	var r settingsReport
	asJSON, _ := p.command(w, "check", append(flags, "--json")).Output()
	if err := json.Unmarshal(asJSON, &r); err != nil || r.Usable != (cmd.ProcessState.ExitCode() == 0) {
		w.Errorf("check --json: got error %v, %+v, want a report that agrees with exit code %d", err, r, cmd.ProcessState.ExitCode())
	}
	return string(text), cmd.ProcessState.ExitCode()
}

// run runs the daemon until it replicates its map or has a problem, and returns the latter, and its log.
func (p *prediction) run(w *workplace, flags []string) (problem, log string) {
	w.Helper()
	cmd := p.command(w, "run", flags)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		w.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	client := daemon.NewClient(w.path("syncd.sock"))
	for began := time.Now(); ; {
		select {
		case err := <-ended:
			return exits, fmt.Sprint(err, "\n", out.String())
		case <-time.After(20 * time.Millisecond): // between two requests
		}
		s, err := client.Status(w.Context())
		found := ""
		if err == nil {
			for _, each := range s.Problems {
				if slices.Contains(predicted, each.ID) {
					found = each.ID
				}
			}
		}
		// The entries are sampled every second.
		if found == "" && (err != nil || s.Maps[0].State != daemon.MapReplicating || p.problem == "field-role") {
			if time.Since(began) < poll.Lengthened(poll.Limit) {
				continue
			}
			found = "neither a problem nor a map that is replicated"
		}
		_ = cmd.Process.Signal(unix.SIGTERM)
		<-ended
		return found, out.String()
	}
}

// TestCheckAndRunAgreeOnAttachMethods: whatever this kernel offers, check accepts an attach method exactly if run starts with it.
func TestCheckAndRunAgreeOnAttachMethods(t *testing.T) {
	for _, attach := range []string{"auto", "fexit", "kprobe", "syscall", "none"} {
		for _, buffer := range []string{"ring", "perf"} {
			t.Run(attach+" with "+buffer, func(t *testing.T) {
				w := newWorkplace(t)
				var p prediction
				flags := []string{"--attach=" + attach, "--buffer=" + buffer}
				checked, code := p.check(w, flags)
				problem, log := p.run(w, flags)
				if (code == 0) != (problem == "") || problem != "" && problem != exits {
					t.Errorf("check has exit code %d, run has the problem %q, want them to agree\n%s\n%s", code, problem, checked, log)
				}
				if attach != "auto" || buffer != "ring" {
					return
				}
				// Without settings, check reports whether the defaults work.
				if _, err := run(t, "check"); (err == nil) != (problem == "") {
					t.Errorf("check without settings: got error %v, want it to agree with run, which has the problem %q", err, problem)
				}
			})
		}
	}
}
