package main

import (
	"os"
	"strings"
	"testing"
	"time"
)

// testCluster builds syncd and starts three daemons, which the caller has to close.
func testCluster(t *testing.T) *cluster {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to create maps")
	}
	path, err := build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c, err := newCluster(t.Context(), path, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestAttacks makes all attacks in their short form on three daemons.
func TestAttacks(t *testing.T) {
	c := testCluster(t)
	defer func() {
		if err := c.close(); err != nil {
			t.Error(err)
		}
	}()
	for _, a := range attacks() {
		t.Run(strings.ReplaceAll(a.name, " ", "_"), func(t *testing.T) {
			r := c.perform(t.Context(), &a, 1500*time.Millisecond)
			t.Logf("%.0f MiB above idle, answers within %.1f s, %.0f KiB of log; %s", r.MemoryMiB, r.AnswerSeconds, r.LogKiB, r.Trace)
			if r.Harm != "" {
				t.Error(r.Harm)
			}
		})
		if len(c.nodes) == 0 {
			t.Fatal("the daemons could not be started again after an attack")
		}
	}
}

// TestChecksFindHarm breaks each thing that the checks after an attack look at.
func TestChecksFindHarm(t *testing.T) {
	c := testCluster(t)
	defer func() { _ = c.close() }()
	was, err := c.before()
	if err != nil {
		t.Fatal(err)
	}
	n := c.nodes[0]
	t.Run("entry", func(t *testing.T) {
		if err := n.holds(c.nodes); err != nil {
			t.Fatal(err)
		}
		key := entryKey(2, 0)
		value := c.nodes[1].wrote[key]
		value[3]++
		c.nodes[1].wrote[key] = value
		wants(t, n.holds(c.nodes), "1 differ")
		value[3]--
		c.nodes[1].wrote[key] = value
	})
	t.Run("trace", func(t *testing.T) {
		wants(t, c.traced(&attack{trace: "^mapsync_no_such_metric"}, was, &result{}), "no metric")
	})
	t.Run("log", func(t *testing.T) {
		log, err := os.OpenFile(n.logFile, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = log.Write(make([]byte, logLimit+1))
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		wants(t, n.recovered(t.Context(), was[n].sample, &result{}), "log of lb1 grew")
	})
	t.Run("death", func(t *testing.T) {
		n.stop()
		wants(t, c.after(t.Context(), &attack{}, was, &result{}), "lb1 ended")
	})
}

func wants(t *testing.T, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("got error %v, want one that contains %q", err, text)
	}
}

// TestReportFitsATerminal prints a report with a long message.
func TestReportFitsATerminal(t *testing.T) {
	var out strings.Builder
	var r report
	r.header(&out)
	for _, a := range attacks() {
		one := result{Name: a.name, By: string(a.by), MemoryMiB: 1234, AnswerSeconds: 12, LogKiB: 1234, Harm: strings.Repeat("harm ", 60)}
		r.Results = append(r.Results, one)
		one.row(&out)
	}
	r.summary(&out)
	for line := range strings.Lines(out.String()) {
		if n := len(strings.TrimRight(line, "\n")); n > columns {
			t.Errorf("line of %d columns: %q", n, line)
		}
	}
	if r.Failed != len(attacks()) {
		t.Errorf("%d failures are reported, want %d", r.Failed, len(attacks()))
	}
}
