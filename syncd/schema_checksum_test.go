package main

import (
	"context"
	"fmt"
	"hash/crc32"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"mapsync/printable"
	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/config"
	"mapsync/syncd/daemon"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
)

// observedSettings are those of a node whose settings change the types that it sends. The name in the cluster is that of neither
// the pin nor the kernel.
const observedSettings = `
map: ['sessions=%s']
field: ['sessions:last_used=ktime', 'sessions:created=none']
attach: none
observers: [observer]
node-name: lb1
gossip-listen: 127.0.2.9:7946
grpc-listen: 127.0.2.9:7947
metrics-listen: ''
state-dir: %[2]s
insecure: true
control-socket: %[2]s/syncd.sock
`

// checksumLine matches the checksum of an exported file.
var checksumLine = regexp.MustCompile(`SCHEMA_CHECKSUM_CRC32 = (\d+);`)

// TestExportWithSettingsHasChecksumOfNode exports the map of a running node with its settings file, and without it. Only the former
// has the checksum of the types that the node sends to an observer.
func TestExportWithSettingsHasChecksumOfNode(t *testing.T) {
	dir, pin := t.TempDir(), pinConntrack(t)
	file := filepath.Join(dir, "syncd.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, observedSettings, pin, dir), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	runObserved(t, &c)
	want := observedChecksum(t, c.GRPCListen)
	for _, export := range []struct {
		args []string
		same bool
	}{
		{[]string{"sessions", "--config", file}, true},
		{[]string{pin}, false},
		{[]string{pin, "--field", "ct:last_used=ktime", "--field", "ct:created=none"}, true},
	} {
		out, err := run(t, append([]string{"schema", "export"}, export.args...)...)
		m := checksumLine.FindStringSubmatch(out)
		if err != nil || m == nil {
			t.Fatalf("schema export %q: got error %v, want none and a checksum\n%s", export.args, err, out)
		}
		if got, _ := strconv.Atoi(m[1]); (got == want) != export.same {
			t.Errorf("schema export %q: got checksum %d, the node has %d, want the same one: %v", export.args, got, want, export.same)
		}
	}
}

// pinConntrack creates the map of a load balancer, with types, and returns its pin, whose name is ct.
func pinConntrack(t *testing.T) string {
	t.Helper()
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	spec, err := ebpf.LoadCollectionSpec("../bench/lb/bpf/lb_bpfel.o")
	if err != nil {
		t.Fatal(err)
	}
	ct := spec.Maps["ct_map"]
	ct.Pinning = ebpf.PinNone
	m, err := ebpf.NewMap(ct)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	bpffs := t.TempDir()
	if err := unix.Mount("bpf", bpffs, "bpf", 0, ""); err != nil {
		t.Fatalf("mount a BPF file system (needs root): %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(bpffs, unix.MNT_DETACH) })
	pin := filepath.Join(bpffs, "ct")
	if err := m.Pin(pin); err != nil {
		t.Fatal(err)
	}
	return pin
}

// runObserved runs a daemon until the end of the test.
func runObserved(t *testing.T, c *config.Config) {
	t.Helper()
	d, err := daemon.New(daemon.Options{Config: *c, Version: "test", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// observedChecksum returns the checksum of the types that a node sends to an observer.
func observedChecksum(t *testing.T, address string) int {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := mapsyncv1.NewReplicationServiceClient(conn).Subscribe(t.Context(), grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []*mapsyncv1.SubscribeRequest{
		{Message: &mapsyncv1.SubscribeRequest_Hello{Hello: &mapsyncv1.Hello{ProtocolVersion: 2, Self: &mapsyncv1.Incarnation{Node: "observer", Number: 1}}}},
		{Message: &mapsyncv1.SubscribeRequest_Subscribe{Subscribe: &mapsyncv1.MapSubscription{Map: 1, Name: "sessions", Observe: true}}},
	} {
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			t.Fatalf("answer to the subscription: got error %s, want that the map is accepted", printable.Text(err.Error()))
		}
		if a := m.GetAccepted(); a != nil {
			data, err := proto.Marshal(a.GetSchema())
			if err != nil {
				t.Fatal(err)
			}
			return int(crc32.ChecksumIEEE(data) & math.MaxInt32)
		}
	}
}
