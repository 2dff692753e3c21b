package replicate

import (
	"errors"

	"mapsync/syncd/table"
)

// errAboveLimit is the reason for a record that the limit of the table has rejected. The status
// shows it as the reason of such an exception, and Resync wraps it.
var errAboveLimit = errors.New("the table holds as many records as max-records-factor allows")

// addAboveLimit counts a record that the limit of the table has rejected, unless it is counted, and stores the first
// maxListedExceptions of them. noteRejected logs them.
//
// Records above the limit count apart from other exceptions: there may be millions of them, and
// they must not use up the room for the others. The caller holds the table's lock.
func (e *exceptions) addAboveLimit(key []byte, version table.Version, owner table.Owner, counted bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !counted {
		e.aboveLimit++
	}
	if e.aboveLimitKeys >= maxListedExceptions || len(key) > maxExceptionKey {
		return
	}
	x := e.insert(key) // mergeOne has removed an earlier entry of the key
	e.aboveLimitKeys++
	*x = exception{version: version, owner: owner, reason: reasonOf(errAboveLimit), syncNumber: e.syncNumber, aboveLimit: true}
}

// setAboveLimit sets the number of the peer's records that are above the limit of the table. 0
// removes the stored ones. The receiving goroutine calls it after each comparison while the number
// is above 0, because deletes and evictions make room without a message about these records.
func (e *exceptions) setAboveLimit(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.aboveLimit = n
	for key, x := range e.byKey {
		if n == 0 && x.aboveLimit {
			e.remove(key)
		}
	}
}

// aboveLimitCount returns the number of the peer's records that are above the limit of the table.
// It is exact after a comparison. Before that, a record that is not stored counts twice if it is rejected twice.
func (e *exceptions) aboveLimitCount() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.aboveLimit
}

// remove removes an entry. The caller holds mu.
func (e *exceptions) remove(key string) {
	if e.byKey[key].aboveLimit {
		e.aboveLimitKeys--
	}
	delete(e.byKey, key)
}

// countAboveLimit counts the records above the limit again: the number that the peer has and this
// node has not. It is a lower bound, because this node may have records that the peer has not. The
// caller holds inboundStream.mu.
func (in *inboundMap) countAboveLimit(r *comparisonResult) {
	if in.exceptions.aboveLimitCount() == 0 {
		return
	}
	n := 0
	for i := range r.nodes {
		n += max(0, r.nodes[i].Digest.Live-r.nodes[i].local.Live)
	}
	// The next record above the limit is logged again.
	if in.exceptions.setAboveLimit(n); n == 0 {
		in.limitLogged = false
	}
}

// completeAboveLimit reports whether the peer has sent everything, and has more records than this
// node's table may hold. The digests then cannot agree, and syncd does not wait for them. The
// caller holds inboundStream.mu. A node with a table that is too small becomes ready nevertheless:
// it would otherwise never serve traffic. The status, metrics and the log report the records that
// it lacks.
func (in *inboundMap) completeAboveLimit() bool {
	return in.fullSyncDone && (in.state == StateSyncing || in.state == StateCaughtUp) && in.exceptions.aboveLimitCount() > 0
}

// PeersAboveLimit returns the live peers that have more records of a map than its table may hold,
// with the number of records above the limit. The result is empty if the map is unknown or has
// room. It takes Replicator.mu and then the lock of each inbound stream.
func (r *Replicator) PeersAboveLimit(name string) map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	peers := make(map[string]int)
	for node := range r.view.Load().live {
		s := r.inboundStreams[node]
		s.mu.Lock()
		if in := s.maps[name]; in != nil && in.completeAboveLimit() {
			peers[node] = in.exceptions.aboveLimitCount()
		}
		s.mu.Unlock()
	}
	return peers
}
