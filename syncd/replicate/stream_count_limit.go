package replicate

import (
	"cmp"
	"strings"
)

// limitKey returns the key by which streams are counted: the certificate, or the node name in lower
// case without a trailing dot. A caller that opens streams under many node names with one
// certificate therefore has one limit. Without TLS, the node name is the key.
func (s *outboundStream) limitKey() string {
	return cmp.Or(s.caller.Certificate, strings.ToLower(strings.TrimSuffix(s.target.Node, ".")))
}

// evictStream ends one stream of a caller that already has maxStreams streams: the oldest one that
// observes, else the oldest one. Observers therefore cannot exclude a replica. Streams that have
// ended and are still registered do not count. The caller holds Replicator.mu. The evicted stream
// ends with errReplaced, and its peer retries.
func (r *Replicator) evictStream(limitKey string) {
	// The oldest observer is preferred over the oldest replica.
	same, oldest := 0, (*outboundStream)(nil)
	for o := range r.outboundStreams {
		if o.limitKey() != limitKey || o.isDone() {
			continue
		}
		same++
		if oldest == nil || (o.observing.Load() && !oldest.observing.Load()) ||
			(o.observing.Load() == oldest.observing.Load() && o.startedAt.Before(oldest.startedAt)) {
			oldest = o
		}
	}
	if same >= maxStreams {
		oldest.cancel(errReplaced)
	}
}

// isDone reports whether the stream was cancelled or has ended. Its goroutines may still be
// running.
func (s *outboundStream) isDone() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}
