package config

import (
	"slices"
	"strings"
	"testing"
)

const metricsFile = `
map: [services]
metrics:
  - map: services
    top: 20
    labels: {port: dport, destination: daddr}
    counters:
      - {name: service_sent_bytes_total, field: bytes, unit: bytes, help: Bytes sent.}
`

func TestMetrics(t *testing.T) {
	c := Default()
	if err := c.Parse([]byte(metricsFile)); err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	e := &c.Metrics[0]
	if got := e.LabelNames(); !slices.Equal(got, []string{"destination", "port"}) || e.Series() != 20 {
		t.Errorf("metrics: got labels %v, %d series, want destination, port, 20", got, e.Series())
	}
	if e.Top = 0; e.Series() != DefaultTop {
		t.Errorf("series without top: got %d, want %d", e.Series(), DefaultTop)
	}
}

func TestMetricsAreChecked(t *testing.T) {
	for _, tt := range []struct{ old, with, problem string }{
		{"- map: services", "- map: other", "no map is called other"},
		{"top: 20", "top: 10001", "top 10001 is not usable"},
		{"top: 20", "top: -1", "top -1 is not usable"},
		{"port: dport", "__port: dport", `label "__port" is not usable`},
		{"port: dport", "cluster: dport", `label "cluster" is not usable`},
		{"port: dport", `port: ""`, "label port has no field"},
		{"name: service_sent_bytes_total", "name: service_sent_bytes", "ends with _total"},
		{"name: service_sent_bytes_total", "name: mapsync_sent_bytes_total", "names that begin with mapsync_"},
		{"field: bytes", `field: ""`, "has no field"},
		{"help: Bytes sent.", `help: ""`, "has no help"},
		{"unit: bytes", "unit: packets", "must end with _packets_total"},
		{"      - {name: service_sent_bytes_total, field: bytes, unit: bytes, help: Bytes sent.}", "      []", "0 counters: give 1 to 16"},
		{"help: Bytes sent.}", "help: Bytes sent.}\n      - {name: service_sent_bytes_total, field: packets, help: Again.}", "exists twice"},
	} {
		c := Default()
		if err := c.Parse([]byte(strings.Replace(metricsFile, tt.old, tt.with, 1))); err != nil {
			t.Fatal(err)
		}
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), tt.problem) {
			t.Errorf("metrics with %s: got error %v, want %q", tt.with, err, tt.problem)
		}
	}
}
