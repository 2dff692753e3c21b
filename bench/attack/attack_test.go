package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// testCluster builds syncd and starts three daemons. The caller closes the cluster.
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
				t.Errorf("harm of the attack: got %q, want none", r.Harm)
			}
		})
		if len(c.nodes) == 0 {
			t.Fatal("replace the daemons after a harmful attack: got no daemons, want some")
		}
	}
}

// TestChecksDetectEachFailure breaks each condition that the checks after an attack cover.
func TestChecksDetectEachFailure(t *testing.T) {
	c := testCluster(t)
	defer func() { _ = c.close() }()
	was, err := c.takeBaselines()
	if err != nil {
		t.Fatal(err)
	}
	n := c.nodes[0]
	t.Run("entry", func(t *testing.T) {
		if err := n.checkContent(c.nodes); err != nil {
			t.Fatal(err)
		}
		key := entryKey(2, 0)
		value := c.nodes[1].written[key]
		value[3]++
		c.nodes[1].written[key] = value
		wantError(t, n.checkContent(c.nodes), "1 differ")
		value[3]--
		c.nodes[1].written[key] = value
	})
	t.Run("trace", func(t *testing.T) {
		wantError(t, c.checkTrace(&attack{trace: "^mapsync_no_such_metric"}, was, &result{}), "no metric")
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
		wantError(t, n.checkRecovered(t.Context(), was[n].sample, &result{}), "log of lb1 grew")
	})
	t.Run("local user", func(t *testing.T) {
		state, err := filepath.Glob(filepath.Join(n.dir, "state", "*"))
		if err != nil || len(state) == 0 {
			t.Fatalf("files of the state: got %v, error %v, want some", state, err)
		}
		pin := filepath.Join(c.dir, pinFolder, n.name)
		for _, open := range []string{n.socket(), state[0], filepath.Join(n.dir, "state"), pin} {
			if err := os.Chmod(open, 0o777); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		err = attackAsLocalUser(ctx, c)
		for _, want := range []string{"connect to the control socket of lb1", "read " + state[0], "open the map pinned at " + pin} {
			wantError(t, err, want)
		}
	})
	t.Run("terminal", func(t *testing.T) {
		for _, text := range []string{"a\x1b[31mb", "a\rb", "a\u009bb", "a\u202eb", "a\nforged", "a\xffb"} {
			wantError(t, checkPrintable("an output", text), "control character")
		}
		if err := checkPrintable("an output", "a\tb\né \\u001b\n"); err != nil {
			t.Errorf("printable output: got error %v, want nil", err)
		}
	})
	t.Run("death", func(t *testing.T) {
		n.stop()
		wantError(t, c.checkAfter(t.Context(), &attack{}, was, &result{}), "lb1 ended")
	})
}

func wantError(t *testing.T, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("check after harm: got error %v, want one that contains %q", err, text)
	}
}

// TestReportLineWidth checks that the lines of a report with a long message fit into the columns.
func TestReportLineWidth(t *testing.T) {
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
			t.Errorf("width of report line: got %d columns, want at most 100: %q", n, line)
		}
	}
	if r.Failed != len(attacks()) {
		t.Errorf("report: got %d failures, want %d", r.Failed, len(attacks()))
	}
}

func TestMain(m *testing.M) {
	if os.Getenv(localUserVariable) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}
