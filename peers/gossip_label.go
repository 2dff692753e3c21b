package peers

import (
	"fmt"
	"io"
	"net"

	"github.com/hashicorp/memberlist"
)

// The name of the cluster is memberlist's label of packets and of the streams that a node opens. It is authenticated if gossip is
// encrypted. syncd checks it before memberlist: nodes of different clusters with the same keys would form one cluster, and only a
// node of the other cluster can have the cause in its log.

// labelHead is the first byte of a label. The length of the label in one byte and the label follow.
const labelHead = 244

// RejectCluster counts gossip of nodes of another cluster.
const RejectCluster = "cluster"

// clusterError is the error of a stream of the cluster with that name.
type clusterError string

func (clusterError) Error() string { return "gossip of another cluster" }

// checkLabel removes the label of a packet and compares it.
func (t *transport) checkLabel(p *memberlist.Packet) bool {
	rest, label, err := memberlist.RemoveLabelHeaderFromPacket(p.Buf)
	switch {
	case err != nil:
		t.limiter.rejectEncoding(p.From)
		return false
	case label != t.label:
		t.limiter.rejectCluster(p.From, label, t.label)
		return false
	}
	p.Buf = rest
	return true
}

// readLabel reads the label of a stream, and returns it and the byte after it.
func readLabel(from io.Reader) (label string, next byte, err error) {
	var b [256]byte
	if _, err := io.ReadFull(from, b[:1]); err != nil || b[0] != labelHead {
		return "", b[0], err
	}
	if _, err := io.ReadFull(from, b[:1]); err != nil {
		return "", 0, err
	}
	if b[0] == 0 {
		return "", 0, errEncoding
	}
	text := b[:int(b[0])+1]
	if _, err := io.ReadFull(from, text); err != nil {
		return "", 0, err
	}
	return string(text[:len(text)-1]), text[len(text)-1], nil
}

// rejectCluster counts and logs gossip of another cluster.
func (l *Limiter) rejectCluster(from net.Addr, there, here string) {
	l.mu.Lock()
	l.rejected[RejectCluster]++
	l.mu.Unlock()
	if l.logLimit.allow(RejectCluster + hostOf(from.String())) {
		l.log.Warn("gossip of another cluster rejected", "remote", from.String(), "problem", "cluster-differs",
			"error", fmt.Errorf("the setting cluster is %q there, and %q here", there, here), "hint", "correct join on that node, or cluster on one of the two")
	}
}
