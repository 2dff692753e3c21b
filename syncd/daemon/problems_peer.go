package daemon

import (
	"cmp"
	"fmt"
	"net"
	"time"

	"mapsync/syncd/problem"
)

// peer adds the problems with a live peer.
func (f *finder) peer(p *PeerStatus) {
	add := func(text string) {
		f.add(problem.Problem{ID: "stream-missing", Peer: p.Node, Text: text, Remedy: cmp.Or(remedyOfRefusal(p.Error), openPort(p.Address))})
	}
	switch {
	case !p.Receiving && !p.Sending:
		add("no streams with the peer: " + orElse(p.Error, "none was established yet"))
	case !p.Receiving:
		add("no stream from the peer: " + orElse(p.Error, "none was established yet"))
	case !p.Sending:
		f.add(problem.Problem{
			ID: "stream-missing", Peer: p.Node,
			Text:   "the peer does not receive from this node: it cannot reach grpc-advertise or grpc-listen of this node, or refuses it",
			Remedy: "on " + p.Node + ": syncd status --problems has the error of the stream and its remedy",
		})
	}
	if own := f.status.Version; p.Release != "" && p.Release != own {
		f.add(problem.Problem{ID: "version-skew", Peer: p.Node, Text: fmt.Sprintf("the peer runs %s, this node %s", p.Release, own)})
	}
	for i := range p.Maps {
		f.peerMap(p, &p.Maps[i])
	}
}

// openPort returns the remedy for a peer that does not answer at an address.
func openPort(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("open the port of grpc-listen on both nodes: nc -vz %s %s", host, port)
}

// peerMap adds the problems of a map with a live peer.
func (f *finder) peerMap(p *PeerStatus, m *PeerMapStatus) {
	add := func(id, text string, details ...string) {
		f.add(problem.Problem{ID: id, Map: m.Name, Peer: p.Node, Text: text, Details: details})
	}
	add("map-unserved", unservedReason(p, m))
	add("comparison-impossible", m.Incomparable)
	if m.FalseDigests {
		add("false-digests", "its digests stay false: it lacks changes of other nodes, or is hostile")
	}
	if m.Divergent > 0 {
		add("divergent", fmt.Sprintf("%d entries differ from those that the peer sent", m.Divergent))
	}
	if m.Refused > 0 {
		add("refused-entries", fmt.Sprintf("%d entries of the peer cannot be held here", m.Refused), details(m.Exceptions, m.Refused)...)
	}
	if m.PeerUnsent > 0 {
		add("peer-unsent-entries", fmt.Sprintf("%d entries cannot be sent by the peer", m.PeerUnsent))
	}
	if late := time.Duration(m.LagSeconds * float64(time.Second)); p.Sending && late > inFlight {
		add("peer-behind", fmt.Sprintf("the peer has not received %d changes, the oldest %s ago", m.LagEntries, Ago(late)))
	}
	if r := m.Report; r != nil && p.Sending && m.SendState == "served" {
		f.reported(p, m)
	}
}

// unservedReason returns why a map is not replicated with a peer whose streams are up, or "".
func unservedReason(p *PeerStatus, m *PeerMapStatus) string {
	switch {
	case m.Error != "":
		return m.Error
	case p.Receiving && m.State == "pending":
		return "the peer does not have the map"
	case p.Sending && m.SendState == "refused":
		return "refused to the peer: its map cannot hold the entries of this one"
	case p.Sending && p.Receiving && m.SendState == "waiting":
		return "not sent: the peer has not subscribed to it"
	}
	return ""
}

// reported adds what the peer has reported about its copy of the map.
func (f *finder) reported(p *PeerStatus, m *PeerMapStatus) {
	r := m.Report
	add := func(id, text string, details ...string) {
		f.add(problem.Problem{ID: id, Map: m.Name, Peer: p.Node, Text: text, Details: details})
	}
	if n := r.Failed + r.Evicted; n > 0 {
		text := fmt.Sprintf("%d entries of this node are not in the peer's kernel map (%d records for %d entries", n, r.Live, r.MaxEntries)
		if r.Evicted > 0 {
			text += fmt.Sprintf(", %d evicted", r.Evicted)
		}
		add("not-held", text+")")
	}
	if r.Refused > 0 {
		f.add(problem.Problem{
			ID: "not-held", Map: m.Name, Peer: p.Node, Subject: "refused", Text: fmt.Sprintf("%d entries of this node cannot be held by the peer", r.Refused),
			Remedy: "syncd diff " + m.Name + " --peer " + p.Node, Details: details(r.Exceptions, int(r.Refused)),
		})
	}
	own := f.ownMap(m.Name)
	if own != nil && own.MaxEntries > 0 && r.MaxEntries > 0 && r.Type != "" &&
		(own.MaxEntries != r.MaxEntries || own.Type != r.Type || own.Flags != r.Flags) {
		add("map-differs", fmt.Sprintf("%s here, %s on %s", mapText(own.Type, own.MaxEntries, own.Flags), mapText(r.Type, r.MaxEntries, r.Flags), p.Node))
	}
}

func (f *finder) ownMap(name string) *MapStatus {
	for i := range f.status.Maps {
		if m := &f.status.Maps[i]; m.Name == name {
			return m
		}
	}
	return nil
}

// mapText describes a kernel map.
func mapText(typ string, entries int, flags uint32) string {
	return fmt.Sprintf("%s of %d entries with flags %#x", typ, entries, flags)
}
