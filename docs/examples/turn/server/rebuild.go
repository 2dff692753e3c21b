package server

import (
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"time"

	"github.com/pion/stun/v3"

	"mapsync/docs/examples/turn/message"
	"mapsync/docs/examples/turn/offload"
)

// state is the content of the maps from which a server rebuilds its allocations.
type state struct {
	allocations []offload.Allocation
	permissions map[netip.AddrPort][]offload.Permission
	channels    map[netip.AddrPort][]offload.Channel
}

func readState(o *offload.Offload) (*state, error) {
	s := &state{
		permissions: make(map[netip.AddrPort][]offload.Permission),
		channels:    make(map[netip.AddrPort][]offload.Channel),
	}
	var err error
	if s.allocations, err = o.Allocations(); err != nil {
		return nil, err
	}
	permissions, err := o.Permissions()
	if err != nil {
		return nil, err
	}
	channels, err := o.Channels()
	if err != nil {
		return nil, err
	}
	for _, p := range permissions {
		s.permissions[p.Client] = append(s.permissions[p.Client], p)
	}
	for _, c := range channels {
		s.channels[c.Client] = append(s.channels[c.Client], c)
	}
	return s, nil
}

// rebuilder makes the requests that rebuild allocations. It signs them with the passwords of the users,
// as the clients did.
type rebuilder struct {
	log      *slog.Logger
	secret   []byte
	state    *state
	nonce    message.Credentials // realm and nonce only
	feed     func(*fedRequest) bool
	stopped  bool
	counts   map[stun.Method]int
	failures int
}

// rebuild returns the requests that rebuild all allocations in the maps.
func (s *Server) rebuild() iter.Seq[*fedRequest] {
	return func(yield func(*fedRequest) bool) {
		begun := time.Now()
		state, err := s.recorder.state()
		if err != nil {
			s.log.Error("rebuild failed", "error", err, "hint", "clients must allocate again")
			return
		}
		r := &rebuilder{log: s.log, secret: s.secret, state: state, feed: yield, counts: make(map[stun.Method]int)}
		for i := range state.allocations {
			r.allocation(&state.allocations[i])
			if r.stopped {
				return
			}
		}
		s.log.Info("rebuilt", "allocations", r.counts[stun.MethodAllocate], "permissions", r.counts[stun.MethodCreatePermission],
			"channels", r.counts[stun.MethodChannelBind], "failures", r.failures, "ms", time.Since(begun).Milliseconds())
	}
}

// allocation rebuilds one allocation, unless its time has ended.
func (r *rebuilder) allocation(a *offload.Allocation) {
	left := time.Until(a.Expires)
	if left <= 0 {
		return
	}
	err := r.challenge(a)
	if err == nil {
		err = r.request(a, stun.MethodAllocate, message.Transport(), message.Lifetime(left))
	}
	for _, p := range r.state.permissions[a.Client] {
		if err == nil && time.Now().Before(p.Expires) {
			err = r.request(a, stun.MethodCreatePermission, message.Peer(netip.AddrPortFrom(p.Peer, 0)))
		}
	}
	for _, c := range r.state.channels[a.Client] {
		if err == nil && time.Now().Before(c.Expires) {
			err = r.request(a, stun.MethodChannelBind, message.Channel(c.Number), message.Peer(c.Peer))
		}
	}
	if err != nil && !r.stopped {
		r.failures++
		r.log.Error("allocation not rebuilt", "client", a.Client, "relay", a.Relay, "error", err,
			"hint", "the client must allocate again")
	}
}

// challenge requests realm and nonce from the server, at the first call only.
func (r *rebuilder) challenge(a *offload.Allocation) error {
	if r.nonce.Nonce != "" {
		return nil
	}
	m, err := (&message.Credentials{}).Request(stun.MethodAllocate, message.Transport())
	if err != nil {
		return err
	}
	response := r.exchange(&fedRequest{message: m, client: a.Client})
	if response == nil || !r.nonce.Challenge(response) {
		return fmt.Errorf("request a nonce: the server returned none")
	}
	return nil
}

func (r *rebuilder) request(a *offload.Allocation, method stun.Method, attributes ...stun.Setter) error {
	c := message.Credentials{
		Username: a.Username, Password: Password(r.secret, a.Username),
		Realm: r.nonce.Realm, Nonce: r.nonce.Nonce,
	}
	m, err := c.Request(method, attributes...)
	if err != nil {
		return err
	}
	response := r.exchange(&fedRequest{message: m, client: a.Client, relayPort: a.Relay.Port()})
	switch {
	case response == nil:
		return fmt.Errorf("%s: no response", method)
	case response.Type.Class != stun.ClassSuccessResponse:
		var code stun.ErrorCodeAttribute
		_ = code.GetFrom(response) // some errors have no code
		return fmt.Errorf("%s: refused: %s", method, code)
	}
	r.counts[method]++
	return nil
}

// exchange returns the response, or nil. After the end of the server, the rebuild is stopped.
func (r *rebuilder) exchange(f *fedRequest) *stun.Message {
	if r.stopped || !r.feed(f) {
		r.stopped = true
		return nil
	}
	return f.response
}
