package daemon_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/daemon"
	"mapsync/syncd/problem"

	"github.com/cilium/ebpf"
)

// The sessions of these tests have the id of a backend, and the affinities that of a service in the key.
var (
	sessionKey    = layout{{"addr", 4}, {"port", 4}}
	sessionValue  = layout{{"state", 4}, {"backend", 4}}
	affinityKey   = layout{{"client", 4}, {"service", 2}, {"zone", 2}}
	affinityValue = layout{{"used", 4}, {"backend", 4}}
	backendKey    = layout{{"id", 4}}
	backendValue  = layout{{"address", 4}, {"port", 2}, {"flags", 2}}
	serviceKey    = layout{{"id", 2}}
	serviceValue  = layout{{"vip", 4}, {"port", 2}, {"rest", 2}}
)

const (
	manyBackends = 20
	manySessions = 200
)

// idNode is a node whose load balancer assigns the ids of backends and services itself.
type idNode struct {
	*node
	sessions, affinities, backends, services *ebpf.Map
	backendPin                               string
	// ids are the ids of the backends and of the services, by number.
	backendIDs, serviceIDs []uint64
}

// newIDNodes returns two nodes with all maps. Their ids differ.
func newIDNodes(t *testing.T) (nodes [2]*idNode) {
	t.Helper()
	dir := pinDir(t)
	for i := range nodes {
		pin := func(name string) string { return filepath.Join(dir, fmt.Sprint(name, i)) }
		n := &idNode{node: newNode(t, i+1, "ct="+pin("ct"), "aff="+pin("aff")), backendPin: pin("backends")}
		n.sessions, n.affinities = typed(t, pin("ct"), sessionKey, sessionValue, 1000), typed(t, pin("aff"), affinityKey, affinityValue, 1000)
		n.backends, n.services = typed(t, n.backendPin, backendKey, backendValue, 1000), typed(t, pin("services"), serviceKey, serviceValue, 1000)
		c := &n.config
		c.Referenced = []string{"backends=" + pin("backends"), "services=" + pin("services")}
		c.Fields = []string{
			"ct:backend=ref:backends[address,port]", "aff:backend=ref:backends[address,port]", "aff:key.service=ref:services[vip,port]",
			"backends:address=ipv4", "services:vip=ipv4",
		}
		c.ScanInterval, c.MaxScanInterval = 100*time.Millisecond, 100*time.Millisecond
		n.number(uint64(1+10*i), uint64(1+100*i))
		nodes[i] = n
	}
	return nodes
}

// number gives the backends the ids from first on, and the services those from service on, in the order of their numbers. The former ids are removed.
func (n *idNode) number(first, service uint64) {
	n.t.Helper()
	for k := range n.backendIDs {
		_ = n.backends.Delete(backendKey.bytes(map[string]uint64{"id": n.backendIDs[k]}))
		_ = n.services.Delete(serviceKey.bytes(map[string]uint64{"id": n.serviceIDs[k]}))
	}
	n.backendIDs, n.serviceIDs = nil, nil
	for k := range uint64(manyBackends) {
		n.backendIDs = append(n.backendIDs, first+k)
		n.serviceIDs = append(n.serviceIDs, service+k)
	}
	n.writeReferenced()
}

// shuffle gives all backends and services other ids.
func (n *idNode) shuffle(r *rand.Rand) {
	n.t.Helper()
	for _, ids := range [][]uint64{n.backendIDs, n.serviceIDs} {
		r.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	}
	n.writeReferenced()
}

func (n *idNode) writeReferenced() {
	n.t.Helper()
	for k := range uint64(manyBackends) {
		n.put(n.backends, backendKey.bytes(map[string]uint64{"id": n.backendIDs[k]}), backendOf(k))
		n.put(n.services, serviceKey.bytes(map[string]uint64{"id": n.serviceIDs[k]}), serviceValue.bytes(map[string]uint64{"vip": k << 24, "port": 80}))
	}
}

// backendOf returns the value of a backend: its address is 10.0.0.k.
func backendOf(k uint64) []byte {
	return backendValue.bytes(map[string]uint64{"address": 10 | k<<24, "port": 8080})
}

func (n *idNode) put(m *ebpf.Map, key, value []byte) {
	n.t.Helper()
	if err := m.Put(key, value); err != nil {
		n.t.Fatal(err)
	}
}

// write writes all sessions and affinities with a state. Each has the backend, and the service, of its number.
func (n *idNode) write(state uint64) {
	n.t.Helper()
	for i := range uint64(manySessions) {
		backend, service := n.backendIDs[i%manyBackends], n.serviceIDs[i%manyBackends]
		n.put(n.sessions, sessionKey.bytes(map[string]uint64{"addr": i, "port": 443}), sessionValue.bytes(map[string]uint64{"state": state, "backend": backend}))
		n.put(n.affinities, affinityKey.bytes(map[string]uint64{"client": i, "service": service}), affinityValue.bytes(map[string]uint64{"used": state, "backend": backend}))
	}
}

// wrong returns how many entries lack their meaning, and the first of them.
func (n *idNode) wrong(state uint64) (count int, first string) {
	n.t.Helper()
	note := func(text string) {
		if count++; first == "" {
			first = text
		}
	}
	entries := 0
	var key, value []byte
	for it := n.sessions.Iterate(); it.Next(&key, &value); entries++ {
		i, got, backend := uint64(binary.LittleEndian.Uint32(key)), binary.LittleEndian.Uint32(value), binary.LittleEndian.Uint32(value[4:])
		if want := n.backendIDs[i%manyBackends]; uint64(backend) != want || uint64(got) != state {
			note(fmt.Sprintf("session %d has state %d and backend %d, want %d and %d", i, got, backend, state, want))
		}
	}
	for it := n.affinities.Iterate(); it.Next(&key, &value); entries++ {
		i, service := uint64(binary.LittleEndian.Uint32(key)), binary.LittleEndian.Uint16(key[4:])
		got, backend := binary.LittleEndian.Uint32(value), binary.LittleEndian.Uint32(value[4:])
		if want, of := n.backendIDs[i%manyBackends], n.serviceIDs[i%manyBackends]; uint64(backend) != want || uint64(service) != of || uint64(got) != state {
			note(fmt.Sprintf("affinity %d has state %d, service %d and backend %d, want %d, %d and %d", i, got, service, backend, state, of, want))
		}
	}
	if missing := 2*manySessions - entries; missing != 0 {
		note(fmt.Sprintf("%d entries, want %d", entries, 2*manySessions))
	}
	return count, first
}

func (n *idNode) wantMeanings(when string, state uint64) {
	n.t.Helper()
	first := ""
	defer func() {
		if first != "" {
			n.t.Log(n.config.NodeName, first)
		}
	}()
	poll.Eventually(n.t, when+": each entry has its meaning", func() bool {
		var count int
		count, first = n.wrong(state)
		return count == 0
	})
}

// TestReferencesBetweenNodes has the ids of backends and services differ between nodes, and change on one of them under load.
func TestReferencesBetweenNodes(t *testing.T) {
	nodes := newIDNodes(t)
	a, b := nodes[0], nodes[1]
	startPair(t, a.node, b.node)
	a.write(1)
	b.wantMeanings("other ids", 1)

	// The load balancer of b renumbers again and again, while that of a changes its entries.
	r := rand.New(rand.NewPCG(1, 2))
	for state := range uint64(10) {
		a.write(2 + state)
		b.shuffle(r)
		time.Sleep(time.Duration(r.IntN(200)) * time.Millisecond) // any phase of a scan
	}
	b.wantMeanings("renumbered", 11)
	a.wantMeanings("the owner", 11)
	poll.Eventually(t, "the nodes are in sync", func() bool { return a.inSync() && b.inSync() })
	for _, owner := range strings.Fields(b.owners()) {
		if owner == "n2" {
			t.Fatal("an entry that b has only renumbered: got the owner n2, want n1")
		}
	}
	// dump shows meanings.
	found := false
	err := b.client.Entries(t.Context(), "aff", daemon.EntryQuery{Form: daemon.FormText, Where: []string{"client=3"}}, func(e *daemon.Entry) error {
		found = true
		if want := "service=vip=0.0.0.3,port=80"; !strings.Contains(string(e.Key), want) {
			t.Errorf("key: got %s, want %s", string(e.Key), want)
		}
		if want := "backend=address=10.0.0.3,port=8080"; !strings.Contains(string(e.Value), want) {
			t.Errorf("value: got %s, want %s", string(e.Value), want)
		}
		return nil
	})
	if err != nil || !found {
		t.Errorf("dump: got an entry %t and error %v, want one", found, err)
	}

	// Its raw form has the ids of this node.
	err = b.client.Entries(t.Context(), "ct", daemon.EntryQuery{Form: daemon.FormRaw, Where: []string{"addr=3"}}, func(e *daemon.Entry) error {
		_, value, err := e.Bytes()
		if got := binary.LittleEndian.Uint32(value[4:]); err == nil && uint64(got) != b.backendIDs[3] {
			t.Errorf("raw value: got the id %d, want %d", got, b.backendIDs[3])
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}

	// b takes over and changes the sessions: the backends are those of a.
	a.stop()
	b.write(20)
	a.number(500, 700)
	for _, m := range []*ebpf.Map{a.sessions, a.affinities} {
		clearMap(t, m) // its load balancer begins anew
	}
	a.start()
	poll.Eventually(t, "a is back", func() bool { return a.status().Ready && b.status().Ready })
	a.wantMeanings("a restart with other ids", 20)
}

// inSync reports whether the peer agrees about all maps.
func (n *idNode) inSync() bool {
	peers := n.status().Peers
	return len(peers) == 1 && len(peers[0].Maps) == 2 && peers[0].Maps[0].Agreed && peers[0].Maps[1].Agreed
}

// TestUnknownReferences has referenced maps that lack entries, or that disappear.
func TestUnknownReferences(t *testing.T) {
	nodes := newIDNodes(t)
	a, b := nodes[0], nodes[1]
	if err := b.backends.Unpin(); err != nil {
		t.Fatal(err)
	}
	a.start()
	b.start()
	poll.Eventually(t, "maps wait for the referenced map", func() bool {
		s := b.status()
		return s.Maps[0].State == daemon.MapRefused && strings.Contains(s.Maps[0].Error, "referenced map backends: it does not exist yet")
	})
	a.write(1)
	lost := b.backendIDs[7]
	if err := b.backends.Delete(backendKey.bytes(map[string]uint64{"id": lost})); err != nil {
		t.Fatal(err)
	}
	if err := b.backends.Pin(b.backendPin); err != nil {
		t.Fatal(err)
	}
	b.shows("failed-writes", problem.Critical, "because a referenced map of this node lacks what their ids mean")
	poll.Eventually(t, "the owner shows what b lacks", func() bool {
		s := a.status()
		return len(s.Peers) == 1 && strings.Contains(fmt.Sprint(s.Problems), "not-held") || strings.Contains(fmt.Sprint(s.Problems), "redundancy")
	})
	b.put(b.backends, backendKey.bytes(map[string]uint64{"id": lost}), backendOf(7))
	b.wantMeanings("the backend has come", 1)
	b.ends("failed-writes")

	if err := b.backends.Unpin(); err != nil {
		t.Fatal(err)
	}
	b.shows("reference-unreadable", problem.Critical, "the referenced map backends is not read: no map is pinned at "+b.backendPin)
	a.write(2)
	b.wantMeanings("without the referenced map", 2)
	if err := b.backends.Pin(b.backendPin); err != nil {
		t.Fatal(err)
	}
	b.ends("reference-unreadable")
}

// clearMap deletes all entries of a map.
func clearMap(t *testing.T, m *ebpf.Map) {
	t.Helper()
	var keys [][]byte
	var key, value []byte
	for it := m.Iterate(); it.Next(&key, &value); {
		keys = append(keys, append([]byte(nil), key...))
	}
	for _, key := range keys {
		if err := m.Delete(key); err != nil {
			t.Fatal(err)
		}
	}
}
