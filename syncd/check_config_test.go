package main

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mapsync/internal/testcert"
	"mapsync/syncd/daemon"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// workplace is a directory with all that the settings of a node name.
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
		w.Fatalf("%v in %q", jsonErr, out)
	}
	return r, err
}

func TestCheckFindsWhatIsWrongWithSettings(t *testing.T) {
	w := newWorkplace(t)
	if r, err := w.check(); err != nil || !r.Usable || len(r.Findings) != 0 {
		t.Fatalf("good settings: %+v, %v", r, err)
	}
	now := time.Now()
	for name, c := range map[string]struct {
		flags    []string
		prepare  func(w *workplace)
		severity daemon.Severity
		want     string
	}{
		"a value":            {flags: []string{"--attach=magic"}, severity: "error", want: "attach \"magic\" is unknown"},
		"an unknown setting": {prepare: func(w *workplace) { w.write("syncd.yaml", "mop: [a]\n") }, severity: "error", want: "mop"},
		"no file":            {flags: []string{"--config=/none"}, severity: "error", want: "no such file"},
		"certificate's name": {flags: []string{"--node-name=lb9"}, severity: "error", want: "this node's name is lb9"},
		"no certificate":     {flags: []string{"--tls-cert=/none"}, severity: "error", want: "no such file"},
		"soon expired": {prepare: func(w *workplace) {
			if _, err := w.ca.Issue("lb1", testcert.Options{NotBefore: now.Add(-3 * time.Hour), NotAfter: now.Add(time.Hour)}); err != nil {
				t.Fatal(err)
			}
		}, severity: "warning", want: "the certificate expires soon"},
		"expired": {prepare: func(w *workplace) {
			if _, err := w.ca.Issue("lb1", testcert.Options{NotBefore: now.Add(-2 * time.Hour), NotAfter: now.Add(-time.Hour)}); err != nil {
				t.Fatal(err)
			}
		}, severity: "error", want: "expired"},
		"a short key":     {prepare: func(w *workplace) { w.write("gossip.key", "c2hvcnQ=\n") }, severity: "error", want: "5 bytes"},
		"a key in clear":  {prepare: func(w *workplace) { w.write("gossip.key", "???\n") }, severity: "error", want: "line 1"},
		"no map":          {flags: []string{"--map=ct=/sys/fs/bpf/none"}, severity: "warning", want: "no such kernel map yet"},
		"two names":       {flags: []string{"--map=a=x", "--map=b=x"}, severity: "error", want: "same kernel map"},
		"an unfit map":    {prepare: func(w *workplace) { w.newMap(w.pin+"2", 8192) }, flags: []string{"--map=PIN2"}, severity: "error", want: "8192 bytes"},
		"a link":          {prepare: func(w *workplace) { w.link(w.pin, w.pin+"l") }, flags: []string{"--map=PINl"}, severity: "error", want: "symbolic link"},
		"a field":         {flags: []string{"--field=other:x=ktime"}, severity: "error", want: "no map of that name"},
		"a schema":        {flags: []string{"--schema=ct=/none.o"}, severity: "error", want: "/none.o"},
		"exposure":        {flags: []string{"--gossip-key-file=", "--gossip-listen=10.1.2.3:7946"}, severity: "error", want: "without encryption"},
		"another's":       {flags: []string{"--gossip-listen=192.0.2.77:7946"}, severity: "warning", want: "no interface of this host"},
		"a wildcard":      {flags: []string{"--grpc-listen=0.0.0.0:7947"}, severity: "error", want: "wildcard"},
		"dead time":       {flags: []string{"--dead-time=10ms"}, severity: "error", want: "dead time"},
		"no port":         {flags: []string{"--join=lb2"}, severity: "error", want: "join"},
		"no such peer":    {flags: []string{"--join=lb2.invalid:7946"}, severity: "warning", want: "cannot be resolved"},
		"no socket":       {prepare: func(w *workplace) { w.write("syncd.sock", "") }, severity: "error", want: "is not a socket"},
		"a pin owner":     {flags: []string{"--pin-owner=no such user"}, severity: "error", want: "pin-owner"},
		"a readable key":  {prepare: func(w *workplace) { w.chmod("gossip.key", 0o644) }, severity: "warning", want: "can be read by others"},
		"state directory": {prepare: func(w *workplace) { w.write("file", "") }, flags: []string{"--state-dir=FILE"}, severity: "warning", want: "not a directory"},
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
			for i, f := range c.flags { // the pin of this workplace, not of the first
				c.flags[i] = strings.ReplaceAll(f, "PIN", w.pin)
			}
			r, err := w.check(c.flags...)
			found := false
			for _, f := range r.Findings {
				found = found || f.Severity == c.severity && strings.Contains(f.Problem, c.want)
			}
			if !found {
				t.Errorf("no %s with %q in %+v", c.severity, c.want, r.Findings)
			}
			var usage usageError
			if r.Usable != (c.severity == "warning") || r.Usable != (err == nil) || (err != nil && (!errors.As(err, &usage) || !errors.Is(err, errReported))) {
				t.Errorf("usable %t, error %v", r.Usable, err)
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

// SIGHUP and `syncd reload` do the same, and the command's exit code gives the kind of failure.
func TestReloadBySignalAndByCommand(t *testing.T) {
	w := newWorkplace(t)
	socket := w.path("syncd.sock")
	ended := make(chan error, 1)
	go func() {
		_, err := run(t, "run", "--config", w.path("syncd.yaml"), "--log-level=error")
		ended <- err
	}()
	t.Cleanup(func() {
		if err := <-ended; err != nil {
			t.Errorf("the daemon failed: %v", err)
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
		for end := time.Now().Add(20 * time.Second); maps() != count; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: %d maps", what, maps())
			}
		}
	}
	wait("start", 1)
	settings, err := os.ReadFile(w.path("syncd.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	with := func(more string) string {
		return strings.Replace(string(settings), "map: [", "map: ["+more+", ", 1)
	}
	w.write("syncd.yaml", with("a=/sys/fs/bpf/none_a"))
	if err := unix.Kill(os.Getpid(), unix.SIGHUP); err != nil {
		t.Fatal(err)
	}
	wait("SIGHUP", 2)
	w.write("syncd.yaml", with("a=/sys/fs/bpf/none_a, b=/sys/fs/bpf/none_b")+"scan-budget: 7\n")
	out, err := run(t, "reload", "--control-socket", socket)
	if err != nil || !strings.Contains(out, "maps added: b") || !strings.Contains(out, "scan-budget") {
		t.Errorf("%q, %v", out, err)
	}
	wait("reload", 3)
	w.write("syncd.yaml", "map: [\n")
	var usage usageError
	if _, err := run(t, "reload", "--control-socket", socket); !errors.As(err, &usage) || !strings.Contains(err.Error(), "parse YAML") {
		t.Errorf("a broken file: %v", err)
	}
	wait("a broken file", 3)
	if err := unix.Kill(os.Getpid(), unix.SIGHUP); err != nil {
		t.Fatal(err)
	}
	wait("a broken file by signal", 3)
	if _, err := run(t, "reload", "--control-socket", w.path("none")); !errors.Is(err, daemon.ErrNotRunning) || errors.As(err, &usage) {
		t.Errorf("without a daemon: %v", err)
	}
}
