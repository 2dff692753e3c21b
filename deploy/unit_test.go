package deploy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// needs skips a test if its tool is not installed. scripts/install-deps test installs the tools.
func needs(t *testing.T, tool string) {
	t.Helper()
	if _, err := exec.LookPath(tool); err != nil {
		t.Skipf("%s is not installed: scripts/install-deps test", tool)
	}
}

func command(t *testing.T, name string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// unitIn copies the unit into a directory, with replacements.
func unitIn(t *testing.T, dir string, change ...string) string {
	t.Helper()
	text, err := os.ReadFile("syncd.service")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "syncd.service")
	if err := os.WriteFile(path, []byte(strings.NewReplacer(change...).Replace(string(text))), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// maxExposure is the maximum exposure level of the unit, as systemd-analyze computes it. CAP_SYS_ADMIN is 0.3 of it.
const maxExposure = 2.3

var exposure = regexp.MustCompile(`Overall exposure level for \S+: (\d+\.\d+)`)

func TestUnitIsConfined(t *testing.T) {
	needs(t, "systemd-analyze")
	level := func(change ...string) float64 {
		out, errs, err := command(t, "systemd-analyze", "security", "--offline=true", "--no-pager", unitIn(t, t.TempDir(), change...))
		m := exposure.FindStringSubmatch(out)
		if err != nil || m == nil {
			t.Fatalf("systemd-analyze security: got error %v, want nil and an exposure level in the output:\n%s%s", err, out, errs)
		}
		n, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := level(); n > maxExposure {
		t.Errorf("exposure: got %.1f, want at most %.1f", n, maxExposure)
	}
	if n := level("User=mapsync", "User=root"); n <= maxExposure {
		t.Errorf("exposure as root: got %.1f, want more than %.1f", n, maxExposure)
	}
}

// TestUnitIsValid verifies the unit. systemd-analyze reports a misspelt key on standard error and
// returns 0.
func TestUnitIsValid(t *testing.T) {
	needs(t, "systemd-analyze")
	verify := func(change ...string) string {
		path := unitIn(t, t.TempDir(), append(change, "/usr/local/bin/syncd", "/bin/true")...)
		out, errs, err := command(t, "systemd-analyze", "verify", "--man=no", path)
		if err != nil {
			errs += err.Error()
		}
		return out + errs
	}
	if said := verify(); said != "" {
		t.Errorf("output of systemd-analyze: got %q, want none", said)
	}
	if said := verify("WatchdogSec", "WatchdogSecs"); !strings.Contains(said, "WatchdogSecs") {
		t.Errorf("misspelt key: want an error, got %q", said)
	}
}

// container is a root directory from which systemd boots, with the unit in it.
type container struct {
	root, extra, bpffs string
	program            string // see project
	writable           bool   // changes of /usr go into extra
}

func newContainer(t *testing.T) *container {
	t.Helper()
	c := &container{root: t.TempDir(), extra: t.TempDir(), bpffs: t.TempDir()}
	for _, dir := range []string{
		"usr", "run", "tmp", "proc", "sys", "dev", "var", "root", "etc/mapsync", "etc/systemd/system/multi-user.target.wants",
	} {
		if err := os.MkdirAll(filepath.Join(c.root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+dir, filepath.Join(c.root, dir)); err != nil {
			t.Fatal(err)
		}
	}
	c.file(t, c.root, "etc/os-release", "ID=test\n")
	c.file(t, c.root, "etc/machine-id", "")
	users, err := os.ReadFile("sysusers.conf")
	if err != nil {
		t.Fatal(err)
	}
	c.file(t, c.extra, "lib/sysusers.d/mapsync.conf", string(users))
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(c.extra, "local/bin/syncd"), "../syncd")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build syncd: got error %v, want nil\n%s", err, out)
	}
	if err := unix.Mount("bpf", c.bpffs, "bpf", 0, ""); err != nil {
		t.Fatalf("mount a BPF file system (needs root): %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(c.bpffs, unix.MNT_DETACH) })
	return c
}

func (c *container) file(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// probe is a unit that runs after the tested unit and then stops the container.
const probe = `[Unit]
After=syncd.service
[Service]
Type=oneshot
StandardOutput=file:/var/probe
StandardError=file:/var/probe.errors
ExecStart=/bin/sh /etc/probe.sh
ExecStopPost=/bin/systemctl --no-block poweroff
`

// probeScript prints facts as lines "name value", followed by the status of syncd.
const probeScript = `pid=$(systemctl show -P MainPID syncd)
echo active $(systemctl show -P ActiveState syncd)
echo user $(ps -o user= -p $pid)
echo capabilities $(grep CapEff /proc/$pid/status | cut -f2)
echo filter $(grep Seccomp: /proc/$pid/status | cut -f2)
echo core $(grep 'Max core file size' /proc/$pid/limits | tr -s ' ' | cut -d' ' -f5)
echo address $(nsenter -t $pid -m head -1 /proc/kallsyms | cut -d' ' -f1)
for path in /sys/kernel/x /proc/sys/kernel/hostname /usr/x /etc/x /etc/mapsync/x; do
	nsenter -t $pid -m touch $path 2>/dev/null && echo writable $path
done
systemctl reload syncd
echo reload $?
for i in 1 2 3 4 5 6 7 8 9 10; do
	/usr/local/bin/syncd status --json | grep -q replicating && break
	sleep 1
done
echo text $(systemctl show -P StatusText syncd)
echo restarts $(systemctl show -P NRestarts syncd)
journalctl -u syncd -o cat >/var/probe.log
/usr/local/bin/syncd status --json >/var/probe.status
`

// TestUnitStartsInItsSandbox verifies that the unit starts with its sandbox. syncd runs as its own
// user with its own capabilities. It opens a pin of root, reads kernel addresses, notifies systemd,
// and cannot write elsewhere.
func TestUnitStartsInItsSandbox(t *testing.T) {
	needs(t, "systemd-nspawn")
	c := newContainer(t)
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "ct", Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 10})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.Pin(filepath.Join(c.bpffs, "ct")); err != nil { // mode 0600, owned by root
		t.Fatal(err)
	}
	c.file(t, c.root, "etc/mapsync/syncd.yaml", "map: [ct=/run/bpf/ct]\nattach: none\nnode-name: n1\n")
	c.file(t, c.root, "etc/systemd/system/probe.service", probe)
	c.file(t, c.root, "etc/probe.sh", probeScript)
	// systemd-nspawn has no /sys/fs/bpf.
	unitIn(t, filepath.Join(c.root, "etc/systemd/system"), "-/sys/fs/bpf ", "-/sys/fs/bpf -/run/bpf ")
	for _, unit := range []string{"probe.service", "syncd.service"} {
		if err := os.Symlink("../"+unit, filepath.Join(c.root, "etc/systemd/system/multi-user.target.wants", unit)); err != nil {
			t.Fatal(err)
		}
	}
	facts, log := c.boot(t)
	for name, want := range map[string]string{
		"active": "active", "user": "mapsync", "filter": "2", "core": "0", "reload": "0", "restarts": "0",
		"capabilities": fmt.Sprintf("%016x", 1<<unix.CAP_DAC_OVERRIDE|1<<unix.CAP_SYS_ADMIN|1<<unix.CAP_SYSLOG|1<<unix.CAP_PERFMON|1<<unix.CAP_BPF),
	} {
		if facts[name] != want {
			t.Errorf("%s: got %q, want %q", name, facts[name], want)
		}
	}
	if strings.Trim(facts["address"], "0") == "" {
		t.Error("kernel addresses: got hidden, want readable; hooks need them")
	}
	if facts["writable"] != "" {
		t.Errorf("writable paths: got %s, want none", facts["writable"])
	}
	if !strings.Contains(facts["text"], "ready") {
		t.Errorf("systemd status text: got %q, want it to contain \"ready\"", facts["text"])
	}
	var status struct {
		Maps []struct{ State, Error string }
	}
	data, err := os.ReadFile(filepath.Join(c.root, "var/probe.status"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &status); err != nil || len(status.Maps) != 1 || status.Maps[0].State != "replicating" {
		t.Errorf("status: got error %v, %+v, want nil and one map in state \"replicating\"", err, status)
	}
	if t.Failed() {
		t.Log(log)
	}
}

// boot runs the container until its probe stops it. It returns the facts and the log.
func (c *container) boot(t *testing.T) (facts map[string]string, log string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	usr := "--overlay-ro=/usr:" + c.extra + ":/usr"
	if c.writable {
		usr = "--overlay=/usr:" + c.extra + ":/usr"
	}
	cmd := exec.CommandContext(ctx, "systemd-nspawn", "--register=no", "--keep-unit", "--directory="+c.root, usr, "--bind="+c.bpffs+":/run/bpf", "--capability=all",
		"--system-call-filter=bpf perf_event_open", "--console=read-only", "--boot", "systemd.unit=multi-user.target")
	// Otherwise systemd-nspawn itself hides the files that the unit's own sandbox must hide.
	cmd.Env = append(os.Environ(), "SYSTEMD_NSPAWN_API_VFS_WRITABLE=1")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	var console bytes.Buffer
	cmd.Stdout, cmd.Stderr = &console, io.Discard
	err := cmd.Run()
	text, readErr := os.ReadFile(filepath.Join(c.root, "var/probe"))
	if readErr != nil {
		t.Fatalf("read probe of the container: got error %v, want nil; boot container: error %v\n%s", readErr, err, console.String())
	}
	facts = make(map[string]string)
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		facts[name] = value
	}
	journal, _ := os.ReadFile(filepath.Join(c.root, "var/probe.log"))
	errs, _ := os.ReadFile(filepath.Join(c.root, "var/probe.errors"))
	return facts, string(text) + string(journal) + string(errs)
}
