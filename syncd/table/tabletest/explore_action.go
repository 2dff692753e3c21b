package tabletest

// exploreAction is one action: a kind, and up to two nodes. The kind is in the bits above the lowest
// four. The acting node is in two bits, its peer in the lowest two.
type exploreAction uint16

const (
	actWrite   exploreAction = iota << 4 // a write with an event on CPU 0
	actWrite1                            // the same on CPU 1
	actDelete                            // a delete by the data plane
	actDelete1                           // the same on CPU 1
	actCollect                           // a delete by bpf(2), as by a collector
	actHidden                            // a write without an event: in place, or the event is lost
	actHidden1                           // a delete without an event
	actEvict                             // the map evicts the key
	actEvent                             // an event of CPU 0 reaches the table
	actEvent1                            // an event of CPU 1 reaches the table
	actWork                              // the next part of the work of the writer
	actScan                              // the next part of a scan: read or enter
	actStart                             // the next part of a daemon's start, or a new membership view
	actCrash                             // a daemon ends
	actLostMap                           // a crash of the whole host
	actSend                              // the sender puts a batch on a stream
	actTake                              // the receiver takes the next batch
	actChange                            // a write and its event, at once
	actErase                             // a delete and its event, at once
	actCompact                           // all settled tombstones are compacted
	actFilter                            // the node begins or ends to filter the record of the key
	actClock                             // the wall clock is stepped beyond max-clock-ahead, or is right again
	actFollow                            // the daemon detects the step of the clock
	actRepeat                            // full syncs that filtered records have made due begin
	actLayout                            // the load balancer makes its map again with another layout
	actRekey                             // the digest key of the node changes
	actRepair                            // the node requests a repair of the key from each peer
	actExpire                            // entries that were taken over and are unused expire
)

// exploreNames are the verbs of the actions, in the order of their constants.
var exploreNames = [...]string{
	"writes", "writes on 1", "deletes", "deletes on 1", "collects", "writes unseen", "deletes unseen", "evicts",
	"delivers", "delivers on 1", "works", "scans", "starts up", "crashes", "loses its map", "sends", "takes", "changes", "erases", "compacts", "filters", "steps its clock", "follows its clock", "repeats full syncs",
	"changes its layout", "changes its digest key", "requests repairs", "expires unused entries",
}

// kind returns the action without its nodes.
func (a exploreAction) kind() exploreAction { return a &^ 15 }

// nodes returns the acting node and the node at the other end of a stream.
func (a exploreAction) nodes() (n, peer int) { return int(a >> 2 & 3), int(a & 3) }

// String returns the action as a short sentence, for the path that led to a failure.
func (a exploreAction) String() string {
	n, peer := a.nodes()
	text := string(rune('a'+n)) + " " + exploreNames[a>>4]
	switch a.kind() {
	case actSend:
		text += " to " + string(rune('a'+peer))
	case actTake:
		text += " from " + string(rune('a'+peer))
	}
	return text
}
