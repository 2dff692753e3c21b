package replicate

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

// maxSamples bounds the samples of the head of a table.
const maxSamples = 1024

// localMap is a map of this node. A map that is removed and added again gets a new localMap.
type localMap struct {
	// The fields up to generation do not change once Replicator.maps has the localMap.

	// name is the name of the map on all nodes. Replicator.maps has at most one localMap with it.
	name string
	// layout has the sizes of table. newLocalMap checks it.
	layout Layout
	// access decides which nodes may read and write the map.
	access Access
	// wireSchema is the schema as it is sent to peers.
	wireSchema *mapsyncv1.Schema
	// schemaEncoder encodes the entries of the map.
	schemaEncoder *schema.Encoder
	// table is shared with the caller of AddMap, which may use it further after RemoveMap. Its own lock protects it.
	table *table.Table
	// generation identifies this map in positions. It is higher than that of any map added before.
	// UpdateAccess keeps it.
	generation uint64
	// begun reports that a stream has begun to send the table. The lock of the table guards it.
	begun bool
	// deliveries stores what each peer has received. It has its own lock.
	deliveries deliveries
	// scans limits how often each peer makes this node scan the table. It has its own lock.
	scans scanLimit
	// sweeps limits the subscriptions that may end with a sweep of the table, and handovers the changes of a handover, of each
	// peer. They have their own locks.
	sweeps, handovers scanLimit
	// unheldPeers are the peers that lack deletes, or records of their earlier incarnations. It has its own lock.
	unheldPeers unheldPeers
	// sources are the live peers from which this node receives the map and has received
	// everything, sorted.
	sources atomic.Pointer[[]string]
	// requestsComplete reports that this node has received all records that it requested from peers,
	// except from peers that have stalled.
	requestsComplete atomic.Bool
	// rolesView is the view under which roles were last decided. Replicator.mu guards it.
	rolesView *view
	// unsent are the records that cannot be encoded. It has its own lock.
	unsent exceptions
	// unsentDeletes are the deletes of keys whose interface is missing. Peers may have the records from the time before. While there
	// is one, acknowledgements of peers do not count. It has its own lock.
	unsentDeletes exceptions
	// sendable are keys that have left unsent because their records can be sent now. The table's lock guards it.
	sendable [][]byte
	// arrivals delays the acknowledgements of peers. Only the goroutine of Run uses it.
	arrivals arrivals
	// overflowHead is the head of the table plus 1 when forgetUnheldOverflow found that all records had been received; 0: they are not. Only
	// the goroutine of Run uses it.
	overflowHead uint64
	// keyPrinter formats encoded keys of this map.
	keyPrinter wirePrinter

	// mu guards samples.
	mu sync.Mutex
	// samples are ordered by position and time, at most maxSamples. Positions differ.
	samples []headSample
}

// headSample is the head of the table at some time.
type headSample struct {
	// position is the head of the table at the time at. It is above the position of the sample before.
	position uint64
	// at is the time of the sample. It is not before that of the sample before.
	at time.Time
}

// newLocalMap returns a localMap if the map can be replicated. The caller sets generation and
// access before it publishes the localMap. The errors wrap ErrMap.
//
// A new localMap has no deliveries. Peers then receive some records of other owners again.
func newLocalMap(name string, layout Layout, t *table.Table) (*localMap, error) {
	switch {
	case layout.KeySize != t.KeySize() || layout.ValueSize != t.ValueSize():
		return nil, fmt.Errorf("add map %q with %d+%d bytes on a table of %d+%d bytes: %w", name,
			layout.KeySize, layout.ValueSize, t.KeySize(), t.ValueSize(), ErrMap)
	case layout.KeySize+layout.ValueSize > maxEntryBytes:
		// A batch must have room for several entries.
		return nil, fmt.Errorf("add map %q with entries of %d bytes, more than %d: %w", name,
			layout.KeySize+layout.ValueSize, maxEntryBytes, ErrMap)
	}
	// Peers refuse the whole stream for a name that is malformed.
	if err := wire.CheckName(name); err != nil {
		return nil, fmt.Errorf("add map %q: %w: %w", name, ErrMap, err)
	}
	// Without a schema, keys and values are opaque bytes.
	if layout.Schema == nil {
		layout.Schema = schema.FromSizes(name, layout.KeySize, layout.ValueSize)
	}
	m := &localMap{name: name, layout: layout, table: t}
	// Streams read it before the first decision about roles, so it is never nil.
	m.sources.Store(new([]string))
	if err := m.compile(); err != nil {
		return nil, fmt.Errorf("add map %q: %w: %w", name, ErrMap, err)
	}
	return m, nil
}

// compile creates the encoder, and checks that entries and schema can be sent. An error here
// concerns the settings or the map itself. Whether a peer's schema fits is checked for each peer:
// see inboundMap.compile and outboundMap.checkSchema.
func (m *localMap) compile() error {
	s := m.layout.Schema
	if err := s.Check(); err != nil {
		return fmt.Errorf("check schema: %w", err)
	}
	if s.Key.Size != m.layout.KeySize || s.Value.Size != m.layout.ValueSize {
		return fmt.Errorf("use a schema of %d+%d bytes for entries of %d+%d", s.Key.Size, s.Value.Size, m.layout.KeySize, m.layout.ValueSize)
	}
	var err error
	if m.schemaEncoder, err = schema.NewEncoder(s, m.layout.Links); err != nil {
		return fmt.Errorf("compile encoder: %w", err)
	}
	// The largest entry must fit into one message, because entries are not divided.
	if n := m.schemaEncoder.MaxKey() + m.schemaEncoder.MaxValue(); n > maxEncodedBytes {
		return fmt.Errorf("send entries of up to %d bytes, more than %d", n, maxEncodedBytes)
	}
	m.wireSchema = wire.SchemaToProto(s)
	m.keyPrinter = newWirePrinter(s)
	// The schema is part of a request, which has a maximum size.
	if n := proto.Size(m.wireSchema); n > wire.MaxSchemaBytes {
		return fmt.Errorf("send schema of %d bytes, more than %d", n, wire.MaxSchemaBytes)
	}
	return nil
}

// newEncoder returns an encoder for batches of the map from the node self. It sets the options
// Origin, Schema and Unencodable. The encoder belongs to the goroutine that sends. noteUnsent runs
// inside of Add, with the table's lock held.
func (m *localMap) newEncoder(self table.Owner, opt wire.EncoderOptions) *wire.Encoder {
	opt.Origin, opt.Schema, opt.Unencodable = self, m.schemaEncoder, m.noteUnsent
	return wire.NewEncoder(opt)
}

// resendSendable sends the records again that can be sent now. The caller does not hold the table's lock.
func (m *localMap) resendSendable() {
	m.table.Update(func(tx *table.Tx) {
		m.resolveUnsentDeletes(tx)
		for _, key := range m.sendable {
			tx.Resend(key)
		}
		m.sendable = nil
	})
}

// sampleLag records the head of the table for lagSince. doHousekeeping calls it, so the resolution
// is housekeepingInterval while there is room for all samples. The table must not be locked.
func (m *localMap) sampleLag(now time.Time) {
	head := m.head()
	m.mu.Lock()
	defer m.mu.Unlock()
	// The head has not moved since the last sample.
	if n := len(m.samples); n > 0 && m.samples[n-1].position == head {
		return
	}
	if len(m.samples) == maxSamples {
		// Dropping every second sample halves the resolution and doubles the time that is covered.
		for i := range maxSamples / 2 {
			m.samples[i] = m.samples[2*i+1]
		}
		m.samples = m.samples[:maxSamples/2]
	}
	m.samples = append(m.samples, headSample{head, now})
}

// lagSince returns the age of the oldest change above a position, with the resolution of the
// samples. It returns 0 if no sample is above the position: the change is newer than the last
// sample, or there is none.
func (m *localMap) lagSince(position uint64, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	// The search returns the first sample above the position. The oldest change above it is not
	// newer than that sample.
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

// head returns the position of the newest change of the table. It takes the table's lock.
func (m *localMap) head() (head uint64) {
	m.table.View(func(tx *table.Tx) { head = tx.Head() })
	return head
}

// owners returns the names of the nodes that own records or have owned some, sorted. A node without
// records is left out once the table has reclaimed its ids. It takes the table's lock. The caller
// owns the slice.
func (m *localMap) owners() (nodes []string) {
	m.table.View(func(tx *table.Tx) {
		tx.Owners(func(o table.Owner) { nodes = append(nodes, o.Node) })
	})
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// proto returns the wire format of a layout. Peers only display it. The schemas decide whether two
// maps fit.
func (l Layout) proto() *mapsyncv1.Layout {
	typ := mapsyncv1.MapType_MAP_TYPE_HASH
	if l.LRU {
		typ = mapsyncv1.MapType_MAP_TYPE_LRU_HASH
	}
	return &mapsyncv1.Layout{KeySize: uint32(l.KeySize), ValueSize: uint32(l.ValueSize), Type: typ}
}
