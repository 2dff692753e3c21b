package tabletest

import "mapsync/syncd/table"

// request is a request of a receiver, of one of four kinds. The kind is that of the first field that is
// set: subscribe, unsubscribe or resend. Otherwise it requests orphaned records.
type request struct {
	index       int
	subscribe   bool
	sendAll     bool
	resume      bool
	position    uint64
	epoch       int // of the table that position belongs to
	unsubscribe bool
	resend      *table.BucketSet
	resendKey   uint64 // the DigestID to which the buckets belong
	orphaned    bool   // part of a subscription, or a request of its own
	again       bool   // also of records that the peer has sent, because the receiver has rejected them
	serial      int    // serial of the request for orphaned records
}

// message is a message of a sender.
type message struct {
	kind     messageKind
	index    int
	previous uint64
	position uint64
	epoch    int // of the table, with messageAccepted
	reset    bool
	end      bool   // nothing is left to send
	open     bool   // all records were sent (end is also set before sending begins): a digest follows
	passed   uint64 // of an open full sync that has sent all: the position at its end
	serial   int    // of the request that is satisfied
	deltas   []delta
	handover table.Handover // of the sender, with messageAccepted and messageHandover
}

// messageKind is the kind of a message, like those of SubscribeResponse.
type messageKind uint8

const (
	messagePending messageKind = iota
	messageAccepted
	messageBatch
	messageResentBatch
	messageResendDone
	messageLost
	messageRequested // requested records, out of order
	messageOwnersSent
	messageHandover
)

// delta is a record in a message, with its owner by name, because ids belong to one table.
type delta struct {
	key     int
	value   Value
	version table.Version
	owner   table.Owner
	dead    bool
	unsent  bool // the sender has the record and cannot send it
	// undecided: unsent, because the sender has not decided yet whether the entry has ended
	undecided bool
	vague     bool // the key lacks an interface, so that only its other fields count
	expired   bool
}
