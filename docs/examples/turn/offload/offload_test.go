package offload

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	passed, sent = 2, 3 // XDP_PASS, XDP_TX
	loopback     = 1    // interface of a test run
	number       = 0x4001
)

var (
	server = netip.MustParseAddrPort("10.14.0.1:3478")
	from   = netip.MustParseAddrPort("198.51.100.7:40001")
	peer   = netip.MustParseAddrPort("203.0.113.9:9000")
	relay  = netip.MustParseAddrPort("10.14.0.1:49152")
)

// newOffload returns an offload with one channel.
func newOffload(t *testing.T) *Offload {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("XDP needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Skipf("mount a BPF file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	o, err := Open(dir, server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
	must(t, o.Enable(loopback, true))
	must(t, o.PutChannel(channelFor(time.Hour)))
	return o
}

func channelFor(d time.Duration) *Channel {
	return &Channel{ClientChannel{from, number}, peer, relay, time.Now().Add(d)}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// frame returns an Ethernet frame. It computes the checksums without the code under test.
func frame(source, destination netip.AddrPort, data []byte) []byte {
	f := make([]byte, 42, 42+len(data))
	copy(f, "\x02\x00\x00\x00\x00\x02\x02\x00\x00\x00\x00\x01\x08\x00")
	ip, a, b := f[14:], source.Addr().As4(), destination.Addr().As4()
	ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(ip[2:], uint16(28+len(data)))
	copy(ip[12:], a[:])
	copy(ip[16:], b[:])
	binary.BigEndian.PutUint16(ip[20:], source.Port())
	binary.BigEndian.PutUint16(ip[22:], destination.Port())
	binary.BigEndian.PutUint16(ip[24:], uint16(8+len(data)))
	f = append(f, data...)
	seal(f)
	return f
}

// seal sets both checksums.
func seal(f []byte) {
	ip := f[14:]
	ip[10], ip[11], ip[26], ip[27] = 0, 0, 0, 0
	binary.BigEndian.PutUint16(ip[10:], ^checksum(0, ip[:20]))
	length := binary.BigEndian.Uint16(ip[24:])
	sum := ^checksum(uint32(unix.IPPROTO_UDP)+uint32(length), ip[12:20], ip[20:20+int(length)])
	if sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(ip[26:], sum)
}

func checksum(sum uint32, parts ...[]byte) uint16 {
	for _, p := range parts {
		for i, b := range p {
			sum += uint32(b) << (8 * (1 - i%2))
		}
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

// reply is frame with the hardware addresses of the other direction.
func reply(source, destination netip.AddrPort, data []byte) []byte {
	f := frame(source, destination, data)
	copy(f, "\x02\x00\x00\x00\x00\x01\x02\x00\x00\x00\x00\x02")
	return f
}

// channelData returns data with the header of a channel and n bytes of padding that are not zero.
func channelData(number uint16, data []byte, padding int) []byte {
	b := binary.BigEndian.AppendUint16(nil, number)
	b = append(binary.BigEndian.AppendUint16(b, uint16(len(data))), data...)
	return append(b, "\xfe\xed\xfa"[:padding]...)
}

func sample(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*i + n)
	}
	return b
}

func runProgram(t *testing.T, o *Offload, in []byte) (action uint32, out []byte) {
	t.Helper()
	action, out, err := o.objects.Turn.Test(in)
	must(t, err)
	return action, out
}

func check(t *testing.T, o *Offload, what string, in []byte, wantAction uint32, want []byte) {
	t.Helper()
	action, out := runProgram(t, o, in)
	if action != wantAction || !bytes.Equal(out, want) {
		t.Errorf("%s: got action %d\n% x, want action %d\n% x", what, action, out, wantAction, want)
	}
}

func TestOffloadTranslatesData(t *testing.T) {
	o := newOffload(t)
	var want Counters
	for _, n := range []int{0, 1, 2, 3, 4, 5, 63, 200, 1399, 1467, 1468} {
		data := sample(n)
		for padding := range 4 {
			in := frame(from, server, channelData(number, data, padding))
			check(t, o, "data of a client", in, sent, reply(relay, peer, data))
			want.UpPackets, want.UpBytes = want.UpPackets+1, want.UpBytes+uint64(n)
		}
		check(t, o, "data of a client, in a frame with a trailer", append(frame(from, server, channelData(number, data, 0)), 1, 2, 3),
			sent, reply(relay, peer, data))
		check(t, o, "data of a peer", frame(peer, relay, data), sent, reply(server, from, channelData(number, data, 0)))
		want.UpPackets, want.UpBytes = want.UpPackets+1, want.UpBytes+uint64(n)
		want.DownPackets, want.DownBytes = want.DownPackets+1, want.DownBytes+uint64(n)
	}
	counters, err := o.Counters()
	if got := counters[ClientChannel{from, number}]; err != nil || got != want || len(counters) != 1 {
		t.Errorf("counters: got %+v of %d channels, error %v, want %+v of 1", got, len(counters), err, want)
	}
}

// A checksum that would be 0 is 0xffff, because 0 means that there is none.
func TestOffloadComputesChecksums(t *testing.T) {
	o := newOffload(t)
	zeros := 0
	for n := range 1 << 16 {
		data := binary.BigEndian.AppendUint16(nil, uint16(n))
		up, down := reply(relay, peer, data), reply(server, from, channelData(number, data, 0))
		if binary.BigEndian.Uint16(up[40:]) == 0xffff || binary.BigEndian.Uint16(down[40:]) == 0xffff {
			zeros++
		} else if n%257 != 0 {
			continue
		}
		check(t, o, "data of a client", frame(from, server, channelData(number, data, 2)), sent, up)
		check(t, o, "data of a peer", frame(peer, relay, data), sent, down)
	}
	if zeros < 2 {
		t.Errorf("checksums that would be 0: got %d, want one in each direction", zeros)
	}
}

func TestOffloadLeavesChecksumOut(t *testing.T) {
	o := newOffload(t)
	in := frame(peer, relay, sample(20))
	in[40], in[41] = 0, 0
	want := reply(server, from, channelData(number, sample(20), 0))
	want[40], want[41] = 0, 0
	check(t, o, "data without a checksum", in, sent, want)
}

func TestOffloadPassesOtherPackets(t *testing.T) {
	o := newOffload(t)
	data := channelData(number, sample(40), 0)
	change := func(at int, b byte) []byte {
		f := frame(from, server, data)
		f[at] = b
		return f
	}
	longer := append([]byte{}, data...)
	longer[3] = 41
	for what, in := range map[string][]byte{
		"fragment":                     change(20, 0x20),
		"last fragment":                change(21, 1),
		"TCP":                          change(23, unix.IPPROTO_TCP),
		"IPv6":                         change(12, 0x86),
		"header with options":          change(14, 0x46),
		"length beyond the frame":      change(17, 255),
		"lengths of UDP and IP differ": change(39, 9),
		"another address":              change(33, 9),
		"another port of the server":   frame(from, netip.AddrPortFrom(server.Addr(), 80), data),
		"another client":               frame(peer, server, data),
		"another channel":              frame(from, server, channelData(number+1, sample(40), 0)),
		"data longer than the packet":  frame(from, server, longer),
		"4 bytes of padding":           frame(from, server, append(append([]byte{}, data...), 0, 0, 0, 0)),
		"a request":                    frame(from, server, append([]byte{0, 1, 0, 0}, make([]byte, 16)...)),
		"no header of a channel":       frame(from, server, []byte{0x40, 1, 0}),
		"another peer":                 frame(from, relay, sample(40)),
		"data that becomes too long":   frame(peer, relay, sample(1469)),
		"short frame":                  frame(from, server, nil)[:41],
	} {
		check(t, o, what, in, passed, in)
	}
	must(t, o.PutChannel(channelFor(-time.Second)))
	check(t, o, "data of a client on a channel that has ended", frame(from, server, data), passed, frame(from, server, data))
	check(t, o, "data of a peer on a channel that has ended", frame(peer, relay, data), passed, frame(peer, relay, data))
	must(t, o.PutChannel(channelFor(time.Hour)))
	must(t, o.Enable(loopback, false))
	check(t, o, "interface without offload", frame(from, server, data), passed, frame(from, server, data))
	counters, err := o.Counters()
	if got := counters[ClientChannel{from, number}]; err != nil || got != (Counters{}) {
		t.Errorf("counters: got %+v, error %v, want zeros", got, err)
	}
}

func TestEntries(t *testing.T) {
	o := newOffload(t)
	end := time.Now().Add(time.Hour)
	must(t, o.PutAllocation(&Allocation{from, relay, "1764000000:user", end}))
	must(t, o.PutPermission(&Permission{from, peer.Addr(), end}))
	near := func(got time.Time) bool { return got.Sub(end).Abs() < time.Second }
	allocations, err := o.Allocations()
	if err != nil || len(allocations) != 1 || !near(allocations[0].Expires) {
		t.Fatalf("allocations: got %v, error %v, want one that ends at %v", allocations, err, end)
	}
	allocations[0].Expires = end
	if want := (Allocation{from, relay, "1764000000:user", end}); allocations[0] != want {
		t.Errorf("allocation: got %v, want %v", allocations[0], want)
	}
	permissions, err := o.Permissions()
	if err != nil || len(permissions) != 1 || permissions[0].Client != from || permissions[0].Peer != peer.Addr() || !near(permissions[0].Expires) {
		t.Errorf("permissions: got %v, error %v, want one of %s for %s", permissions, err, from, peer)
	}
	channels, err := o.Channels()
	if err != nil || len(channels) != 1 || channels[0].ClientChannel != (ClientChannel{from, number}) || channels[0].Peer != peer ||
		channels[0].Relay != relay || !near(channels[0].Expires) {
		t.Errorf("channels: got %v, error %v, want one of %s", channels, err, from)
	}
	long := make([]byte, 65)
	if err := o.PutAllocation(&Allocation{from, relay, string(long), end}); err == nil {
		t.Error("username of 65 bytes: got no error, want one")
	}
}

// Sweep keeps live entries, and removes those that have ended. An entry without its parent stays for one sweep.
func TestSweep(t *testing.T) {
	o := newOffload(t)
	sweeper := NewSweeper(o)
	end, ended := time.Now().Add(time.Minute), time.Now().Add(-time.Minute)
	must(t, o.PutAllocation(&Allocation{from, relay, "user", end}))
	must(t, o.PutPermission(&Permission{from, peer.Addr(), end}))
	expect := func(what string, want int) {
		t.Helper()
		if got, err := sweeper.Sweep(); err != nil || got != want {
			t.Errorf("sweep, %s: got %d entries, error %v, want %d", what, got, err, want)
		}
	}
	expect("nothing has ended", 0)
	expect("nothing has ended", 0)
	must(t, o.PutChannel(&Channel{ClientChannel{peer, number}, from, relay, ended}))
	must(t, o.PutAllocation(&Allocation{peer, relay, "user", ended}))
	must(t, o.PutPermission(&Permission{from, server.Addr(), ended}))
	expect("a channel, an allocation and a permission have ended", 3)
	must(t, o.DeleteAllocation(from))
	must(t, remove(o.objects.TurnUpstream, o.flow(from, number)))
	expect("a permission and counters are alone", 0)
	expect("a permission and counters are alone again", 2)
	expect("nothing is left", 0)
}
