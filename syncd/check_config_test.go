package main

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/internal/testcert"
	"mapsync/syncd/daemon"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// growingSettings need 334 MB if their aliases are followed.
const growingSettings = `a: &a [x,x,x,x,x,x,x,x,x]
b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]
c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]
d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]
e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]
f: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]
g: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]
expected-peers: *g
`

// workplace is a directory with all files that the settings of a node refer to.
type workplace struct {
	*testing.T
	dir, pin string
	ca       *testcert.CA
	pair     testcert.Pair
}

func newWorkplace(t *testing.T) *workplace {
	t.Helper()
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	w := &workplace{T: t, dir: t.TempDir()}
	bpffs := filepath.Join(w.dir, "bpf")
	if err := os.Mkdir(bpffs, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("bpf", bpffs, "bpf", 0, ""); err != nil {
		t.Fatalf("mount a BPF file system (needs root): %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(bpffs, unix.MNT_DETACH) })
	w.pin = filepath.Join(bpffs, "ct")
	w.newMap(w.pin, 8)
	var err error
	if w.ca, err = testcert.NewCA(w.dir, "ca"); err != nil {
		t.Fatal(err)
	}
	if w.pair, err = w.ca.Issue("lb1", testcert.Options{NotAfter: time.Now().Add(30 * 24 * time.Hour)}); err != nil {
		t.Fatal(err)
	}
	w.write("gossip.key", base64.StdEncoding.EncodeToString(make([]byte, 32))+"\n")
	w.write("syncd.yaml", fmt.Sprintf(`map: ['ct=%s']
node-name: lb1
attach: none
gossip-listen: 127.0.0.1:0
grpc-listen: 127.0.0.1:0
metrics-listen: ''
gossip-key-file: %s
tls-cert: %s
tls-key: %s
tls-ca: %s
control-socket: %s
state-dir: %s
`, w.pin, w.path("gossip.key"), w.pair.CertFile, w.pair.KeyFile, w.ca.CertFile, w.path("syncd.sock"), w.dir))
	return w
}

func (w *workplace) path(name string) string { return filepath.Join(w.dir, name) }

func (w *workplace) write(name, text string) {
	w.Helper()
	if err := os.WriteFile(w.path(name), []byte(text), 0o600); err != nil {
		w.Fatal(err)
	}
}

func (w *workplace) newMap(pin string, valueSize uint32) {
	w.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: valueSize, MaxEntries: 10})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = m.Close() })
	if err := m.Pin(pin); err != nil {
		w.Fatal(err)
	}
}

// check runs `syncd check` on the workplace's settings and flags.
func (w *workplace) check(flags ...string) (r settingsReport, err error) {
	w.Helper()
	out, err := run(w.T, append([]string{"check", "--json", "--config", w.path("syncd.yaml")}, flags...)...)
	if jsonErr := json.Unmarshal([]byte(out), &r); jsonErr != nil {
		w.Fatalf("decode the report of check: %v in %q", jsonErr, out)
	}
	return r, err
}

func TestCheckReportsInvalidSettings(t *testing.T) {
	w := newWorkplace(t)
	if r, err := w.check(); err != nil || !r.Usable || len(r.Findings) != 0 {
		t.Fatalf("check valid settings: got %+v, error %v, want usable without findings", r, err)
	}
	now := time.Now()
	for name, c := range map[string]struct {
		flags    []string
		prepare  func(w *workplace)
		severity daemon.Severity
		want     string
	}{
		"invalid value":           {flags: []string{"--attach=magic"}, severity: "error", want: "attach \"magic\" is unknown"},
		"unknown setting":         {prepare: func(w *workplace) { w.write("syncd.yaml", "mop: [a]\n") }, severity: "error", want: "mop"},
		"aliases":                 {prepare: func(w *workplace) { w.write("syncd.yaml", growingSettings) }, severity: "error", want: "line 1 has an anchor: remove it"},
		"scan CPUs out of order":  {flags: []string{"--scan-cpus=3-1"}, severity: "error", want: "is not a list like"},
		"no such scan CPU":        {flags: []string{"--scan-cpus=1023"}, severity: "error", want: "none of these CPUs"},
		"missing file":            {flags: []string{"--config=/none"}, severity: "error", want: "no such file"},
		"name not in certificate": {flags: []string{"--node-name=lb9"}, severity: "error", want: "this node's name is lb9"},
		"missing certificate":     {flags: []string{"--tls-cert=/none"}, severity: "error", want: "no such file"},
		"certificate expires soon": {prepare: func(w *workplace) {
			if _, err := w.ca.Issue("lb1", testcert.Options{NotBefore: now.Add(-3 * time.Hour), NotAfter: now.Add(time.Hour)}); err != nil {
				t.Fatal(err)
			}
		}, severity: "warning", want: "the certificate expires soon"},
		"certificate expired": {prepare: func(w *workplace) {
			if _, err := w.ca.Issue("lb1", testcert.Options{NotBefore: now.Add(-2 * time.Hour), NotAfter: now.Add(-time.Hour)}); err != nil {
				t.Fatal(err)
			}
		}, severity: "error", want: "expired"},
		"gossip key too short":          {prepare: func(w *workplace) { w.write("gossip.key", "c2hvcnQ=\n") }, severity: "error", want: "5 bytes"},
		"gossip key not base64":         {prepare: func(w *workplace) { w.write("gossip.key", "???\n") }, severity: "error", want: "line 1"},
		"missing map":                   {flags: []string{"--map=ct=PINnone"}, severity: "warning", want: "no such kernel map yet"},
		"two names for one map":         {flags: []string{"--map=a=x", "--map=b=x"}, severity: "error", want: "same kernel map"},
		"unsupported value size":        {prepare: func(w *workplace) { w.newMap(w.pin+"2", 40_000) }, flags: []string{"--map=PIN2"}, severity: "error", want: "40000 bytes"},
		"pin is a symbolic link":        {prepare: func(w *workplace) { w.link(w.pin, w.pin+"l") }, flags: []string{"--map=PINl"}, severity: "error", want: "symbolic link"},
		"field of an unknown map":       {flags: []string{"--field=other:x=ktime"}, severity: "error", want: "no map of that name"},
		"missing schema file":           {flags: []string{"--schema=ct=/none.o"}, severity: "error", want: "/none.o"},
		"exposed without encryption":    {flags: []string{"--gossip-key-file=", "--gossip-listen=10.1.2.3:7946"}, severity: "error", want: "without encryption"},
		"loopback without TLS":          {flags: []string{"--tls-cert=", "--tls-key=", "--tls-ca="}, severity: "error", want: "set tls-cert, tls-key and tls-ca (scripts/make-credentials creates them), or allow this with insecure: true"},
		"loopback without a gossip key": {flags: []string{"--gossip-key-file="}, severity: "error", want: "set gossip-key-file"},
		"address of another host":       {flags: []string{"--gossip-listen=192.0.2.77:7946"}, severity: "error", want: "no interface of this host"},
		"wildcard address":              {flags: []string{"--grpc-listen=0.0.0.0:7947"}, severity: "error", want: "wildcard"},
		"dead time too short":           {flags: []string{"--dead-time=10ms"}, severity: "error", want: "dead time"},
		"join without a port":           {flags: []string{"--join=lb2"}, severity: "error", want: "join"},
		"join cannot be resolved":       {flags: []string{"--join=lb2.invalid:7946"}, severity: "warning", want: "cannot be resolved"},
		"control socket is a file":      {prepare: func(w *workplace) { w.write("syncd.sock", "") }, severity: "error", want: "is not a socket"},
		"unknown pin owner":             {flags: []string{"--pin-owner=no such user"}, severity: "error", want: "pin-owner"},
		"gossip key readable by others": {prepare: func(w *workplace) { w.chmod("gossip.key", 0o644) }, severity: "warning", want: "can be read by others"},
		"state directory is a file":     {prepare: func(w *workplace) { w.write("file", "") }, flags: []string{"--state-dir=FILE"}, severity: "error", want: "not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorkplace(t)
			for i, f := range c.flags {
				f = strings.ReplaceAll(f, "FILE", w.path("file"))
				c.flags[i] = f
			}
			if c.prepare != nil {
				c.prepare(w)
			}
			for i, f := range c.flags { // the pin of this workplace, not that of the first one
				c.flags[i] = strings.ReplaceAll(f, "PIN", w.pin)
			}
			r, err := w.check(c.flags...)
			found := false
			for _, f := range r.Findings {
				found = found || f.Severity == c.severity && strings.Contains(f.Problem, c.want)
			}
			if !found {
				t.Errorf("findings: got %+v, want a finding of severity %s with %q", r.Findings, c.severity, c.want)
			}
			var usage usageError
			if r.Usable != (c.severity == "warning") || r.Usable != (err == nil) || (err != nil && (!errors.As(err, &usage) || !errors.Is(err, errReported))) {
				t.Errorf("result of check: got usable %t, error %v, want unusable and a reported usage error, or a warning only", r.Usable, err)
			}
		})
	}
}

func (w *workplace) link(from, to string) {
	w.Helper()
	if err := os.Symlink(from, to); err != nil {
		w.Fatal(err)
	}
}

func (w *workplace) chmod(name string, mode os.FileMode) {
	w.Helper()
	if err := os.Chmod(w.path(name), mode); err != nil {
		w.Fatal(err)
	}
}

// SIGHUP and `syncd reload` have the same effect. The exit code of the command indicates the kind
// of failure.
func TestReloadBySignalAndByCommand(t *testing.T) {
	// The last signal may arrive after the end of the daemon, and would then end the test.
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP)
	w := newWorkplace(t)
	socket := w.path("syncd.sock")
	original, err := os.ReadFile(w.path("syncd.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	w.write("syncd.yaml", string(original)+"log-level: error\n")
	ended := make(chan error, 1)
	go func() {
		out, err := run(t, "run", "--config", w.path("syncd.yaml"))
		if strings.Contains(out, "level=INFO") || !strings.Contains(out, "level=WARN msg=\"changed settings need a restart\"") {
			t.Errorf("log: want warnings after the reload with log-level warn, and no other lines than errors before it, in\n%s", out)
		}
		ended <- err
	}()
	t.Cleanup(func() {
		if err := <-ended; err != nil {
			t.Errorf("run: got error %v, want none", err)
		}
	})
	client := daemon.NewClient(socket)
	maps := func() int {
		s, err := client.Status(t.Context())
		if err != nil {
			return 0
		}
		return len(s.Maps)
	}
	wait := func(what string, count int) {
		t.Helper()
		poll.Eventually(t, fmt.Sprintf("%d maps after %s", count, what), func() bool { return maps() == count }, func() any { return maps() })
	}
	wait("start", 1)
	with := func(more string) string {
		return strings.Replace(string(original), "map: [", "map: ["+more+", ", 1)
	}
	w.write("syncd.yaml", with("a=/sys/fs/bpf/none_a")+"log-level: error\n")
	if err := unix.Kill(os.Getpid(), unix.SIGHUP); err != nil {
		t.Fatal(err)
	}
	wait("SIGHUP", 2)
	w.write("syncd.yaml", with("a=/sys/fs/bpf/none_a, b=/sys/fs/bpf/none_b")+"scan-budget: 7\nlog-level: warn\n")
	out, err := run(t, "reload", "--control-socket", socket)
	if err != nil || !strings.Contains(out, "maps added: b") || !strings.Contains(out, "scan-budget") {
		t.Errorf("reload: got output %q, error %v, want map b added and scan-budget listed", out, err)
	}
	wait("reload", 3)
	var usage usageError
	for text, want := range map[string]string{"map: [\n": "parse YAML", growingSettings: "line 1 has an anchor: remove it"} {
		w.write("syncd.yaml", text)
		if _, err := run(t, "reload", "--control-socket", socket); !errors.As(err, &usage) || !strings.Contains(err.Error(), want) {
			t.Errorf("reload of a broken file: got error %v, want a usage error with %q", err, want)
		}
		wait("a broken file", 3)
	}
	if err := unix.Kill(os.Getpid(), unix.SIGHUP); err != nil {
		t.Fatal(err)
	}
	wait("a broken file by signal", 3)
	if _, err := run(t, "reload", "--control-socket", w.path("none")); !errors.Is(err, daemon.ErrNotRunning) || errors.As(err, &usage) {
		t.Errorf("reload without a daemon: got error %v, want ErrNotRunning", err)
	}
}
