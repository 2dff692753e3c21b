package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"mapsync/syncd/daemon"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/rlimit"
	"github.com/google/go-cmp/cmp"
)

// flowRecord is a record of a drained map of flows.
func flowRecord(flow, origin int, owner string, version uint64, packets uint64) *daemon.Entry {
	return &daemon.Entry{
		Key:   json.RawMessage(fmt.Sprintf(`{"daddr":"10.0.0.%d","dport":443,"drain_origin":"%016x"}`, flow, origin)),
		Value: json.RawMessage(fmt.Sprintf(`{"count":{"packets":"%d"},"flags":1}`, packets)),
		Owner: owner, Version: version,
	}
}

func newClusterWatch(out *bytes.Buffer) *clusterWatch {
	w := &clusterWatch{out: out, top: 2, fields: []string{"count.packets"}}
	w.reset()
	return w
}

func (w *clusterWatch) mustAdd(t *testing.T, change bool, entries ...*daemon.Entry) {
	t.Helper()
	for _, e := range entries {
		if err := w.add(clusterEntry{e, change}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestClusterTable(t *testing.T) {
	var out bytes.Buffer
	w := newClusterWatch(&out)
	start := time.Unix(1000, 0)
	wantTable := func(at time.Duration, want string) {
		t.Helper()
		out.Reset()
		if err := w.print(start.Add(at)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("table differs (- want, + got):\n%s", diff)
		}
	}
	gone := func(flow, origin int, owner string) *daemon.Entry {
		e := flowRecord(flow, origin, owner, 20, 0)
		e.Deleted, e.Value = true, nil
		return e
	}
	w.mustAdd(t, true, flowRecord(2, 1, "n1", 8, 1), gone(3, 1, "n1"))
	w.mustAdd(t, false,
		flowRecord(1, 1, "n1", 5, 100),
		flowRecord(1, 2, "n1", 6, 20), // after a reboot of the node
		flowRecord(1, 3, "n2", 7, 9_000_000),
		flowRecord(2, 1, "n1", 7, 99), // older than the change
		flowRecord(3, 1, "n1", 7, 99),
	)
	w.mustAdd(t, false, nil)
	wantTable(0, `keys 3, nodes 2, count.packets 0/s
KEY                       OWNER  COUNT.PACKETS  COUNT.PACKETS/s
daddr=10.0.0.1 dport=443  n2     9000k          0
daddr=10.0.0.1 dport=443  n1     120            0

`)
	w.mustAdd(t, true,
		flowRecord(2, 1, "n1", 9, 201),
		flowRecord(1, 2, "n1", 10, 30),
		gone(1, 1, "n1"), // a former boot
		gone(1, 3, "n2"),
		flowRecord(4, 1, "n3", 11, 5_000_000), // of a peer that has joined
		flowRecord(5, 1, "n1", 12, 6),         // a new flow
	)
	wantTable(2*time.Second, `keys 4, nodes 2, count.packets 108/s
KEY                       OWNER  COUNT.PACKETS  COUNT.PACKETS/s
daddr=10.0.0.2 dport=443  n1     201            100
daddr=10.0.0.1 dport=443  n1     30             5

`)
	w.mustAdd(t, true, flowRecord(4, 1, "n1", 13, 5_000_004)) // has another owner
	w.asJSON, w.top = true, 1
	wantTable(4*time.Second, `{"time":"`+start.Add(4*time.Second).Format(time.RFC3339)+`","nodes":1,"keys":4,"rates":{"count.packets":2},`+
		`"top":[{"key":{"daddr":"10.0.0.4","dport":443},"owner":"n1","sums":{"count.packets":"5000004"},"rates":{"count.packets":2}}]}
`)
}

// TestClusterTablesOfManyRecords prints tables while records arrive.
func TestClusterTablesOfManyRecords(t *testing.T) {
	var out bytes.Buffer
	w := newClusterWatch(&out)
	w.interval, w.times = time.Millisecond, 3
	entries := make(chan clusterEntry)
	go func() {
		for i := range 20_000 {
			entries <- clusterEntry{flowRecord(i%256, i, "n1", 1, 1), false}
		}
		entries <- clusterEntry{}
	}()
	if err := w.printTables(t.Context(), entries); !errors.Is(err, errDone) {
		t.Fatalf("tables: got error %v, want %v", err, errDone)
	}
	if got := strings.Count(out.String(), "keys 256, nodes 1,"); got != 3 {
		t.Errorf("tables: got %d with all keys, want 3: %s", got, out.String())
	}
}

func TestClusterFieldsAreChecked(t *testing.T) {
	for field, want := range map[string]string{
		"bytes":         "values have no field bytes: choose another --sum",
		"count.bytes":   "values have no field bytes: choose another --sum",
		"flags":         "",
		"count.packets": "",
		"count":         "field count is not an unsigned integer: choose another --sum",
	} {
		w := newClusterWatch(&bytes.Buffer{})
		w.fields = []string{field}
		err := w.add(clusterEntry{flowRecord(1, 1, "n1", 1, 3), true})
		var usage usageError
		if (err == nil) != (want == "") || err != nil && (!errors.As(err, &usage) || err.Error() != want) {
			t.Errorf("field %s: got error %v, want %q", field, err, want)
		}
	}
}

func TestClusterSumsAllCPUs(t *testing.T) {
	n, err := numberOf(json.RawMessage(`{"cpu":[{"packets":"3"},{"packets":"4"}]}`), "packets")
	if n != 7 || err != nil {
		t.Errorf("packets of two CPUs: got %d, error %v, want 7", n, err)
	}
}

func TestClusterFlagsAreChecked(t *testing.T) {
	for _, args := range [][]string{
		{"watch", "flows", "--sum", "bytes"},
		{"watch", "flows", "--top", "3"},
		{"watch", "flows", "--cluster", "--top", "0"},
		{"watch", "flows", "--cluster", "--interval", "1ms"},
		{"watch", "flows", "--cluster", "--times", "-1"},
		{"watch", "flows", "--cluster", "--raw"},
		{"watch", "flows", "--cluster", "--where", "state=1"},
	} {
		_, err := run(t, args...)
		var usage usageError
		if !errors.As(err, &usage) {
			t.Errorf("%q: got error %v, want a usage error", args, err)
		}
	}
}

func TestShortNumbers(t *testing.T) {
	for n, want := range map[float64]string{0: "0", 9999: "9999", 10_000: "10k", 123_456_789: "123M", 1e22: "10000E"} {
		if got := short(n); got != want {
			t.Errorf("short %v: got %s, want %s", n, got, want)
		}
	}
}

// TestClusterTableOfDaemon runs the command against a daemon, whose map has two entries.
func TestClusterTableOfDaemon(t *testing.T) {
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	const name = "cli_counters"
	number := func(name string) *btf.Struct {
		u64 := &btf.Int{Name: "unsigned long long", Size: 8, Encoding: btf.Unsigned}
		return &btf.Struct{Name: name, Size: 8, Members: []btf.Member{{Name: "n", Type: u64}}}
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: name, Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 10, Key: number("k"), Value: number("v"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	for key, value := range map[uint64]uint64{1: 30, 2: 40} {
		if err := m.Put(key, value); err != nil {
			t.Fatal(err)
		}
	}
	socket := startDaemon(t, name)
	if out, err := run(t, "wait-ready", "--control-socket", socket, "--timeout", "20s"); err != nil {
		t.Fatalf("wait-ready: %v\n%s", err, out)
	}
	out, err := run(t, "watch", name, "--cluster", "--sum", "n", "--times", "2", "--interval", "100ms", "--control-socket", socket)
	if err != nil || strings.Count(out, "keys 2, nodes 1, n 0/s\n") != 2 || !strings.Contains(out, "n=2  cli    40") {
		t.Errorf("two tables of a map with two entries: want the sum of n for each key, got error %v and\n%s", err, out)
	}
}
