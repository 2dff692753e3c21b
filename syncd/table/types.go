package table

import (
	"cmp"
	"math"
)

// Owner identifies the process that wrote a record: a node and its incarnation.
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

// OwnerID is an interned Owner. It is valid only for the Table that returned it.
type OwnerID uint16

// NoOwner is the result of Intern if the table cannot hold more owners. Remote refuses a delta with this
// owner.
const NoOwner OwnerID = math.MaxUint16

// Version is a hybrid logical clock in nanoseconds. Zero is the version of unversioned records.
type Version uint64

// maxVersion is the highest version that Remote accepts. It is beyond any clock, and arithmetic on it
// cannot overflow.
const maxVersion Version = 1 << 62

// Ref identifies a record. It is valid inside the Tx that returned it, and later only together with the
// Version of that time.
type Ref uint32

// Op is the operation of a local change.
type Op uint8

// The operations, numbered like those of the capture events.
const (
	// OpUpdate creates or replaces a key.
	OpUpdate Op = iota
	// OpDelete removes a key.
	OpDelete
	// OpEvict is the removal of a key by an LRU map that needed space.
	OpEvict
)

// String returns the operation's name.
func (o Op) String() string {
	return name(opNames[:], int(o))
}

// Context is the origin of a local change.
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
	// ContextOwn is syncd's own writer.
	ContextOwn
	// ContextReread is the result of a reread of the key from the kernel map, not an event. The key is
	// present (OpUpdate) or absent (OpDelete).
	ContextReread
)

// String returns the context's name.
func (c Context) String() string {
	return name(contextNames[:], int(c))
}

// Outcome is the result of entering a change or a delta.
type Outcome uint8

// The outcomes.
const (
	// Accepted: the change is in the table, at the tail of the order.
	Accepted Outcome = iota
	// Unchanged: the table already has the same content.
	Unchanged
	// Stale: the change is older than the record.
	Stale
	// Restored: a bpf(2) call or a reread shows a delete of a peer's record that the peer did not make. The
	// record stays as it is, and the writer restores the entry in the kernel map.
	Restored
	// Refused: the change does not fit, because the table is full, a size is wrong, or a version or owner
	// is impossible. Stats counts each such change.
	Refused
	// Defended: the delta is above the record and does not replace it. See unverified_owners.go.
	Defended
	// Ignored: the change does not modify the record. It is an own write, an eviction, or a reread of a
	// record that the writer has yet to write.
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

// name returns the name with index i, or "unknown".
func name(names []string, i int) string {
	if i < len(names) {
		return names[i]
	}
	return "unknown"
}

// Change is one local change, as an event or a reread reports it. Key and Value are borrowed for the call.
type Change struct {
	// Key is the key, KeySize bytes.
	Key []byte
	// Value is the new value, ValueSize bytes. It is nil for deletes and evictions.
	Value []byte
	// Time is the wall clock in nanoseconds at which the hook saw the change. For a reread it is the time
	// just before the read.
	Time int64
	// CPU is the CPU that made the change. Only the events of one CPU have the order in which the map
	// applied the changes.
	CPU uint16
	// Op is the operation.
	Op Op
	// Context is the origin of the change.
	Context Context
	// Read is the reading of a change that comes from a reread or a scan. Nil: only Time decides whether
	// the change is older than the record.
	Read *Reading
}

// Delta is one record as a peer sent it. Key and Value are borrowed for the call.
type Delta struct {
	// Key is the key, KeySize bytes.
	Key []byte
	// Value is the value, ValueSize bytes. It is ignored if Delete is set. The merge writes to the ranges
	// Keep.
	Value []byte
	// Version is the record's version, never 0.
	Version Version
	// Owner is the owner of the record, interned in this table.
	Owner OwnerID
	// Delete marks a tombstone.
	Delete bool
	// Expired marks a tombstone of a record that the owner's LRU map evicted and that the owner has
	// expired. It does not delete the kernel's entry. It implies Delete.
	Expired bool
	// Keep are the ranges of Value that the delta does not carry. A live record keeps its own bytes there.
	// The merge copies them into Value.
	Keep []Range
}

// RemoteOptions are the settings for the merge of a delta.
type RemoteOptions struct {
	// Touch moves a live record to the tail of the order even if the delta is not newer. A full sync sets
	// it, so that Sweep can find the records that the peer no longer has.
	Touch bool
	// Repair is true if peers compare their digests. The owner of the delta may then have missed a delete,
	// because the only sender of the delete has forgotten it. A newer tombstone in this table becomes this
	// node's, so that it is sent to all peers.
	Repair bool
	// Sender is the peer that sent the delta, with any of its incarnations. Zero: none.
	Sender OwnerID
	// Acknowledged is Absence.Acknowledged for the sender: it may not have received newer records of its earlier
	// incarnations above that position. It is not authoritative for those.
	Acknowledged uint64
	// Before is Absence.Before for an answer with Touch. The answer proves nothing about later records.
	Before uint64
	// Replace selects the deltas that replace a record although they are not above it.
	Replace Replace
}

// Replace is the precedence of a peer over a record, beyond its version. Peers use it after a digest
// comparison showed that this node has lost or changed some of the records.
type Replace uint8

const (
	// ReplaceNothing replaces no record: only versions decide.
	ReplaceNothing Replace = iota
	// ReplaceSameVersion is for a peer that sends records in place of their owner. A delta with the
	// record's version and owner replaces the record if the two differ.
	ReplaceSameVersion
	// ReplaceAnyVersion is for the owner itself. Its delta replaces a record of the same owner, whatever
	// the version.
	ReplaceAnyVersion
)

// Record is a view of one record. Key and Value are borrowed from the table and valid until the Tx ends or
// changes the record.
type Record struct {
	// Key is the key, KeySize bytes.
	Key []byte
	// Value is the value, ValueSize bytes; nil for a tombstone.
	Value []byte
	// Version is the record's version, 0 for an unversioned record.
	Version Version
	// Owner is the owner of the record.
	Owner OwnerID
	// Delete marks a tombstone.
	Delete bool
	// Expired marks a tombstone of a record that expired after an eviction and was not deleted.
	Expired bool
	// Inferred marks a tombstone that no node has sent: this node has concluded it from an answer of the
	// owner. It is not sent. It implies Delete.
	Inferred bool
	// Named marks an entry of the local map of which peers have only named the owner, which has not left: see NoteOwner. The
	// owner may have another value. It is not sent.
	Named bool
	// Undecided marks a restored record of this node whose entry the kernel map lacks, until the table decides whether the entry
	// has ended. It is not sent: a record that the owner sends replaces entries that other nodes have yet to adopt.
	Undecided bool
	// Position is the position of the record in the order, 0 for an unversioned record.
	Position uint64
	// Ref identifies the record for Applied and Displace.
	Ref Ref
	// Dirty is true if the writer has yet to write the record to the kernel map.
	Dirty bool
	// NoRoom is true if the map must not get another entry: the writer writes the record only if the map has an entry of the key,
	// and otherwise reports it like one that a full map has refused. Only NextDirty sets it. See room.go.
	NoRoom bool
}
