package main

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"mapsync/internal/handbook"
	"mapsync/syncd/config"

	"github.com/goccy/go-yaml"
)

func readDeployed(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("../deploy", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// deployed checks that a command line in a deployed file is valid. Its first word is the program.
func deployed(t *testing.T, file string, words []string) {
	t.Helper()
	if len(words) == 0 || filepath.Base(words[0]) != "syncd" {
		t.Errorf("%s: command %q: want the program syncd", file, words)
	} else if err := resolve(words[1:]); err != nil {
		t.Errorf("%s: command %q: got error %v, want none", file, words, err)
	}
}

// timeout returns the value of --timeout in a command line.
func timeout(t *testing.T, words []string) time.Duration {
	t.Helper()
	i := slices.Index(words, "--timeout")
	if i < 0 || i+1 == len(words) {
		t.Fatalf("command %q: want --timeout", words)
	}
	d, err := time.ParseDuration(words[i+1])
	if err != nil {
		t.Fatal(err)
	}
	return d
}

var unitSetting = regexp.MustCompile(`(?m)^#?(\w+)=(.*)$`)

func TestUnitRunsRealCommands(t *testing.T) {
	values := make(map[string]string)
	for _, m := range unitSetting.FindAllStringSubmatch(readDeployed(t, "syncd.service"), -1) {
		values[m[1]] = m[2]
	}
	for _, name := range []string{"ExecStart", "ExecStartPost"} {
		deployed(t, "syncd.service", strings.Fields(values[name]))
	}
	wait := timeout(t, strings.Fields(values["ExecStartPost"]))
	if limit, err := strconv.Atoi(values["TimeoutStartSec"]); err != nil || time.Duration(limit)*time.Second <= wait {
		t.Errorf("TimeoutStartSec: got %s s, want more than the %s of ExecStartPost", values["TimeoutStartSec"], wait)
	}
	if values["LimitCORE"] != "0" {
		t.Errorf("LimitCORE: got %q, want 0: a core dump contains keys", values["LimitCORE"])
	}
	for _, needed := range []string{filepath.Dir(config.DefaultControlSocket), config.Default().StateDir} {
		if needed != "/run/"+values["RuntimeDirectory"] {
			t.Errorf("RuntimeDirectory: want %s", needed)
		}
	}
}

var (
	vrrpScript = regexp.MustCompile(`script "([^"]*)"`)
	imageWords = regexp.MustCompile(`(?m)^(ENTRYPOINT|CMD) (\[.*\])$`)
)

func TestKeepalivedAndImageRunRealCommands(t *testing.T) {
	script := vrrpScript.FindStringSubmatch(readDeployed(t, "keepalived.conf"))
	if script == nil {
		t.Fatal("keepalived.conf: got no script, want one")
	}
	deployed(t, "keepalived.conf", strings.Fields(script[1]))
	if timeout(t, strings.Fields(script[1])) != 0 {
		t.Error("keepalived.conf: got a script with a timeout, want --timeout 0s")
	}
	var words []string
	for _, m := range imageWords.FindAllStringSubmatch(readDeployed(t, "Dockerfile"), -1) {
		var some []string
		if err := json.Unmarshal([]byte(m[2]), &some); err != nil {
			t.Fatal(err)
		}
		words = append(words, some...)
	}
	deployed(t, "Dockerfile", words)
}

// podSpec is the part of a pod's specification that concerns the program.
type podSpec struct {
	Containers []struct {
		Args           []string
		Env            []variable
		ReadinessProbe probe `yaml:"readinessProbe"`
		LivenessProbe  probe `yaml:"livenessProbe"`
		Lifecycle      struct {
			PreStop struct{ Exec struct{ Command []string } } `yaml:"preStop"`
		}
		VolumeMounts []mount `yaml:"volumeMounts"`
	}
	Grace   int `yaml:"terminationGracePeriodSeconds"`
	Volumes []struct {
		Projected struct{ Sources []map[string]map[string]any }
	}
}

type variable struct{ Name string }

type mount struct {
	MountPath string `yaml:"mountPath"`
}

type probe struct {
	HTTPGet struct {
		Host, Path string
		Port       int
	} `yaml:"httpGet"`
}

var podVariable = regexp.MustCompile(`\$\((\w+)\)`)

func TestDaemonSetRunsRealCommands(t *testing.T) {
	var set struct {
		Spec struct{ Template struct{ Spec podSpec } }
	}
	if err := yaml.NewDecoder(bytes.NewReader([]byte(readDeployed(t, "daemonset.yaml")))).Decode(&set); err != nil {
		t.Fatal(err)
	}
	spec := set.Spec.Template.Spec
	if len(spec.Containers) != 1 {
		t.Fatalf("daemonset.yaml: got %d containers, want 1", len(spec.Containers))
	}
	c := spec.Containers[0]
	deployed(t, "daemonset.yaml", append([]string{"syncd"}, c.Args...))
	for _, m := range podVariable.FindAllStringSubmatch(strings.Join(c.Args, " "), -1) {
		if !slices.Contains(c.Env, variable{m[1]}) {
			t.Errorf("daemonset.yaml: want the environment variable %s", m[1])
		}
	}
	stop := c.Lifecycle.PreStop.Exec.Command
	deployed(t, "daemonset.yaml", stop)
	if timeout(t, stop) >= time.Duration(spec.Grace)*time.Second {
		t.Errorf("terminationGracePeriodSeconds: got %d, want more than the timeout of %q", spec.Grace, stop)
	}
	served := literals(t, "daemon/admin.go")
	for _, p := range []probe{c.ReadinessProbe, c.LivenessProbe} {
		if at := net.JoinHostPort(p.HTTPGet.Host, strconv.Itoa(p.HTTPGet.Port)); at != config.Default().MetricsListen {
			t.Errorf("probe address: got %s, want %s", at, config.Default().MetricsListen)
		}
		if !slices.Contains(served, "GET "+p.HTTPGet.Path) {
			t.Errorf("probe path: got %s, want a path that the daemon serves", p.HTTPGet.Path)
		}
	}
	for _, needed := range []string{filepath.Dir(config.DefaultControlSocket), config.Default().StateDir, "/etc/mapsync", "/sys/fs/bpf"} {
		if !slices.Contains(c.VolumeMounts, mount{needed}) {
			t.Errorf("volume mounts: want %s", needed)
		}
	}
	for _, v := range spec.Volumes {
		for _, source := range v.Projected.Sources {
			for kind, fields := range source {
				if _, ok := fields["defaultMode"]; ok {
					t.Errorf("defaultMode in a projected %s: want it in the volume (Kubernetes refuses it elsewhere)", kind)
				}
			}
		}
	}
}

// The settings in the README are valid.
func TestReadmeSettingsAreValid(t *testing.T) {
	page, err := handbook.Read("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	code := page.Find("use").Code
	begin := slices.IndexFunc(code, func(line string) bool { return strings.HasPrefix(line, "map: ") })
	if begin < 0 {
		t.Fatal("README: got no settings, want some")
	}
	c := config.Default()
	if err := c.Parse([]byte(strings.Join(code[begin:], "\n"))); err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil || !c.TLS() || len(c.Join) == 0 {
		t.Errorf("validate the README's settings %+v: got error %v, want TLS, join and no error", c, err)
	}
}
