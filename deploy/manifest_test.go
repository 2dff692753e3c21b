package deploy

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// kubecheckProgram builds the manifest parser once. The parser is a separate module.
var kubecheckProgram = sync.OnceValues(func() (string, error) {
	built.Store(true)
	dir, err := os.MkdirTemp("", "kubecheck")
	if err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-o", dir, ".")
	cmd.Dir = "../tools/kubecheck"
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return dir, fmt.Errorf("build kubecheck: %w: %s", err, out)
	}
	return dir, nil
})

var built atomic.Bool // kubecheckProgram has created files to remove

func TestMain(m *testing.M) {
	code := m.Run()
	if built.Load() {
		if dir, _ := kubecheckProgram(); dir != "" {
			_ = os.RemoveAll(dir)
		}
	}
	os.Exit(code)
}

// kubecheck parses a manifest strictly. It returns the objects as JSON, or the parser's error.
func kubecheck(t *testing.T, path string) (string, error) {
	t.Helper()
	dir, err := kubecheckProgram()
	if err != nil {
		t.Fatal(err)
	}
	out, errs, err := command(t, filepath.Join(dir, "kubecheck"), path)
	return out + errs, err
}

// podContainer holds the security settings of a container.
type podContainer struct {
	Args      []string
	Resources struct {
		Requests, Limits map[string]string
	}
	SecurityContext struct {
		RunAsUser                                                    *int
		Privileged, AllowPrivilegeEscalation, ReadOnlyRootFilesystem *bool
		SeccompProfile                                               struct{ Type string }
		Capabilities                                                 struct{ Add, Drop []string }
	}
	VolumeMounts []struct {
		Name, MountPath, MountPropagation string
		ReadOnly                          bool
	}
}

// daemonSet holds the security settings of the manifest.
type daemonSet struct {
	Kind string
	Spec struct {
		Template struct {
			Spec struct {
				AutomountServiceAccountToken *bool
				HostPID, HostIPC             bool
				HostNetwork                  bool
				Containers                   []podContainer
				Volumes                      []struct {
					Name     string
					Secret   *struct{}
					HostPath *struct{ Path string }
				}
			}
		}
	}
}

// readDaemonSet parses the manifest.
func readDaemonSet(t *testing.T) *daemonSet {
	t.Helper()
	out, err := kubecheck(t, "daemonset.yaml")
	if err != nil {
		t.Fatalf("kubecheck: got error %v, want nil\n%s", err, out)
	}
	var set daemonSet
	if err := json.Unmarshal([]byte(out), &set); err != nil {
		t.Fatal(err)
	}
	return &set
}

func TestDaemonSetIsConfined(t *testing.T) {
	set := readDaemonSet(t)
	pod := set.Spec.Template.Spec
	if set.Kind != "DaemonSet" || len(pod.Containers) != 1 || pod.HostPID || pod.HostIPC {
		t.Fatalf("DaemonSet: got %+v, want kind DaemonSet with one container, without the PID and IPC namespaces of the host", set)
	}
	c := pod.Containers[0]
	s := c.SecurityContext
	is := func(b *bool, want bool) bool { return b != nil && *b == want }
	if !is(s.Privileged, false) || !is(s.AllowPrivilegeEscalation, false) || !is(s.ReadOnlyRootFilesystem, true) ||
		!is(pod.AutomountServiceAccountToken, false) || s.SeccompProfile.Type != "RuntimeDefault" {
		t.Errorf("security context: got %+v, want no privileges, no privilege escalation, a read-only root file system, "+
			"no service account token and the seccomp profile RuntimeDefault", s)
	}
	added := []string{"BPF", "PERFMON", "SYSLOG", "SYS_RESOURCE", "DAC_OVERRIDE", "SYS_ADMIN"} // TestDaemonSetReplicatesTypes uses them
	if !slices.Equal(s.Capabilities.Drop, []string{"ALL"}) || !slices.Equal(s.Capabilities.Add, added) {
		t.Errorf("capabilities: got %+v, want ALL dropped, and %q added", s.Capabilities, added)
	}
	if c.Resources.Limits["memory"] == "" || c.Resources.Requests["memory"] == "" || c.Resources.Requests["cpu"] == "" {
		t.Errorf("resources: got %+v, want a memory limit, a memory request and a CPU request", c.Resources)
	}
	// The manifest must not use a Secret that all nodes can read: each host has its own secrets.
	for _, v := range pod.Volumes {
		if v.Secret != nil {
			t.Errorf("volume %s: got a volume that exposes all secrets to each node, want none", v.Name)
		}
	}
	for _, m := range c.VolumeMounts {
		if wants := m.Name == "config" || m.Name == "tls"; m.ReadOnly != wants {
			t.Errorf("mount %s: read-only: got %t, want %t", m.MountPath, m.ReadOnly, wants)
		}
	}
	for _, arg := range c.Args {
		if strings.Contains(arg, "$(ADDRESS)") && !strings.Contains(arg, "=[$(ADDRESS)]:") {
			t.Errorf("argument %s: want a valid address on an IPv6 host", arg)
		}
	}
}

// TestManifestsAreParsedStrictly verifies that a misspelt field is an error.
func TestManifestsAreParsedStrictly(t *testing.T) {
	text, err := os.ReadFile("daemonset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "daemonset.yaml")
	wrong := strings.Replace(string(text), "readOnlyRootFilesystem", "readonlyRootFilesystem", 1)
	if err := os.WriteFile(path, []byte(wrong), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := kubecheck(t, path); err == nil || !strings.Contains(out, "readonlyRootFilesystem") {
		t.Errorf("misspelt field: got error %v, want one with readonlyRootFilesystem in the output:\n%s", err, out)
	}
}

// TestKeepalivedConfiguration verifies that keepalived accepts the configuration, and that syncd alone
// never removes the address.
func TestKeepalivedConfiguration(t *testing.T) {
	text, err := os.ReadFile("keepalived.conf")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"enable_script_security", "script_user mapsync", "\n    weight -60", "\n    fall 3"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("keepalived.conf: want %q in it", strings.TrimSpace(want))
		}
	}
	needs(t, "keepalived")
	// If the file contains a script, keepalived 2.2 always ends its test with a signal to itself.
	// Therefore the test checks its output.
	verify := func(change ...string) string {
		change = append(change, "script_user mapsync", "script_user nobody", "/usr/local/bin/syncd", "/bin/true")
		path := filepath.Join(t.TempDir(), "keepalived.conf")
		if err := os.WriteFile(path, []byte(strings.NewReplacer(change...).Replace(string(text))), 0o600); err != nil {
			t.Fatal(err)
		}
		// In a separate network namespace, with the interface of the file.
		out, errs, _ := command(t, "unshare", "--net", "sh", "-c",
			"ip link add eth0 type veth peer name eth1 && ip link set eth0 up && exec keepalived --config-test --use-file "+path)
		return out + errs
	}
	if said := verify(); said != "" {
		t.Errorf("output of keepalived: got %q, want none", said)
	}
	for change, want := range map[string]string{"weight -60": "weihgt", "virtual_router_id": "virtual_id"} {
		if said := verify(change, want); !strings.Contains(said, want) {
			t.Errorf("%s instead of %s: want an error, got %q", want, change, said)
		}
	}
}
