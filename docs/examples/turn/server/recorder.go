package server

import (
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/pion/stun/v3"
	"github.com/pion/turn/v4"

	"mapsync/docs/examples/turn/message"
	"mapsync/docs/examples/turn/offload"
)

// The lifetimes of a channel and of a permission, which a request does not contain. RFC 8656 fixes them.
const (
	channelLifetime    = 10 * time.Minute
	permissionLifetime = 5 * time.Minute
)

// recorder writes the state of the server into the maps of the offload: it adds entries when a request
// has succeeded, before the response is sent, and removes them when pion's server removes the state.
type recorder struct {
	log     *slog.Logger
	offload *offload.Offload

	mu      sync.Mutex
	closed  bool // the server stops: its state remains in the maps, which this server no longer uses
	clients map[netip.AddrPort]*client
}

// client is the allocation of a client, with its channels. The end of an entry of a channel is never after
// that of the allocation, so that the offload does not outlive the allocation.
type client struct {
	allocation offload.Allocation
	channels   map[uint16]offload.Channel // by number, with their own ends
}

func newRecorder(o *offload.Offload, log *slog.Logger) *recorder {
	return &recorder{log: log, offload: o, clients: make(map[netip.AddrPort]*client)}
}

// succeeded records a request that the server has handled.
func (r *recorder) succeeded(request, response *stun.Message, from netip.AddrPort) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	if request.Type.Method == stun.MethodAllocate {
		r.allocated(request, response, from)
	}
	c := r.clients[from]
	if c == nil {
		return // the request has ended the allocation
	}
	switch request.Type.Method {
	case stun.MethodAllocate, stun.MethodRefresh:
		if lifetime, ok := message.LifetimeOf(response); ok {
			r.refreshed(c, lifetime)
		}
	case stun.MethodCreatePermission:
		for _, peer := range message.PeersOf(request) {
			r.permitted(from, peer.Addr())
		}
	case stun.MethodChannelBind:
		number, ok := message.ChannelOf(request)
		if peers := message.PeersOf(request); ok && len(peers) == 1 {
			r.permitted(from, peers[0].Addr())
			r.bound(c, offload.Channel{
				ClientChannel: offload.ClientChannel{Client: from, Number: number},
				Peer:          peers[0], Relay: c.allocation.Relay, Expires: time.Now().Add(channelLifetime),
			})
		}
	}
}

func (r *recorder) allocated(request, response *stun.Message, from netip.AddrPort) {
	var username stun.Username
	address, ok := message.RelayOf(response)
	if c := r.clients[from]; c != nil && c.allocation.Relay == address {
		return // the client has repeated its request
	}
	if username.GetFrom(request) == nil && ok {
		r.clients[from] = &client{
			allocation: offload.Allocation{Client: from, Relay: address, Username: username.String()},
			channels:   make(map[uint16]offload.Channel),
		}
	}
}

// refreshed records the lifetime of an allocation, and of the entries of its channels.
func (r *recorder) refreshed(c *client, lifetime time.Duration) {
	c.allocation.Expires = time.Now().Add(lifetime)
	r.check(r.offload.PutAllocation(&c.allocation))
	for _, channel := range c.channels {
		r.bound(c, channel)
	}
}

func (r *recorder) permitted(from netip.AddrPort, peer netip.Addr) {
	r.check(r.offload.PutPermission(&offload.Permission{Client: from, Peer: peer, Expires: time.Now().Add(permissionLifetime)}))
}

func (r *recorder) bound(c *client, channel offload.Channel) {
	c.channels[channel.Number] = channel
	if channel.Expires.After(c.allocation.Expires) {
		channel.Expires = c.allocation.Expires
	}
	r.check(r.offload.PutChannel(&channel))
}

// events returns the callbacks for the end of allocations, permissions and channels.
func (r *recorder) events() turn.EventHandler {
	return turn.EventHandler{
		OnAllocationDeleted: func(from, _ net.Addr, _, _, _ string) { r.allocationEnded(message.AddrPort(from)) },
		OnPermissionDeleted: func(from, _ net.Addr, _, _, _ string, _ net.Addr, peer net.IP) {
			r.permissionEnded(message.AddrPort(from), peer)
		},
		OnChannelDeleted: func(from, _ net.Addr, _, _, _ string, relay, peer net.Addr, number uint16) {
			r.channelEnded(&offload.Channel{
				ClientChannel: offload.ClientChannel{Client: message.AddrPort(from), Number: number},
				Peer:          message.AddrPort(peer), Relay: message.AddrPort(relay),
			})
		},
	}
}

func (r *recorder) allocationEnded(from netip.AddrPort) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		delete(r.clients, from)
		r.check(r.offload.DeleteAllocation(from))
	}
}

func (r *recorder) permissionEnded(from netip.AddrPort, peer net.IP) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ip, ok := netip.AddrFromSlice(peer); ok && !r.closed {
		r.check(r.offload.DeletePermission(&offload.Permission{Client: from, Peer: ip.Unmap()}))
	}
}

func (r *recorder) channelEnded(channel *offload.Channel) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	if c := r.clients[channel.Client]; c != nil {
		delete(c.channels, channel.Number)
	}
	r.check(r.offload.DeleteChannel(channel))
}

// state returns the state in the maps.
func (r *recorder) state() (*state, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, net.ErrClosed
	}
	return readState(r.offload)
}

// close ends the use of the maps.
func (r *recorder) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
}

// check logs an error. The server itself continues without the entry.
func (r *recorder) check(err error) {
	if err != nil {
		r.log.Error("map not changed", "error", err, "hint", "a peer or a restarted server lacks this change")
	}
}
