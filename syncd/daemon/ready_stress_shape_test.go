package daemon_test

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"testing"

	"mapsync/internal/race"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// shape describes the maps of a cluster.
type shape struct {
	key, value int // sizes in bytes
	flows      int // number of flows at each of two peers
	salts      []uint32
	// slow makes each write to the joiner's kernel map slower than all steps before it. The hash
	// of the map is predictable, and the flows share few of its buckets.
	slow bool
}

func randomShape(r *rand.Rand) shape {
	s := shape{key: []int{8, 20, 48}[r.IntN(3)], value: []int{8, 176, 1000, 4000}[r.IntN(4)], slow: r.IntN(2) == 0}
	most := min(25_000, 24<<20/s.value)
	if race.Enabled {
		most /= 8
	}
	s.flows = 1 + r.IntN(most)
	s.salts = make([]uint32, 2*s.flows)
	if s.slow {
		s.collide()
	}
	return s
}

func (s *shape) room() int { return 3 * s.flows }

// newMap creates a map for the joiner.
func (s *shape) newMap() (*ebpf.Map, error) {
	spec := &ebpf.MapSpec{
		Name: "ct", Type: ebpf.Hash, KeySize: uint32(s.key), ValueSize: uint32(s.value), MaxEntries: uint32(s.room()),
	}
	if s.slow {
		spec.Flags = unix.BPF_F_ZERO_SEED
	}
	return ebpf.NewMap(spec)
}

// collide searches salts that put 256 flows into each used bucket.
func (s *shape) collide() {
	const perBucket = 256
	buckets := uint32(1) << bits.Len(uint(s.room()-1))
	used := uint32(len(s.salts)/perBucket + 1)
	words := make([]uint32, s.key/4)
	for flow := range s.salts {
		words[0] = uint32(flow)
		for words[1] = 0; jhash2(words)&(buckets-1) >= used; {
			words[1]++
		}
		s.salts[flow] = words[1]
	}
}

// fillEntry sets the key of a flow, and the value after change number. Each word of the value
// contains the number.
func (s *shape) fillEntry(key, value []byte, flow int, number uint64) {
	clear(key)
	binary.LittleEndian.PutUint32(key, uint32(flow))
	binary.LittleEndian.PutUint32(key[4:], s.salts[flow])
	for at := 0; at < len(value); at += 8 {
		binary.LittleEndian.PutUint64(value[at:], number)
	}
}

// content returns the number of the last change of each flow in a map. It fails if a value
// contains several numbers.
func (s *shape) content(t *testing.T, m *ebpf.Map) map[int]uint64 {
	t.Helper()
	content := make(map[int]uint64)
	var key, value []byte
	want := make([]byte, s.value)
	entries := m.Iterate()
	for entries.Next(&key, &value) {
		flow, number := int(binary.LittleEndian.Uint32(key)), binary.LittleEndian.Uint64(value)
		s.fillEntry(key, want, flow, number)
		if !bytes.Equal(value, want) {
			t.Errorf("value of flow %d: got parts of several changes, want one change", flow)
		}
		content[flow] = number
	}
	if err := entries.Err(); err != nil {
		t.Fatal(err)
	}
	return content
}

// jhash2 is the hash of a key of whole words in a hash map with seed 0 (include/linux/jhash.h).
func jhash2(k []uint32) uint32 {
	a := 0xdeadbeef + uint32(4*len(k))
	b, c := a, a
	rol := bits.RotateLeft32
	for ; len(k) > 3; k = k[3:] {
		a, b, c = a+k[0], b+k[1], c+k[2]
		a = a - c ^ rol(c, 4)
		c += b
		b = b - a ^ rol(a, 6)
		a += c
		c = c - b ^ rol(b, 8)
		b += a
		a = a - c ^ rol(c, 16)
		c += b
		b = b - a ^ rol(a, 19)
		a += c
		c = c - b ^ rol(b, 4)
		b += a
	}
	for i, w := range k {
		*[]*uint32{&a, &b, &c}[i] += w
	}
	c = c ^ b - rol(b, 14)
	a = a ^ c - rol(c, 11)
	b = b ^ a - rol(a, 25)
	c = c ^ b - rol(b, 16)
	a = a ^ c - rol(c, 4)
	b = b ^ a - rol(a, 14)
	return c ^ b - rol(b, 24)
}
