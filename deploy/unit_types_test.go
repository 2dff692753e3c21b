package deploy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"mapsync/internal/handbook"
	"mapsync/internal/testcert"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// typesProbe installs the unit by the commands of the documentation, and waits for the test at each step: before and after a
// restart of syncd. Then it checks and starts wrong settings.
const typesProbe = `step() {
	for i in $(seq 60); do
		syncd status --json | grep -q '"state": "replicating"' && break
		sleep 1
	done
	touch /var/$1
	for i in $(seq 60); do
		[ -e /var/$1.done ] && break
		sleep 1
	done
}
installed() { "$@" || echo failed "$*"; }
cd /root/mapsync
INSTALL
step first
syncd dump ct --json >/var/entries 2>&1
systemctl restart syncd
echo restarted $?
step second
echo active $(systemctl show -P ActiveState syncd)
settings=/etc/mapsync/syncd.yaml
cp $settings /etc/good.yaml
# problem prints the problem of a syncd that starts, or that it does not start.
problem() {
	timeout 20 systemctl start syncd 2>/dev/null || { echo exit; return; }
	for i in $(seq 50); do
		status=$(syncd status --json)
		for id in map-refused bpf-file-system state-not-saved; do
			case $status in *'"id": "'$id'"'*) echo $id; return ;; esac
		done
		case $status in *'"state": "replicating"'*) echo none; return ;; esac
		sleep 0.1
	done
	echo unknown
}
# wrong changes the settings by a script of sed, and prints the results of check and of run.
wrong() {
	systemctl stop syncd
	sed "$2" /etc/good.yaml >$settings
	syncd check --config $settings --as-unit >/var/check-$1 2>&1
	echo check-$1 $?
	echo run-$1 $(problem)
	systemctl reset-failed syncd 2>/dev/null
}
wrong good ''
WRONG
cat >/etc/systemd/system/syncd.service.d/capabilities.conf <<END
[Service]
AmbientCapabilities=
AmbientCapabilities=CAP_BPF CAP_PERFMON CAP_SYSLOG CAP_DAC_OVERRIDE
END
systemctl daemon-reload
wrong capability ''
journalctl -u syncd -o cat >/var/probe.log
`

// wrongSettings are scripts of sed, with the problem of a syncd with these settings, and parts of the output of check.
var wrongSettings = map[string]struct {
	script, problem string
	texts           []string
}{
	"field":       {`s/key.port/key.prot/`, "map-refused", []string{"prot", "port"}},
	"authority":   {`s,tls-ca:.*,tls-ca: /etc/mapsync/other/ca.pem,`, "exit", []string{"tls-cert", "CA"}},
	"file-system": {`s,/run/bpf/ct,/run/mapsync/ct,`, "bpf-file-system", []string{"/run/mapsync is not in a BPF file system", "mount -t bpf"}},
	"port":        {`s/^grpc-listen:.*/grpc-listen: BLOCKED/`, "exit", []string{"grpc-listen", "address already in use", "ss -lntup"}},
	"state":       {`$ a state-dir: /usr/share`, "state-not-saved", []string{"state-dir", "/usr/share cannot be written"}},
}

// installCommands returns the commands of the documentation that install the unit, for typesProbe.
func installCommands(t *testing.T) string {
	t.Helper()
	page, err := handbook.Read("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, line := range page.Find("run-as-a-service").Code {
		lines = append(lines, "installed sh -c '"+strings.TrimSpace(line)+"'")
	}
	if len(lines) < 5 || !strings.Contains(lines[len(lines)-1], "systemctl enable --now syncd") {
		t.Fatalf("commands that install the unit: got %q, want at least 5 that end with systemctl enable", lines)
	}
	return strings.Join(lines, "\n")
}

// flowMap returns a pinned map with types: a key with a port in network byte order, and a value with two numbers.
func flowMap(t *testing.T, pin string) *ebpf.Map {
	t.Helper()
	u32 := &btf.Int{Name: "unsigned int", Size: 4}
	key := &btf.Struct{Name: "flow_key", Size: 8, Members: []btf.Member{{Name: "address", Type: u32}, {Name: "port", Type: u32, Offset: 32}}}
	value := &btf.Struct{Name: "flow", Size: 8, Members: []btf.Member{{Name: "backend", Type: u32}, {Name: "packets", Type: u32, Offset: 32}}}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "ct", Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 100, Key: key, Value: value})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	if err := m.Pin(pin); err != nil {
		t.Fatal(err)
	}
	return m
}

// typedNodes are the settings of a node in a container and of one outside.
type typedNodes struct {
	c         *container
	ca        *testcert.CA
	gossipKey []byte
}

// address returns the address of a node. These tests may run in several processes of this machine.
func (*typedNodes) address(n int) string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d", 1+pid/250%250, pid%250, n)
}

// settings returns those of a node, with its certificate in a directory that the node sees under another path.
func (d *typedNodes) settings(t *testing.T, n int, pin, dir, seen string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	ca, err := d.ca.CopyTo(dir)
	if err == nil {
		_, err = ca.Issue(fmt.Sprint("n", n), testcert.Options{})
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "gossip.key"), d.gossipKey, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("map: [ct=%s]\nattach: none\nscan-interval: 1s\nmax-scan-interval: 1s\nnode-name: n%d\ngossip-listen: %[3]s:7946\ngrpc-listen: %[3]s:7947\n"+
		"metrics-listen: \"\"\njoin: [%[4]s:7946, %[5]s:7946]\nfield: [\"ct:key.port=be\"]\ntls-ca: %[6]s/ca.pem\ntls-cert: %[6]s/n%[2]d.cert.pem\ntls-key: %[6]s/n%[2]d.key.pem\n"+
		"gossip-key-file: %[6]s/gossip.key\n",
		pin, n, d.address(n), d.address(1), d.address(2), seen)
}

// newTypedContainer returns a container with the files of the project, in which typesProbe runs.
func newTypedContainer(t *testing.T) *typedNodes {
	t.Helper()
	d := &typedNodes{c: newContainer(t)}
	var err error
	if d.ca, err = testcert.NewCA(t.TempDir(), "ca"); err != nil {
		t.Fatal(err)
	}
	key, err := testcert.WriteGossipKey(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if d.gossipKey, err = os.ReadFile(key); err != nil {
		t.Fatal(err)
	}
	c := d.c
	c.project(t)
	c.file(t, c.root, "etc/mapsync/syncd.yaml", d.settings(t, 1, "/run/bpf/ct", filepath.Join(c.root, "etc/mapsync"), "/etc/mapsync"))
	if err := os.Mkdir(filepath.Join(c.root, "etc/mapsync/other"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := testcert.NewCA(filepath.Join(c.root, "etc/mapsync/other"), "ca"); err != nil {
		t.Fatal(err)
	}
	blocked := d.address(3) + ":7947"
	c.file(t, c.root, "etc/systemd/system/blocker.socket", "[Socket]\nListenStream="+blocked+"\n")
	c.file(t, c.root, "etc/systemd/system/blocker.service", "[Service]\nExecStart=/bin/true\n")
	c.file(t, c.root, "etc/systemd/system/syncd.service.d/bpf.conf", "[Service]\nReadWritePaths=-/run/bpf\n") // systemd-nspawn has no /sys/fs/bpf
	c.file(t, c.root, "etc/systemd/system/probe.service", probe)
	var wrong strings.Builder
	for _, name := range slices.Sorted(maps.Keys(wrongSettings)) {
		fmt.Fprintf(&wrong, "wrong %s '%s'\n", name, strings.ReplaceAll(wrongSettings[name].script, "BLOCKED", blocked))
	}
	c.file(t, c.root, "etc/probe.sh", strings.NewReplacer("INSTALL", installCommands(t), "WRONG", "systemctl start blocker.socket\n"+wrong.String()).Replace(typesProbe))
	if err := os.Symlink("../probe.service", filepath.Join(c.root, "etc/systemd/system/multi-user.target.wants/probe.service")); err != nil {
		t.Fatal(err)
	}
	return d
}

// project gives the container the files that the documentation installs, in place of the installed ones, and a writable /usr.
func (c *container) project(t *testing.T) {
	t.Helper()
	dir := filepath.Join(c.root, "root/mapsync")
	err := errors.Join(os.MkdirAll(filepath.Join(dir, "bin"), 0o755), os.Mkdir(filepath.Join(dir, "deploy"), 0o755))
	for from, to := range map[string]string{
		filepath.Join(c.extra, "local/bin/syncd"): "bin/syncd", "syncd.service": "deploy/syncd.service", "sysusers.conf": "deploy/sysusers.conf",
	} {
		text, readErr := os.ReadFile(from)
		err = errors.Join(err, readErr, os.WriteFile(filepath.Join(dir, to), text, 0o755))
	}
	c.program = filepath.Join(dir, "bin/syncd")
	err = errors.Join(err, os.RemoveAll(filepath.Join(c.extra, "lib")), os.RemoveAll(filepath.Join(c.extra, "local")))
	if err != nil {
		t.Fatal(err)
	}
	c.writable = true
}

// startPeer runs the node outside the container until the end of the test, and returns its log.
func (d *typedNodes) startPeer(t *testing.T) *strings.Builder {
	t.Helper()
	c, dir := d.c, t.TempDir()
	c.file(t, dir, "syncd.yaml", d.settings(t, 2, filepath.Join(c.bpffs, "ct2"), dir, dir)+"control-socket: "+dir+"/sock\nstate-dir: "+dir+"\npin-dir: \"\"\n")
	peer := exec.Command(c.program, "run", "--config", filepath.Join(dir, "syncd.yaml"))
	log := &strings.Builder{}
	peer.Stdout, peer.Stderr = log, log
	if err := peer.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = peer.Process.Signal(syscall.SIGTERM), peer.Wait() })
	return log
}

// TestUnitReplicatesTypes: the unit, which the commands of the documentation install, reads the types of a map by their id, and
// replicates entries field by field to a node outside the container, also after a restart of syncd. `syncd check --as-unit` fails
// exactly for the settings and capabilities with which the unit fails, or has a problem.
func TestUnitReplicatesTypes(t *testing.T) {
	needs(t, "systemd-nspawn")
	d := newTypedContainer(t)
	c := d.c
	inside, outside := flowMap(t, filepath.Join(c.bpffs, "ct")), flowMap(t, filepath.Join(c.bpffs, "ct2"))
	log := d.startPeer(t)
	steps := make(chan error, 1)
	go func() {
		steps <- errors.Join(c.replicates("first", 1, inside, outside), c.replicates("second", 2, inside, outside))
	}()
	facts, text := c.boot(t)
	if err := <-steps; err != nil || facts["restarted"] != "0" || facts["active"] != "active" || facts["failed"] != "" {
		t.Errorf("entries of the unit at the peer: got error %v and facts %v, want none, no failed command, restarted 0 and active\n%s\npeer:\n%s", err, facts, text, log)
	}
	entries, err := os.ReadFile(filepath.Join(c.root, "var/entries"))
	for _, field := range []string{"address", "backend"} { // zeros are left out
		if err != nil || !strings.Contains(string(entries), field) {
			t.Errorf("entries: got %q and error %v, want the field %s", entries, err, field)
		}
	}
	c.predicts(t, facts, "good", "0", "none")
	c.predicts(t, facts, "capability", "2", "map-refused", "types cannot be read", "CAP_SYS_ADMIN")
	for name, w := range wrongSettings {
		c.predicts(t, facts, name, "2", w.problem, w.texts...)
	}
}

// predicts checks the exit code of `syncd check`, the problem of the unit, and the output of the former.
func (c *container) predicts(t *testing.T, facts map[string]string, name, code, problem string, texts ...string) {
	t.Helper()
	out, err := os.ReadFile(filepath.Join(c.root, "var/check-"+name))
	if facts["check-"+name] != code || facts["run-"+name] != problem {
		t.Errorf("%s: got exit code %s of check and the problem %q of run, want %s and %q\n%s", name, facts["check-"+name], facts["run-"+name], code, problem, out)
	}
	joined := strings.Join(strings.Fields(string(out)), " ")
	for _, text := range texts {
		if err != nil || !strings.Contains(joined, text) {
			t.Errorf("%s: got the output %q of check, error %v, want %q in it", name, joined, err, text)
		}
	}
}

// replicates waits for a step of the container, writes an entry into its map, waits until the other map has it, and ends the step.
func (c *container) replicates(step string, n uint64, inside, outside *ebpf.Map) error {
	const limit = 90 * time.Second
	deadline := time.Now().Add(limit)
	wait := func(what string, done func() bool) error {
		for !done() {
			if time.Now().After(deadline) {
				return fmt.Errorf("%s: %s: not within %s", step, what, limit)
			}
			time.Sleep(100 * time.Millisecond) // between two checks
		}
		return nil
	}
	path := filepath.Join(c.root, "var", step)
	if err := wait("syncd replicates", func() bool { _, err := os.Stat(path); return err == nil }); err != nil {
		return err
	}
	key, value := binary.LittleEndian.AppendUint64(nil, n), binary.LittleEndian.AppendUint64(nil, 7*n)
	if err := inside.Put(key, value); err != nil {
		return err
	}
	got := make([]byte, 8)
	if err := wait("the peer has the entry", func() bool { return outside.Lookup(key, got) == nil && string(got) == string(value) }); err != nil {
		return err
	}
	return os.WriteFile(path+".done", nil, 0o600)
}
