package replicate

import (
	"errors"

	"mapsync/syncd/table"
)

// errLimit is why a record above the table's limit is not held.
var errLimit = errors.New("the table holds as many records as max-records-factor allows")

// addLimited counts a record that was rejected because of the table's limit, and remembers the
// first of them. noteRejected logs them.
func (e *exceptions) addLimited(key []byte, version table.Version, owner table.Owner) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.above++
	if e.limits >= maxListedExceptions || len(key) > maxExceptionKey {
		return
	}
	x := e.insert(key) // settle has removed an earlier one
	e.limits++
	*x = exception{version: version, owner: owner, reason: reasonOf(errLimit), walk: e.walk, limit: true}
}

// setLimited notes how many records of the peer are above the table's limit.
func (e *exceptions) setLimited(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.above = n
	for key, x := range e.byKey {
		if n == 0 && x.limit {
			e.drop(key)
		}
	}
}

// limited returns how many records of the peer are above the table's limit.
func (e *exceptions) limited() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.above
}

// drop forgets an entry. The lock is held.
func (e *exceptions) drop(key string) {
	if e.byKey[key].limit {
		e.limits--
	}
	delete(e.byKey, key)
}

// countLimited counts the records above the limit anew: what the peer has more than this node.
func (in *intake) countLimited(r *outcome) {
	if in.excepted.limited() == 0 {
		return
	}
	n := 0
	for i := range r.all {
		n += max(0, r.all[i].sums.Live-r.all[i].mine.Live)
	}
	if in.excepted.setLimited(n); n == 0 {
		in.limitLogged = false
	}
}

// excused reports whether the peer has sent everything, and more than this node's table may hold.
// Digests then cannot agree, and are not waited for. The lock is held.
func (in *intake) excused() bool {
	return in.synced && (in.state == StateSyncing || in.state == StateCaughtUp) && in.excepted.limited() > 0
}

// Limited returns the live peers that have more records of a map than its table may hold, with
// their numbers.
func (r *Replicator) Limited(name string) map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	peers := make(map[string]int)
	for node := range r.view.Load().live {
		l := r.links[node]
		l.mu.Lock()
		if in := l.intakes[name]; in != nil && in.excused() {
			peers[node] = in.excepted.limited()
		}
		l.mu.Unlock()
	}
	return peers
}
