package lb

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mapsync/bench/lb/bpf"
)

// Return codes of an XDP program, from enum xdp_action.
const (
	xdpDrop = 1
	xdpPass = 2
	xdpTx   = 3
)

var (
	testVIP      = netip.MustParseAddrPort("10.9.9.9:80")
	testClient   = netip.MustParseAddrPort("10.1.0.1:40000")
	testBackends = []netip.AddrPort{
		netip.MustParseAddrPort("10.2.0.1:8080"),
		netip.MustParseAddrPort("10.2.0.2:8081"),
	}
)

func testBalancer(t *testing.T, cfg Config) *Balancer {
	t.Helper()
	cfg.VIP, cfg.Logger = testVIP, slog.New(slog.DiscardHandler)
	if cfg.Backends == nil {
		cfg.Backends = testBackends
	}
	setDefault(&cfg.MaxEntries, 64)
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// send runs one segment through the program and returns its return code and output.
func send(t *testing.T, b *Balancer, in segment) (uint32, segment) {
	t.Helper()
	verdict, out, err := b.objs.Lb.Test(in.bytes())
	if err != nil {
		t.Fatal(err)
	}
	seg, err := parseSegment(out)
	if err != nil {
		t.Fatalf("parse output of %s: %v", in, err)
	}
	return verdict, seg
}

// mustSend is like send, for a segment that the balancer must forward.
func mustSend(t *testing.T, b *Balancer, in segment) segment {
	t.Helper()
	verdict, out := send(t, b, in)
	if verdict != xdpTx {
		t.Fatalf("return code for %s: got %d, want XDP_TX", in, verdict)
	}
	if out.srcMAC != balancerMAC || out.dstMAC != routerMAC {
		t.Fatalf("output of %s: got %s, want the sender's MAC as destination", in, out)
	}
	return out
}

func entries(t *testing.T, b *Balancer) map[bpf.LBCtKey]Entry {
	t.Helper()
	all := map[bpf.LBCtKey]Entry{}
	err := b.cfg.Layout.ForEach(b.Map(), func(key *bpf.LBCtKey, entry *Entry) { all[*key] = *entry })
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// eachLayout runs a test for each release of the load balancer.
func eachLayout(t *testing.T, test func(t *testing.T, l Layout)) {
	for _, l := range []Layout{LayoutV1, LayoutNext} {
		t.Run(string(l), func(t *testing.T) { test(t, l) })
	}
}

// open performs a handshake and returns the chosen backend.
func open(t *testing.T, b *Balancer, client netip.AddrPort) netip.AddrPort {
	t.Helper()
	out := mustSend(t, b, segment{src: client, dst: testVIP, flags: flagSYN, seq: 100})
	backend := out.dst
	mustSend(t, b, segment{src: backend, dst: client, flags: flagSYN | flagACK, seq: 500, ack: 101})
	mustSend(t, b, segment{src: client, dst: testVIP, flags: flagACK, seq: 101, ack: 501})
	return backend
}

func TestNewFlow(t *testing.T) { eachLayout(t, testNewFlow) }

func testNewFlow(t *testing.T, l Layout) {
	b := testBalancer(t, Config{Layout: l})
	in := segment{src: testClient, dst: testVIP, flags: flagSYN, seq: 100}
	out := mustSend(t, b, in)
	if out.src != testClient || (out.dst != testBackends[0] && out.dst != testBackends[1]) {
		t.Fatalf("forwarded SYN: got %s > %s, want the client > a backend", out.src, out.dst)
	}
	all := entries(t, b)
	if len(all) != 2 {
		t.Fatalf("entries after a SYN: got %d, want one for each direction", len(all))
	}
	for key, value := range all {
		if value.State != StateSynSent || testBackends[value.BackendID] != out.dst || value.IdleTimeout != 30 {
			t.Errorf("entry of a new flow %+v: got %+v, want state SYN_SENT, idle timeout 30 and its backend", key, value)
		}
		if _, ok := all[*reverseKey(&key, &value.Nat)]; !ok {
			t.Errorf("entry %+v: the entry of the other direction is missing", key)
		}
	}
	// A repeated SYN belongs to the same flow, independent of the random choice.
	for range 20 {
		if again := mustSend(t, b, in); again.dst != out.dst {
			t.Fatalf("repeated SYN: got backends %s, then %s, want the same", out.dst, again.dst)
		}
	}
}

func TestReplyIsRewritten(t *testing.T) { eachLayout(t, testReplyIsRewritten) }

func testReplyIsRewritten(t *testing.T, l Layout) {
	b := testBalancer(t, Config{Layout: l})
	backend := open(t, b, testClient)
	payload := bytes.Repeat([]byte("odd length!"), 13)
	out := mustSend(t, b, segment{src: backend, dst: testClient, flags: flagACK, seq: 501, ack: 101, payload: payload})
	if out.src != testVIP || out.dst != testClient || !bytes.Equal(out.payload, payload) {
		t.Fatalf("forwarded answer: got %s > %s, %d bytes, want the service > the client, the same bytes", out.src, out.dst, len(out.payload))
	}
}

func TestAllBackendsAreUsed(t *testing.T) {
	b := testBalancer(t, Config{MaxEntries: 256})
	used := map[netip.AddrPort]int{}
	for port := range uint16(64) {
		used[open(t, b, netip.AddrPortFrom(testClient.Addr(), 1000+port))]++
	}
	for _, be := range testBackends {
		if used[be] < 8 {
			t.Errorf("flows of backend %s: got %d of 64, want at least 8", be, used[be])
		}
	}
}

func TestStateChangesInPlace(t *testing.T) { eachLayout(t, testStateChangesInPlace) }

func testStateChangesInPlace(t *testing.T, l Layout) {
	b := testBalancer(t, Config{Layout: l, Established: 77 * time.Second})
	open(t, b, testClient)
	before := entries(t, b)
	mustSend(t, b, segment{src: testClient, dst: testVIP, flags: flagACK, seq: 101, ack: 501, payload: make([]byte, 50)})
	for key, value := range entries(t, b) {
		old, ok := before[key]
		if !ok {
			t.Fatalf("entry %+v: got a new entry, want a change of state in place", key)
		}
		if value.State != StateEstablished || value.IdleTimeout != 77 {
			t.Errorf("open connection: got state %d, idle timeout %d, want established, 77", value.State, value.IdleTimeout)
		}
		if value.Direction == 1 {
			if value.Packets != 1 {
				t.Errorf("packets of the reply direction: got %d, want 1", value.Packets)
			}
			continue
		}
		if value.Packets != old.Packets+1 || value.Bytes != old.Bytes+90 || value.LastUsed <= old.LastUsed {
			t.Errorf("entry after a segment of 90 bytes: want one packet and 90 bytes more than %+v\ngot %+v", old, value)
		}
		if value.TCP[0].Seq != 151 || value.TCP[0].Ack != 501 {
			t.Errorf("sequence numbers: got %+v, want 151, 501", value.TCP)
		}
	}
}

func TestClose(t *testing.T) { eachLayout(t, testClose) }

func testClose(t *testing.T, l Layout) {
	finish := func(t *testing.T, b *Balancer, backend netip.AddrPort) {
		mustSend(t, b, segment{src: testClient, dst: testVIP, flags: flagFIN | flagACK, seq: 101, ack: 501})
		mustSend(t, b, segment{src: backend, dst: testClient, flags: flagFIN | flagACK, seq: 501, ack: 102})
		for _, value := range entries(t, b) {
			if value.State != StateClosing || value.IdleTimeout != 60 {
				t.Errorf("half-closed connection: got state %d, idle timeout %d, want closing, 60", value.State, value.IdleTimeout)
			}
		}
		if n := len(entries(t, b)); n != 2 {
			t.Fatalf("entries before the last acknowledgement: got %d, want 2", n)
		}
		mustSend(t, b, segment{src: testClient, dst: testVIP, flags: flagACK, seq: 102, ack: 502})
	}
	for name, end := range map[string]func(*testing.T, *Balancer, netip.AddrPort){
		"both FINs acknowledged": finish,
		"reset by client": func(t *testing.T, b *Balancer, _ netip.AddrPort) {
			mustSend(t, b, segment{src: testClient, dst: testVIP, flags: flagRST, seq: 101})
		},
		"reset by backend": func(t *testing.T, b *Balancer, backend netip.AddrPort) {
			mustSend(t, b, segment{src: backend, dst: testClient, flags: flagRST | flagACK, seq: 501, ack: 101})
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := testBalancer(t, Config{Layout: l})
			end(t, b, open(t, b, testClient))
			if all := entries(t, b); len(all) != 0 {
				t.Errorf("entries of a closed flow: got %d, want 0: %+v", len(all), all)
			}
			stats, err := b.Stats()
			if err != nil || stats.Closed != 1 || stats.New != 1 {
				t.Errorf("counters of one closed flow: got %+v, %v, want 1 new, 1 closed", stats, err)
			}
		})
	}
}

func TestPortReuseWhileClosing(t *testing.T) { eachLayout(t, testPortReuseWhileClosing) }

func testPortReuseWhileClosing(t *testing.T, l Layout) {
	b := testBalancer(t, Config{Layout: l})
	open(t, b, testClient)
	mustSend(t, b, segment{src: testClient, dst: testVIP, flags: flagFIN | flagACK, seq: 101, ack: 501})
	mustSend(t, b, segment{src: testClient, dst: testVIP, flags: flagSYN, seq: 9000})
	for _, value := range entries(t, b) {
		if value.State != StateSynSent {
			t.Errorf("state of the new flow: got %d, want SYN_SENT", value.State)
		}
	}
}

// TestUnknownFlowPasses checks that the program passes segments without an entry to the network
// stack, which answers with a reset.
func TestUnknownFlowPasses(t *testing.T) {
	b := testBalancer(t, Config{})
	for name, in := range map[string]segment{
		"middle of a flow": {src: testClient, dst: testVIP, flags: flagACK, seq: 7, ack: 8, payload: []byte("x")},
		"reply":            {src: testBackends[0], dst: testClient, flags: flagSYN | flagACK, seq: 7, ack: 8},
		"no service":       {src: testClient, dst: netip.MustParseAddrPort("10.9.9.9:81"), flags: flagSYN},
	} {
		verdict, out := send(t, b, in)
		if verdict != xdpPass || out.src != in.src || out.dst != in.dst {
			t.Errorf("unknown flow (%s): got return code %d, %s > %s, want XDP_PASS and an unchanged segment", name, verdict, out.src, out.dst)
		}
	}
	if n := len(entries(t, b)); n != 0 {
		t.Errorf("entries of an unknown flow: got %d, want 0", n)
	}
	if stats, err := b.Stats(); err != nil || stats.NoEntry != 1 {
		t.Errorf("counters of an unknown flow: got %+v, %v, want 1 without entry", stats, err)
	}
}

func TestFullMapDropsSYN(t *testing.T) {
	b := testBalancer(t, Config{MaxEntries: 5})
	open(t, b, netip.AddrPortFrom(testClient.Addr(), 1))
	open(t, b, netip.AddrPortFrom(testClient.Addr(), 2))
	verdict, _ := send(t, b, segment{src: testClient, dst: testVIP, flags: flagSYN})
	if verdict != xdpDrop {
		t.Errorf("return code of a SYN with a full map: got %d, want XDP_DROP", verdict)
	}
	if n := len(entries(t, b)); n != 4 {
		t.Errorf("entries of a full map: got %d, want 4", n)
	}
	if stats, err := b.Stats(); err != nil || stats.Full != 1 || stats.New != 2 {
		t.Errorf("counters of a full map: got %+v, %v, want 1 full, 2 new", stats, err)
	}
	// The existing flows still work.
	mustSend(t, b, segment{src: netip.AddrPortFrom(testClient.Addr(), 1), dst: testVIP, flags: flagACK, seq: 101, ack: 501})
}

func TestCollector(t *testing.T) { eachLayout(t, testCollector) }

func testCollector(t *testing.T, l Layout) {
	b := testBalancer(t, Config{Layout: l})
	open(t, b, netip.AddrPortFrom(testClient.Addr(), 1))
	open(t, b, netip.AddrPortFrom(testClient.Addr(), 2))
	if n, err := b.collectOnce(); n != 0 || err != nil {
		t.Fatalf("collect entries in use: deleted %d, %v, want 0", n, err)
	}
	// The first connection becomes idle in both directions, the second in one.
	for key, value := range entries(t, b) {
		first := key.Sport == bePort(1) || key.Dport == bePort(1)
		if first || value.Direction == 1 {
			makeIdle(t, b, key)
		}
	}
	if n, err := b.collectOnce(); n != 2 || err != nil {
		t.Fatalf("collect idle entries: deleted %d, %v, want the 2 of one connection", n, err)
	}
	for key := range entries(t, b) {
		if key.Sport != bePort(2) && key.Dport != bePort(2) {
			t.Errorf("after the collection: got entry %+v, want only those of the second connection", key)
		}
	}
}

// makeIdle changes the fields that the collector uses.
func makeIdle(t *testing.T, b *Balancer, key bpf.LBCtKey) {
	t.Helper()
	v1, next := new(bpf.LBCtValue), new(bpf.LBNextCtValue)
	var value any = v1
	if b.cfg.Layout == LayoutNext {
		value = next
	}
	if err := b.Map().Lookup(key, value); err != nil {
		t.Fatal(err)
	}
	v1.LastUsed, v1.IdleTimeout = 1, 1
	next.LastUsed, next.IdleTimeout = 1, 1
	if err := b.Map().Update(key, value, ebpf.UpdateExist); err != nil {
		t.Fatal(err)
	}
}

// TestNextLayoutFields checks the updates of the fields that only LayoutNext has.
func TestNextLayoutFields(t *testing.T) {
	b := testBalancer(t, Config{Layout: LayoutNext})
	open(t, b, testClient)
	lookup := func() (values [2]bpf.LBNextCtValue) {
		for key, entry := range entries(t, b) {
			if err := b.Map().Lookup(key, &values[entry.Direction]); err != nil {
				t.Fatal(err)
			}
		}
		return values
	}
	before := lookup()
	if m := before[0].Mark; m == 0 || m != before[1].Mark { // a mark of 0 has a probability of 1 in 2^32
		t.Errorf("marks of both directions: got %d and %d, want the same, not 0", m, before[1].Mark)
	}
	if v := before[0]; v.RxTime < v.Created || v.RxTime >= v.LastUsed {
		t.Errorf("times after an empty segment: got creation %d, last SYN %d, last segment %d, want ascending times", v.Created, v.RxTime, v.LastUsed)
	}
	mustSend(t, b, segment{src: testClient, dst: testVIP, flags: flagACK, seq: 101, ack: 501, payload: []byte("x")})
	if v := lookup()[0]; v.RxTime != v.LastUsed || v.RxTime <= before[0].RxTime || v.Mark != before[0].Mark {
		t.Errorf("entry after a segment with payload: want a new receive time and the mark of %+v\ngot %+v", before[0], v)
	}
}

func TestHasFieldRoles(t *testing.T) {
	eachLayout(t, func(t *testing.T, l Layout) {
		known, err := HasFieldRoles(testBalancer(t, Config{Layout: l}).Map())
		if err != nil {
			t.Fatal(err)
		}
		var name unix.Utsname
		if err := unix.Uname(&name); err != nil {
			t.Fatal(err)
		}
		var major, minor int
		if _, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor); err != nil {
			t.Fatal(err)
		}
		if tags := major > 5 || major == 5 && minor >= 16; known != tags {
			t.Errorf("HasFieldRoles: got %v, want %v", known, tags)
		}
	})
}

func TestUnknownLayoutIsRefused(t *testing.T) {
	if _, err := New(Config{Service: Service{VIP: testVIP, Backends: testBackends}, Layout: "v3", Logger: slog.New(slog.DiscardHandler)}); err == nil {
		t.Error("New with layout v3: got no error, want one")
	}
}

func TestSizes(t *testing.T) {
	k, v1, next := binary.Size(bpf.LBCtKey{}), binary.Size(bpf.LBCtValue{}), binary.Size(bpf.LBNextCtValue{})
	if k != 48 || v1 != 176 || next != 152 {
		t.Errorf("sizes: got key %d, values %d and %d bytes, want 48, 176 and 152", k, v1, next)
	}
}
