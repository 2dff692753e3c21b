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

// kubecheckProgram builds the parser, which is a module of its own, once.
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

var built atomic.Bool // there is something to remove

func TestMain(m *testing.M) {
	code := m.Run()
	if built.Load() {
		if dir, _ := kubecheckProgram(); dir != "" {
			_ = os.RemoveAll(dir)
		}
	}
	os.Exit(code)
}

// kubecheck parses a manifest strictly, and returns its objects as JSON, or what is wrong.
func kubecheck(t *testing.T, path string) (string, error) {
	t.Helper()
	dir, err := kubecheckProgram()
	if err != nil {
		t.Fatal(err)
	}
	out, errs, err := command(t, filepath.Join(dir, "kubecheck"), path)
	return out + errs, err
}

// daemonSet is what of the manifest is about confinement.
type daemonSet struct {
	Kind string
	Spec struct {
		Template struct {
			Spec struct {
				AutomountServiceAccountToken *bool
				HostPID, HostIPC             bool
				Containers                   []struct {
					Args      []string
					Resources struct {
						Requests, Limits map[string]string
					}
					SecurityContext struct {
						Privileged, AllowPrivilegeEscalation, ReadOnlyRootFilesystem *bool
						SeccompProfile                                               struct{ Type string }
						Capabilities                                                 struct{ Add, Drop []string }
					}
					VolumeMounts []struct {
						Name, MountPath string
						ReadOnly        bool
					}
				}
				Volumes []struct {
					Name     string
					Secret   *struct{}
					HostPath *struct{ Path string }
				}
			}
		}
	}
}

func TestDaemonSetIsConfined(t *testing.T) {
	out, err := kubecheck(t, "daemonset.yaml")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var set daemonSet
	if err := json.Unmarshal([]byte(out), &set); err != nil {
		t.Fatal(err)
	}
	pod := set.Spec.Template.Spec
	if set.Kind != "DaemonSet" || len(pod.Containers) != 1 || pod.HostPID || pod.HostIPC {
		t.Fatalf("%+v", set)
	}
	c := pod.Containers[0]
	s := c.SecurityContext
	is := func(b *bool, want bool) bool { return b != nil && *b == want }
	if !is(s.Privileged, false) || !is(s.AllowPrivilegeEscalation, false) || !is(s.ReadOnlyRootFilesystem, true) ||
		!is(pod.AutomountServiceAccountToken, false) || s.SeccompProfile.Type != "RuntimeDefault" {
		t.Errorf("%+v", s)
	}
	if !slices.Equal(s.Capabilities.Drop, []string{"ALL"}) || slices.Contains(s.Capabilities.Add, "SYS_ADMIN") {
		t.Errorf("capabilities %+v", s.Capabilities)
	}
	if c.Resources.Limits["memory"] == "" || c.Resources.Requests["memory"] == "" || c.Resources.Requests["cpu"] == "" {
		t.Errorf("resources %+v", c.Resources)
	}
	// No Secret that all nodes can read: each has its own on its host.
	for _, v := range pod.Volumes {
		if v.Secret != nil {
			t.Errorf("volume %s gives each node the secrets of all", v.Name)
		}
	}
	for _, m := range c.VolumeMounts {
		if wants := m.Name == "config" || m.Name == "tls"; m.ReadOnly != wants {
			t.Errorf("%s is mounted read-only: %t", m.MountPath, m.ReadOnly)
		}
	}
	for _, arg := range c.Args {
		if strings.Contains(arg, "$(ADDRESS)") && !strings.Contains(arg, "=[$(ADDRESS)]:") {
			t.Errorf("%s is not a valid address on an IPv6 host", arg)
		}
	}
}

// A misspelt field is an error.
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
		t.Errorf("%v\n%s", err, out)
	}
}

// keepalived accepts the configuration, and syncd alone never takes the address away.
func TestKeepalivedConfiguration(t *testing.T) {
	text, err := os.ReadFile("keepalived.conf")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"enable_script_security", "script_user mapsync", "\n    weight -60", "\n    fall 3"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q", strings.TrimSpace(want))
		}
	}
	needs(t, "keepalived")
	// With a script in the file keepalived 2.2 ends its test by a signal to itself, whatever it
	// found: what it says counts.
	verify := func(change ...string) string {
		change = append(change, "script_user mapsync", "script_user nobody", "/usr/local/bin/syncd", "/bin/true")
		path := filepath.Join(t.TempDir(), "keepalived.conf")
		if err := os.WriteFile(path, []byte(strings.NewReplacer(change...).Replace(string(text))), 0o600); err != nil {
			t.Fatal(err)
		}
		// In a network of its own, with the interface that the file names.
		out, errs, _ := command(t, "unshare", "--net", "sh", "-c",
			"ip link add eth0 type veth peer name eth1 && ip link set eth0 up && exec keepalived --config-test --use-file "+path)
		return out + errs
	}
	if said := verify(); said != "" {
		t.Error(said)
	}
	for change, want := range map[string]string{"weight -60": "weihgt", "virtual_router_id": "virtual_id"} {
		if said := verify(change, want); !strings.Contains(said, want) {
			t.Errorf("%s instead of %s is not noticed: %q", want, change, said)
		}
	}
}
