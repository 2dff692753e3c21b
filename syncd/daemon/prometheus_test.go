package daemon_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"mapsync/internal/poll"
)

// alertFile is the part of deploy/alerts.yaml that the tests need.
type alertFile struct {
	Groups []struct {
		Rules []struct{ Alert string }
	}
}

// prometheus is a server that scrapes the nodes of a test and evaluates the deployed alerts.
type prometheus struct {
	t       *testing.T
	address string
	names   []string // names of the alerts
}

// The tests shorten how long a condition must last.
var (
	noAnswer   = regexp.MustCompile(`(?s)(alert: MapsyncNoAnswer\n.*?\n\s+for:) 1s\n`)
	waitBefore = regexp.MustCompile(`(?m)^(\s+for:) \S+$`)
)

// startPrometheus starts Debian's Prometheus, which scrapes the nodes, with the deployed rules.
// A condition must last one second only. A node counts as silent after four seconds: on a busy machine a scrape may time out.
func startPrometheus(t *testing.T, targets ...string) *prometheus {
	t.Helper()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("prometheus is not installed: scripts/install-deps test")
	}
	text, err := os.ReadFile("../../deploy/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "promtool", "check", "rules", "../../deploy/alerts.yaml").CombinedOutput(); err != nil {
		t.Fatalf("check the rules: got error %v, want none\n%s", err, out)
	}
	dir := t.TempDir()
	p := &prometheus{t: t, address: loopback(200) + ":9090"}
	var file alertFile
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			p.names = append(p.names, r.Alert)
		}
	}
	short := waitBefore.ReplaceAll(text, []byte("$1 1s"))
	short = noAnswer.ReplaceAll(short, []byte("$1 4s\n"))
	writeFile(t, filepath.Join(dir, "alerts.yaml"), short)
	list, _ := json.Marshal(targets)
	writeFile(t, filepath.Join(dir, "prometheus.yaml"), fmt.Appendf(nil,
		"global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 250ms}\nrule_files: [alerts.yaml]\n"+
			"scrape_configs:\n- job_name: mapsync\n  static_configs: [{targets: %s}]\n", list))
	cmd := exec.CommandContext(t.Context(), program, "--config.file="+filepath.Join(dir, "prometheus.yaml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+p.address, "--log.level=error")
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	poll.Eventually(t, "Prometheus scrapes all nodes", func() bool { return p.up() == len(targets) })
	return p
}

// ask requests a path of Prometheus's API and decodes the response. It returns false if that
// fails.
func (p *prometheus) ask(path string, answer any) bool {
	response, err := http.Get("http://" + p.address + path)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	return err == nil && response.StatusCode == http.StatusOK && json.Unmarshal(data, answer) == nil
}

// up returns how many targets Prometheus can scrape.
func (p *prometheus) up() (n int) {
	var answer struct {
		Data struct{ ActiveTargets []struct{ Health string } }
	}
	p.ask("/api/v1/targets", &answer)
	for _, target := range answer.Data.ActiveTargets {
		if target.Health == "up" {
			n++
		}
	}
	return n
}

// alerts returns the alerts in one of the states, each with the labels of one instance. The name of an alert about problems
// is followed by the id of the problem.
func (p *prometheus) alerts(states ...string) map[string]string {
	p.t.Helper()
	var answer struct {
		Data struct {
			Alerts []struct {
				State  string
				Labels map[string]string
			}
		}
	}
	if !p.ask("/api/v1/alerts", &answer) {
		p.t.Fatal("alerts of Prometheus: got no response, want one")
	}
	found := make(map[string]string)
	for _, a := range answer.Data.Alerts {
		if slices.Contains(states, a.State) {
			found[strings.TrimSpace(a.Labels["alertname"]+" "+a.Labels["id"])] = fmt.Sprint(a.Labels)
		}
	}
	return found
}

// alertLimit is longer than poll.Limit, because alerts have a delay, and a problem from an event lasts for two minutes.
const alertLimit = 180 * time.Second

// waitNoAlerts waits until no alert is firing or pending for two seconds.
func (p *prometheus) waitNoAlerts(t *testing.T, when string) {
	t.Helper()
	calm := time.Now()
	poll.Within(t, alertLimit, "no alerts "+when, func() bool {
		if len(p.alerts("firing", "pending")) > 0 {
			calm = time.Now()
		}
		return time.Since(calm) > 2*time.Second
	}, func() any { return p.alerts("firing", "pending") })
}

// alertScenario is one fault, with the alerts that must fire and those that may fire.
type alertScenario struct {
	want, allowed []string
	begin, end    func()
}

// unrelated returns the alerts that may not fire during the scenario.
func (s *alertScenario) unrelated(seen map[string]string) map[string]string {
	seen = maps.Clone(seen)
	maps.DeleteFunc(seen, func(alert, _ string) bool {
		return slices.Contains(s.want, alert) || slices.Contains(s.allowed, alert)
	})
	return seen
}

// Prometheus scrapes three nodes with the deployed rules. Each alert fires during its fault, no
// unrelated alert fires, and no alert is active before and after.
func TestEachAlertFiresInItsScenario(t *testing.T) {
	c := newAlertCluster(t)
	p := startPrometheus(t, c.proxy.address, c.n2.config.MetricsListen, c.n3.config.MetricsListen)
	c.ready()
	p.waitNoAlerts(t, "at the start")
	scenarios := c.scenarios()
	covered := make(map[string]bool)
	for _, name := range slices.Sorted(maps.Keys(scenarios)) {
		s := scenarios[name]
		for _, alert := range s.want {
			alert, _, _ = strings.Cut(alert, " ")
			covered[alert] = true
		}
		t.Run(name, func(t *testing.T) {
			seen := make(map[string]string)
			s.begin()
			poll.Within(t, alertLimit, "the alerts fire", func() bool {
				firing := p.alerts("firing")
				maps.Copy(seen, firing)
				return !slices.ContainsFunc(s.want, func(alert string) bool { return firing[alert] == "" })
			}, func() any { return p.alerts("firing", "pending") })
			if len(s.want) == 0 { // this scenario must not alert
				poll.Stays(t, 4*time.Second, "no unrelated alert fires", func() bool {
					maps.Copy(seen, p.alerts("firing"))
					return len(s.unrelated(seen)) == 0
				}, func() any { return seen })
			}
			for alert, labels := range s.unrelated(seen) {
				t.Errorf("alert %s: got it firing, want it inactive: %s", alert, labels)
			}
			s.end()
			p.waitNoAlerts(t, "afterwards")
		})
		if t.Failed() {
			return // later scenarios would only repeat the failure
		}
	}
	for _, alert := range p.names {
		if !covered[alert] {
			t.Errorf("alert %s: got no scenario, want one in alertCluster.scenarios", alert)
		}
	}
	for alert := range covered {
		if !slices.Contains(p.names, alert) {
			t.Errorf("alert %s of a scenario: want it in deploy/alerts.yaml", alert)
		}
	}
	if strings.Join(p.names, "") == "" {
		t.Error("deploy/alerts.yaml: got no alerts, want some")
	}
}
