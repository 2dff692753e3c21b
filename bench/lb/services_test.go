package lb

import (
	"net/netip"
	"slices"
	"testing"
)

// TestFurtherServices checks that each service uses its own backends, with more services than the object's maps hold.
func TestFurtherServices(t *testing.T) {
	const further = 1100
	var cfg Config
	for i := range uint16(further) {
		cfg.More = append(cfg.More, Service{
			VIP:      netip.AddrPortFrom(testVIP.Addr(), 20000+i),
			Backends: []netip.AddrPort{netip.AddrPortFrom(testBackends[0].Addr(), 30000+i)},
		})
	}
	b := testBalancer(t, cfg)
	if backend := open(t, b, testClient); !slices.Contains(testBackends, backend) {
		t.Errorf("backend of the first service: got %s, want one of %s", backend, testBackends)
	}
	for i := range uint16(further) {
		client := netip.AddrPortFrom(testClient.Addr(), 1000+i%8)
		out := mustSend(t, b, segment{src: client, dst: cfg.More[i].VIP, flags: flagSYN, seq: 100})
		if out.dst != cfg.More[i].Backends[0] {
			t.Fatalf("backend of %s: got %s, want %s", cfg.More[i].VIP, out.dst, cfg.More[i].Backends[0])
		}
		mustSend(t, b, segment{src: client, dst: cfg.More[i].VIP, flags: flagRST, seq: 101})
	}
}
