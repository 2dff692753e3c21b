package replicate

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

// maxSamples bounds the memory of when a map's head was where.
const maxSamples = 1024

// localMap is a map of this node. It is replaced, not changed, when a map of
// the same name comes again.
type localMap struct {
	name       string
	layout     Layout
	access     Access
	wire       *mapsyncv1.Schema // as peers are told it
	codec      *schema.Encoder
	table      *table.Table
	generation uint64
	memory     memory
	// sources are the live peers from which this map is received, and was to the end.
	sources atomic.Pointer[[]string]
	// settled says that everything that this node requested of peers has been received.
	settled atomic.Bool
	// viewed is the view under which roles were decided last. Replicator.mu guards it.
	viewed *view
	unsent exceptions  // records whose keys cannot be encoded
	keys   wirePrinter // of this map's own keys on the wire

	mu      sync.Mutex
	samples []headSample
}

// headSample says that the table's head had reached a position by some time.
type headSample struct {
	position uint64
	at       time.Time
}

// newLocalMap checks that a map can be replicated. Its errors wrap ErrMap.
func newLocalMap(name string, layout Layout, t *table.Table) (*localMap, error) {
	switch {
	case layout.KeySize != t.KeySize() || layout.ValueSize != t.ValueSize():
		return nil, fmt.Errorf("add map %q with %d+%d bytes on a table of %d+%d bytes: %w", name,
			layout.KeySize, layout.ValueSize, t.KeySize(), t.ValueSize(), ErrMap)
	case layout.KeySize+layout.ValueSize > maxEntryBytes:
		return nil, fmt.Errorf("add map %q with entries of %d bytes, more than %d: %w", name,
			layout.KeySize+layout.ValueSize, maxEntryBytes, ErrMap)
	}
	if err := checkName(name); err != nil {
		return nil, fmt.Errorf("add map %q: %w: %w", name, ErrMap, err)
	}
	if layout.Schema == nil {
		layout.Schema = schema.FromSizes(name, layout.KeySize, layout.ValueSize)
	}
	m := &localMap{name: name, layout: layout, table: t}
	m.sources.Store(new([]string))
	if err := m.compile(); err != nil {
		return nil, fmt.Errorf("add map %q: %w: %w", name, ErrMap, err)
	}
	return m, nil
}

// compile checks that entries of the schema can be sent.
func (m *localMap) compile() error {
	s := m.layout.Schema
	if err := s.Check(); err != nil {
		return fmt.Errorf("check schema: %w", err)
	}
	if s.Key.Size != m.layout.KeySize || s.Value.Size != m.layout.ValueSize {
		return fmt.Errorf("use a schema of %d+%d bytes for entries of %d+%d", s.Key.Size, s.Value.Size, m.layout.KeySize, m.layout.ValueSize)
	}
	var err error
	if m.codec, err = schema.NewEncoder(s, m.layout.Links); err != nil {
		return fmt.Errorf("compile encoder: %w", err)
	}
	if n := m.codec.MaxKey() + m.codec.MaxValue(); n > maxEncodedBytes {
		return fmt.Errorf("send entries of up to %d bytes, more than %d", n, maxEncodedBytes)
	}
	m.wire = toProto(s)
	m.keys = newWirePrinter(s)
	if n := proto.Size(m.wire); n > maxSchemaBytes {
		return fmt.Errorf("send schema of %d bytes, more than %d", n, maxSchemaBytes)
	}
	return nil
}

// sampleLag notes the head of the table, for lagSince.
func (m *localMap) sampleLag(now time.Time) {
	head := m.head()
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := len(m.samples); n > 0 && m.samples[n-1].position == head {
		return
	}
	if len(m.samples) == maxSamples {
		// Half the resolution lasts twice as long.
		for i := range maxSamples / 2 {
			m.samples[i] = m.samples[2*i+1]
		}
		m.samples = m.samples[:maxSamples/2]
	}
	m.samples = append(m.samples, headSample{head, now})
}

// lagSince returns how old the oldest change above a position is, as far as the
// samples tell.
func (m *localMap) lagSince(position uint64, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, _ := slices.BinarySearchFunc(m.samples, position, func(s headSample, p uint64) int {
		if s.position > p {
			return 1
		}
		return -1
	})
	if i == len(m.samples) {
		return 0
	}
	return max(0, now.Sub(m.samples[i].at))
}

func (m *localMap) head() (head uint64) {
	m.table.View(func(tx *table.Tx) { head = tx.Head() })
	return head
}

// owners returns the nodes that own records, or did.
func (m *localMap) owners() (nodes []string) {
	m.table.View(func(tx *table.Tx) {
		tx.Owners(func(o table.Owner) { nodes = append(nodes, o.Node) })
	})
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

func (l Layout) proto() *mapsyncv1.Layout {
	typ := mapsyncv1.MapType_MAP_TYPE_HASH
	if l.LRU {
		typ = mapsyncv1.MapType_MAP_TYPE_LRU_HASH
	}
	return &mapsyncv1.Layout{KeySize: uint32(l.KeySize), ValueSize: uint32(l.ValueSize), Type: typ}
}
