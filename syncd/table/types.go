package table

import (
	"cmp"
	"math"
)

// Owner names the process that wrote a record: a node and its incarnation.
type Owner struct {
	// Node is the name of the node.
	Node string
	// Incarnation is the wall clock in nanoseconds at which the process started.
	Incarnation uint64
}

// Compare orders owners by node, then by incarnation. It returns a negative
// number, zero or a positive number as o is below, equal to or above p.
func (o Owner) Compare(p Owner) int {
	if c := cmp.Compare(o.Node, p.Node); c != 0 {
		return c
	}
	return cmp.Compare(o.Incarnation, p.Incarnation)
}

// OwnerID is an interned Owner. It is valid within the Table that gave it out.
type OwnerID uint16

// NoOwner is what Intern returns when it can hold no more owners. A delta that
// names it is refused.
const NoOwner OwnerID = math.MaxUint16

// Version is a hybrid logical clock in nanoseconds. Zero means that nobody has
// claimed the record yet.
type Version uint64

// maxVersion bounds what a peer may send: far beyond any clock, and low enough
// that arithmetic on it cannot overflow.
const maxVersion Version = 1 << 62

// Ref names a record. It is valid inside the Tx that returned it, and later
// only together with the Version that it was read with.
type Ref uint32

// Op is the operation of a local change.
type Op uint8

// The operations, numbered like those of the capture events.
const (
	// OpUpdate creates or replaces a key.
	OpUpdate Op = iota
	// OpDelete removes a key.
	OpDelete
	// OpEvict is the removal of a key by an LRU map that needed room.
	OpEvict
)

// String returns the operation's name.
func (o Op) String() string {
	return name(opNames[:], int(o))
}

// Context tells who made a local change.
type Context uint8

// The contexts, numbered like those of the capture events.
const (
	// ContextPacket is a BPF program that served a packet.
	ContextPacket Context = iota
	// ContextProcess is a BPF program that ran for a process, such as an egress
	// or cgroup hook.
	ContextProcess
	// ContextSyscall is a bpf(2) call of the control plane or a collector.
	ContextSyscall
	// ContextOwn is this daemon's own writer.
	ContextOwn
	// ContextReread is no event at all, but what was found when the key was read
	// from the kernel map: present (OpUpdate) or absent (OpDelete).
	ContextReread
)

// String returns the context's name.
func (c Context) String() string {
	return name(contextNames[:], int(c))
}

// Outcome tells what became of a change or delta.
type Outcome uint8

// The outcomes.
const (
	// Accepted changes are in the table, at the tail of the order.
	Accepted Outcome = iota
	// Unchanged says that the table already held just that.
	Unchanged
	// Stale changes are older than what the table holds.
	Stale
	// Restored says that a peer's record vanished here without that peer's
	// doing: it stays as it is and goes back into the kernel map.
	Restored
	// Refused changes do not fit: the table is full, a size is wrong, or a
	// version or owner is impossible. Each is counted.
	Refused
	// Defended: the delta is above the record and does not replace it. See strangers.go.
	Defended
	// Ignored changes are none: own writes, evictions, and rereads of a record
	// that is still to be written.
	Ignored
)

// String returns the outcome's name.
func (o Outcome) String() string {
	return name(outcomeNames[:], int(o))
}

var (
	opNames      = [...]string{"update", "delete", "evict"}
	contextNames = [...]string{"packet", "process", "syscall", "own", "reread"}
	outcomeNames = [...]string{"accepted", "unchanged", "stale", "restored", "refused", "defended", "ignored"}
)

func name(names []string, i int) string {
	if i < len(names) {
		return names[i]
	}
	return "unknown"
}

// Change is one local change, as an event or a reread reports it. Key and Value
// are borrowed for the call.
type Change struct {
	// Key is the key, KeySize bytes.
	Key []byte
	// Value is the new value, ValueSize bytes; nil for deletes and evictions.
	Value []byte
	// Time is the wall clock in nanoseconds at which the kernel saw the change.
	// Of a reread it is the time just before the read.
	Time int64
	// CPU is where the change was made. The order of events is that of the map
	// only among those of one CPU.
	CPU uint16
	// Op is what was done.
	Op Op
	// Context tells who did it.
	Context Context
	// Read is the reading that a reread's or a scan's Change comes from. Nil: Time alone
	// decides whether it is older than what the table holds.
	Read *Reading
}

// Delta is one record as a peer sent it. Key and Value are borrowed for the
// call.
type Delta struct {
	// Key is the key, KeySize bytes.
	Key []byte
	// Value is the value, ValueSize bytes; ignored when Delete is set.
	// Where Keep says so it is written to.
	Value []byte
	// Version is the record's version, never 0.
	Version Version
	// Owner is who wrote the record, interned in this table.
	Owner OwnerID
	// Delete marks a tombstone.
	Delete bool
	// Expired marks a tombstone of a record that its owner's LRU map evicted and that the owner
	// has given up. It does not delete the kernel's entry. It implies Delete.
	Expired bool
	// Keep are the parts of Value that the delta does not tell. A live record
	// keeps its own there, which the merge copies into Value.
	Keep []Range
}

// RemoteOptions says how to merge a delta.
type RemoteOptions struct {
	// Touch moves a record to the tail of the order even when the delta brings
	// nothing new, unless it is a tombstone. A full sync sets it, so that Sweep can find the
	// records that the peer no longer has.
	Touch bool
	// Repair says that peers compare what they hold, and that the owner of the delta may not have
	// received a delete: the node that forgot it was its only sender. A newer tombstone
	// here becomes this node's, so that it is sent to all.
	Repair bool
	// Sender is the peer that sent the delta, any of its incarnations. Zero: none.
	Sender OwnerID
	// Replace says what a delta may put right that is not above the record.
	Replace Replace
}

// Replace is how much a peer knows of a record, more than by its version: peers that
// compared what they hold have found that this node has lost or changed some of it.
type Replace uint8

const (
	// ReplaceNothing is the rule of versions.
	ReplaceNothing Replace = iota
	// ReplaceSame is for a peer that speaks for an owner who cannot: what has the
	// record's version and owner should be the same as the record, and replaces it.
	ReplaceSame
	// ReplaceOwn is for the owner itself: a record in its name should be no other
	// than it says, whatever the version.
	ReplaceOwn
)

// Record is a view of one record. Key and Value are borrowed from the table and
// valid until the Tx ends or changes the record.
type Record struct {
	// Key is the key, KeySize bytes.
	Key []byte
	// Value is the value, ValueSize bytes; nil for a tombstone.
	Value []byte
	// Version is the record's version; 0 if nobody has claimed it yet.
	Version Version
	// Owner is who wrote it.
	Owner OwnerID
	// Delete marks a tombstone.
	Delete bool
	// Expired marks a tombstone of a record that was given up after an eviction, not deleted.
	Expired bool
	// Position is its place in the order; 0 for an unversioned record.
	Position uint64
	// Ref names the record for Applied.
	Ref Ref
	// Dirty says that the kernel map does not hold the record yet.
	Dirty bool
}
