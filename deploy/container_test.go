package deploy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"mapsync/internal/poll"
	"mapsync/internal/testcert"
	"mapsync/syncd/config"
	"mapsync/syncd/daemon"
	"mapsync/syncd/problem"

	"golang.org/x/sys/unix"
)

// pods runs the container of the DaemonSet with containerd, as Kubernetes does, for several nodes on this host.
type pods struct {
	*testing.T
	container *podContainer
	set       *daemonSet
	root      string // the root directory of the image
	dir       string // a mount from which containers receive later mounts, as from the root of a host
	ca        *testcert.CA
}

// containerdSockets are those of a containerd for Kubernetes, and of one that Docker has started.
var containerdSockets = []string{"/run/containerd/containerd.sock", "/run/docker/containerd/containerd.sock"}

func newPods(t *testing.T) *pods {
	t.Helper()
	needs(t, "ctr")
	i := slices.IndexFunc(containerdSockets, func(path string) bool { _, err := os.Stat(path); return err == nil })
	if i < 0 {
		t.Fatalf("sockets of containerd: got none of %q, want one: start Docker", containerdSockets)
	}
	t.Setenv("CONTAINERD_ADDRESS", containerdSockets[i])
	t.Setenv("CONTAINERD_NAMESPACE", "mapsync-test")
	p := &pods{T: t, set: readDaemonSet(t), dir: t.TempDir(), root: t.TempDir()}
	p.container = &p.set.Spec.Template.Spec.Containers[0]
	if err := errors.Join(unix.Mount(p.dir, p.dir, "", unix.MS_BIND, ""), unix.Mount("", p.dir, "", unix.MS_SHARED, "")); err != nil {
		t.Fatalf("mount a shared directory (needs root): %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(p.dir, unix.MNT_DETACH) })
	p.omitSysResource()
	var err error
	if p.ca, err = testcert.NewCA(t.TempDir(), "ca"); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(p.root, entrypoint), "../syncd") // as the Dockerfile copies it
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build syncd: got error %v, want nil\n%s", err, out)
	}
	return p
}

// entrypoint is the program of the image.
const entrypoint = "/syncd"

// pod is one node. Its directory has the host's directories by their names in the manifest.
type pod struct {
	*pods
	name, address, dir string
}

// newPod creates the directories of a host. None of them is a BPF file system.
func (p *pods) newPod(number int) *pod {
	p.Helper()
	pid := os.Getpid()
	n := &pod{pods: p, name: fmt.Sprint("n", number), address: fmt.Sprintf("127.%d.%d.%d", 1+pid/250%250, pid%250, number)}
	n.dir = filepath.Join(p.dir, n.name)
	for _, dir := range []string{"config", "tls", "bpf", "run"} {
		if err := os.MkdirAll(filepath.Join(n.dir, dir), 0o755); err != nil {
			p.Fatal(err)
		}
	}
	tls := filepath.Join(n.dir, "tls")
	ca, err := p.ca.CopyTo(tls)
	if err != nil {
		p.Fatal(err)
	}
	pair, err := ca.Issue(n.name, testcert.Options{})
	for from, to := range map[string]string{ca.CertFile: "ca.crt", pair.CertFile: n.name + ".crt", pair.KeyFile: n.name + ".key"} {
		err = errors.Join(err, os.Rename(from, filepath.Join(tls, to)))
	}
	if err == nil { // all nodes have the same key
		err = os.WriteFile(filepath.Join(tls, "gossip.key"), []byte(strings.Repeat("QUFB", 10)+"QUE=\n"), 0o600)
	}
	settings := fmt.Sprintf("map: [ct=/sys/fs/bpf/ct]\nattach: none\nscan-interval: 1s\nmax-scan-interval: 1s\nmetrics-listen: \"\"\njoin: [%[1]s1:7946, %[1]s2:7946]\nfield: [\"ct:key.port=be\"]\n",
		strings.TrimSuffix(n.address, fmt.Sprint(number)))
	if err := errors.Join(err, os.WriteFile(filepath.Join(n.dir, "config/syncd.yaml"), []byte(settings), 0o600)); err != nil {
		p.Fatal(err)
	}
	return n
}

// mountBPF mounts the BPF file system of the host.
func (n *pod) mountBPF() (dir string) {
	n.Helper()
	dir = filepath.Join(n.dir, "bpf")
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		n.Fatalf("mount a BPF file system (needs root): %v", err)
	}
	n.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// defaultCapabilities are those that containerd grants to a container if nothing else is set.
var defaultCapabilities = []string{
	"CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID", "SETFCAP", "SETPCAP", "NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE",
}

// arguments returns the arguments of ctr that run the container of the manifest: its capabilities, mounts, seccomp profile and
// root file system. Like Kubernetes, ctr sets no_new_privs and user 0 for it.
func (n *pod) arguments(id string, more ...string) []string {
	n.Helper()
	s := &n.container.SecurityContext
	args := append([]string{"run", "--rm", "--rootfs", "--seccomp", "--rootfs-propagation", "rslave"}, more...)
	for _, c := range defaultCapabilities {
		if !slices.Contains(s.Capabilities.Add, c) {
			args = append(args, "--cap-drop", "CAP_"+c)
		}
	}
	for _, c := range s.Capabilities.Add {
		args = append(args, "--cap-add", "CAP_"+c)
	}
	if n.set.Spec.Template.Spec.HostNetwork {
		args = append(args, "--net-host")
	}
	if *s.ReadOnlyRootFilesystem {
		args = append(args, "--read-only")
	}
	for _, m := range n.container.VolumeMounts {
		source, options := filepath.Join(n.dir, m.Name), "rbind:rprivate"
		if m.Name == "tracing" { // of this host
			source = m.MountPath
		}
		if m.MountPropagation == "HostToContainer" {
			options = "rbind:rslave"
		}
		if m.ReadOnly {
			options += ":ro"
		}
		args = append(args, "--mount", fmt.Sprintf("type=bind,src=%s,dst=%s,options=%s", source, m.MountPath, options))
	}
	return append(args, n.root, id, entrypoint)
}

// words returns the arguments of syncd in the manifest, with another command.
func (n *pod) words(command string) []string {
	words := slices.Clone(n.container.Args)
	words[0] = command
	for i, word := range words {
		words[i] = strings.NewReplacer("$(NODE)", n.name, "$(ADDRESS)", n.address).Replace(word)
	}
	return words
}

// start runs the container until the end of the test.
func (n *pod) start() {
	n.Helper()
	id := fmt.Sprintf("%s-%d", n.name, os.Getpid())
	cmd := exec.Command("ctr", slices.Concat(n.arguments(id), n.words("run"))...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGTERM) // ctr sends it to syncd
		_ = cmd.Wait()
		_ = exec.Command("ctr", "task", "rm", "--force", id).Run()
		_ = exec.Command("ctr", "container", "rm", id).Run()
		if n.Failed() {
			n.Logf("log of %s:\n%s", n.name, log.String())
		}
	})
}

// check runs `syncd check` in such a container, and returns its exit code and output.
func (n *pod) check(more ...string) (code int, out string) {
	n.Helper()
	args := slices.Concat(n.arguments(fmt.Sprintf("check-%d", os.Getpid()), more...), n.words("check"))
	cmd := exec.CommandContext(n.Context(), "ctr", args...)
	text, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		n.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), strings.Join(strings.Fields(string(text)), " ")
}

// capabilityBits are the numbers of the capabilities in the manifest.
var capabilityBits = map[string]uint{
	"BPF": unix.CAP_BPF, "PERFMON": unix.CAP_PERFMON, "SYSLOG": unix.CAP_SYSLOG, "SYS_RESOURCE": unix.CAP_SYS_RESOURCE,
	"DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE, "SYS_ADMIN": unix.CAP_SYS_ADMIN,
}

// omitSysResource removes SYS_RESOURCE if this machine lacks it: only kernels before 5.11 need it.
func (p *pods) omitSysResource() {
	if has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, unix.CAP_SYS_RESOURCE, 0, 0, 0); err == nil && has == 0 {
		p.Log("this machine lacks CAP_SYS_RESOURCE, the containers run without it")
		add := &p.container.SecurityContext.Capabilities.Add
		*add = slices.DeleteFunc(*add, func(c string) bool { return c == "SYS_RESOURCE" })
	}
}

// capabilities returns the names of the effective capabilities of the container's process.
func (n *pod) capabilities() (names []string) {
	n.Helper()
	out, errs, err := command(n.T, "ctr", "task", "ls")
	var pid, effective string
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == fmt.Sprintf("%s-%d", n.name, os.Getpid()) {
			pid = f[1]
		}
	}
	text, readErr := os.ReadFile("/proc/" + pid + "/status")
	for line := range strings.Lines(string(text)) {
		if set, found := strings.CutPrefix(line, "CapEff:"); found {
			effective = strings.TrimSpace(set)
		}
	}
	set, parseErr := strconv.ParseUint(effective, 16, 64)
	if err := errors.Join(err, readErr, parseErr); err != nil {
		n.Fatalf("capabilities of %s: got error %v, want nil\n%s%s", n.name, err, out, errs)
	}
	for name, bit := range capabilityBits {
		if set&(1<<bit) != 0 {
			names = append(names, name)
			set &^= 1 << bit
		}
	}
	if set != 0 {
		names = append(names, fmt.Sprintf("others %x", set))
	}
	slices.Sort(names)
	return names
}

// status waits until the status of the node is as expected.
func (n *pod) status(what string, expected func(s *daemon.Status) bool) {
	n.Helper()
	client := daemon.NewClient(filepath.Join(n.dir, "run", filepath.Base(config.DefaultControlSocket)))
	var last any
	poll.Eventually(n.T, n.name+": "+what, func() bool {
		s, err := client.Status(n.Context())
		last = fmt.Sprintf("error %v, maps %+v, problems %+v", err, s.Maps, s.Problems)
		return err == nil && expected(&s)
	}, func() any { return last })
}

// TestDaemonSetReplicatesTypes: two containers with exactly the capabilities, mounts and read-only root of the manifest replicate
// an entry of a map with types. The host of the second one mounts its BPF file system after the start of the container.
func TestDaemonSetReplicatesTypes(t *testing.T) {
	p := newPods(t)
	n1, n2 := p.newPod(1), p.newPod(2)
	from := flowMap(t, filepath.Join(n1.mountBPF(), "ct"))
	n1.start()
	n2.start()
	n2.status("has the problem of the file system", func(s *daemon.Status) bool {
		return slices.ContainsFunc(s.Problems, func(p problem.Problem) bool {
			return p.ID == "bpf-file-system" && p.Severity == "critical" && strings.Contains(p.Remedy, "HostToContainer")
		})
	})
	to := flowMap(t, filepath.Join(n2.mountBPF(), "ct"))
	for _, n := range []*pod{n1, n2} {
		n.status("replicates the map", func(s *daemon.Status) bool {
			return len(s.Maps) == 1 && s.Maps[0].State == daemon.MapReplicating && len(s.Peers) == 1
		})
	}
	if got, want := n1.capabilities(), slices.Sorted(slices.Values(p.container.SecurityContext.Capabilities.Add)); !slices.Equal(got, want) {
		t.Errorf("capabilities: got %q, want %q", got, want)
	}
	key, value := binary.LittleEndian.AppendUint64(nil, 1), binary.LittleEndian.AppendUint64(nil, 7)
	if err := from.Put(key, value); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 8)
	poll.Eventually(t, "the other node has the entry", func() bool { return to.Lookup(key, got) == nil && string(got) == string(value) })
}

// deniesBPF is a seccomp profile.
const deniesBPF = `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["bpf"], "action": "SCMP_ACT_ERRNO"}]}`

// TestCheckInContainer: `syncd check` in the container of the manifest passes, and names what is missing in the same container
// without it.
func TestCheckInContainer(t *testing.T) {
	p := newPods(t)
	n := p.newPod(1)
	code, out := n.check()
	if code == 0 || !strings.Contains(out, "/sys/fs/bpf is not in a BPF file system") || !strings.Contains(out, "mountPropagation: HostToContainer") {
		t.Errorf("check without the BPF file system: got exit code %d, output %q, want a failure that names it and the remedy", code, out)
	}
	flowMap(t, filepath.Join(n.mountBPF(), "ct"))
	if code, out := n.check(); code != 0 {
		t.Errorf("check: got exit code %d, output %q, want 0", code, out)
	}
	profile := filepath.Join(t.TempDir(), "seccomp.json")
	if err := os.WriteFile(profile, []byte(deniesBPF), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out := n.check("--seccomp-profile", profile); code == 0 || !strings.Contains(out, "a seccomp filter denies bpf(2)") || strings.Contains(out, "locked memory") {
		t.Errorf("check with a profile that denies bpf: got exit code %d, output %q, want a failure that names it", code, out)
	}
	add := &n.container.SecurityContext.Capabilities.Add
	*add = slices.DeleteFunc(*add, func(c string) bool { return c == "SYS_ADMIN" })
	// The profile of an older containerd denies bpf(2) without SYS_ADMIN. Both are failures with their cause.
	if code, out := n.check(); code == 0 || !strings.Contains(out, "types cannot be read (give syncd CAP_SYS_ADMIN") && !strings.Contains(out, "a seccomp filter denies bpf(2)") {
		t.Errorf("check without SYS_ADMIN: got exit code %d, output %q, want a failure that names it", code, out)
	}
}
