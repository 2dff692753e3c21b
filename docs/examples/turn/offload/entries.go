package offload

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mapsync/docs/examples/turn/bpf"
)

// ClientChannel identifies a channel of the server by its client and its number.
type ClientChannel struct {
	Client netip.AddrPort
	Number uint16
}

// Channel is a channel between a client and a peer.
type Channel struct {
	ClientChannel
	Peer, Relay netip.AddrPort
	Expires     time.Time
}

// Allocation is the part of an allocation that a server needs to rebuild it.
type Allocation struct {
	Client, Relay netip.AddrPort
	Username      string
	Expires       time.Time
}

// Permission lets a peer send to the relay address of a client.
type Permission struct {
	Client  netip.AddrPort
	Peer    netip.Addr
	Expires time.Time
}

// Counters count the data of a channel that the offload has translated. The server's own traffic is
// not included.
type Counters struct {
	UpPackets, UpBytes     uint64 // from the client to the peer
	DownPackets, DownBytes uint64 // from the peer to the client
}

// PutChannel writes the entries of a channel, or changes its end. Counters that exist continue.
func (o *Offload) PutChannel(c *Channel) error {
	client, peer := o.flow(c.Client, c.Number), flow(c.Peer, c.Relay, 0)
	expires := monotonic(c.Expires)
	err := errors.Join(
		o.objects.TurnUpstream.Put(client, bpf.TurnTurnChannel{Expires: expires, To: peer}),
		o.objects.TurnDownstream.Put(peer, bpf.TurnTurnChannel{Expires: expires, To: client}),
	)
	// The counters are last: Sweep removes counters without a channel.
	create := o.objects.TurnStats.Update(client, bpf.TurnTurnCounters{}, ebpf.UpdateNoExist)
	if !errors.Is(create, ebpf.ErrKeyExist) {
		err = errors.Join(err, create)
	}
	if err != nil {
		return fmt.Errorf("write channel %#x of %s: %w", c.Number, c.Client, err)
	}
	return nil
}

// DeleteChannel removes the entries and the counters of a channel.
func (o *Offload) DeleteChannel(c *Channel) error {
	client := o.flow(c.Client, c.Number)
	err := errors.Join(remove(o.objects.TurnStats, client), remove(o.objects.TurnUpstream, client),
		remove(o.objects.TurnDownstream, flow(c.Peer, c.Relay, 0)))
	if err != nil {
		return fmt.Errorf("delete channel %#x of %s: %w", c.Number, c.Client, err)
	}
	return nil
}

// Channels returns the channels of this server.
func (o *Offload) Channels() ([]Channel, error) {
	return list(o.objects.TurnUpstream, func(k *bpf.TurnTurnFlow, v *bpf.TurnTurnChannel) (Channel, bool) {
		return Channel{
			ClientChannel: ClientChannel{source(k), k.Channel},
			Peer:          source(&v.To), Relay: destination(&v.To), Expires: wallClock(v.Expires),
		}, destination(k) == o.server
	})
}

// Downstream returns the number of entries for data from peers. Each channel of this server has one.
func (o *Offload) Downstream() (int, error) {
	all, err := list(o.objects.TurnDownstream, func(*bpf.TurnTurnFlow, *bpf.TurnTurnChannel) (struct{}, bool) {
		return struct{}{}, true
	})
	return len(all), err
}

// Counters returns the counters of all channels of this server.
func (o *Offload) Counters() (map[ClientChannel]Counters, error) {
	type entry struct {
		ClientChannel
		Counters
	}
	entries, err := list(o.objects.TurnStats, func(k *bpf.TurnTurnFlow, v *bpf.TurnTurnCounters) (entry, bool) {
		return entry{
			ClientChannel{source(k), k.Channel},
			Counters{v.UpPackets, v.UpBytes, v.DownPackets, v.DownBytes},
		}, destination(k) == o.server
	})
	counters := make(map[ClientChannel]Counters, len(entries))
	for _, e := range entries {
		counters[e.ClientChannel] = e.Counters
	}
	return counters, err
}

// PutAllocation writes an allocation, or changes its end.
func (o *Offload) PutAllocation(a *Allocation) error {
	v := bpf.TurnTurnAllocation{
		Expires:   monotonic(a.Expires),
		RelayAddr: bigEndian32(a.Relay.Addr()), RelayPort: bigEndian16(a.Relay.Port()),
	}
	if copy(v.Username[:], a.Username) < len(a.Username) {
		return fmt.Errorf("write allocation of %s: the username has more than %d bytes", a.Client, len(v.Username))
	}
	if err := o.objects.TurnAllocs.Put(o.flow(a.Client, 0), v); err != nil {
		return fmt.Errorf("write allocation of %s: %w", a.Client, err)
	}
	return nil
}

// DeleteAllocation removes the allocation of a client. Its channels and permissions have entries of
// their own.
func (o *Offload) DeleteAllocation(client netip.AddrPort) error {
	if err := remove(o.objects.TurnAllocs, o.flow(client, 0)); err != nil {
		return fmt.Errorf("delete allocation of %s: %w", client, err)
	}
	return nil
}

// Allocations returns the allocations of this server.
func (o *Offload) Allocations() ([]Allocation, error) {
	return list(o.objects.TurnAllocs, func(k *bpf.TurnTurnFlow, v *bpf.TurnTurnAllocation) (Allocation, bool) {
		name, _, _ := bytes.Cut(v.Username[:], []byte{0})
		return Allocation{
			Client: source(k), Relay: netip.AddrPortFrom(address(v.RelayAddr), bigEndian16(v.RelayPort)),
			Username: string(name), Expires: wallClock(v.Expires),
		}, destination(k) == o.server
	})
}

// PutPermission writes a permission, or changes its end.
func (o *Offload) PutPermission(p *Permission) error {
	if err := o.objects.TurnPerms.Put(o.permissionKey(p), bpf.TurnTurnPermission{Expires: monotonic(p.Expires)}); err != nil {
		return fmt.Errorf("write permission of %s for %s: %w", p.Client, p.Peer, err)
	}
	return nil
}

// DeletePermission removes a permission.
func (o *Offload) DeletePermission(p *Permission) error {
	if err := remove(o.objects.TurnPerms, o.permissionKey(p)); err != nil {
		return fmt.Errorf("delete permission of %s for %s: %w", p.Client, p.Peer, err)
	}
	return nil
}

// Permissions returns the permissions of this server.
func (o *Offload) Permissions() ([]Permission, error) {
	return list(o.objects.TurnPerms, func(k *bpf.TurnTurnPermissionKey, v *bpf.TurnTurnPermission) (Permission, bool) {
		return Permission{source(&k.Client), address(k.Peer), wallClock(v.Expires)}, destination(&k.Client) == o.server
	})
}

func (o *Offload) permissionKey(p *Permission) bpf.TurnTurnPermissionKey {
	return bpf.TurnTurnPermissionKey{Client: o.flow(p.Client, 0), Peer: bigEndian32(p.Peer)}
}

// list returns the entries of a map for which wanted returns true. It rereads the map if a delete
// has ended the reading.
func list[K, V, T any](m *ebpf.Map, wanted func(*K, *V) (T, bool)) (all []T, err error) {
	const attempts = 5
	for range attempts {
		if all, err = listOnce(m, wanted); !errors.Is(err, ebpf.ErrIterationAborted) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read map %s: %w", m, err)
	}
	return all, nil
}

func listOnce[K, V, T any](m *ebpf.Map, wanted func(*K, *V) (T, bool)) (all []T, err error) {
	var k K
	var v V
	entries := m.Iterate()
	for entries.Next(&k, &v) {
		if t, ok := wanted(&k, &v); ok {
			all = append(all, t)
		}
	}
	return all, entries.Err()
}

func remove(m *ebpf.Map, key any) error {
	if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}

// flow returns the 5-tuple from a client to this server.
func (o *Offload) flow(client netip.AddrPort, channel uint16) bpf.TurnTurnFlow {
	return flow(client, o.server, channel)
}

func flow(from, to netip.AddrPort, channel uint16) bpf.TurnTurnFlow {
	return bpf.TurnTurnFlow{
		Saddr: bigEndian32(from.Addr()), Sport: bigEndian16(from.Port()),
		Daddr: bigEndian32(to.Addr()), Dport: bigEndian16(to.Port()),
		Proto: unix.IPPROTO_UDP, Channel: channel,
	}
}

func source(f *bpf.TurnTurnFlow) netip.AddrPort {
	return netip.AddrPortFrom(address(f.Saddr), bigEndian16(f.Sport))
}

func destination(f *bpf.TurnTurnFlow) netip.AddrPort {
	return netip.AddrPortFrom(address(f.Daddr), bigEndian16(f.Dport))
}

// bigEndian32 and bigEndian16 return values whose bytes in memory are in network order. bigEndian16
// is also its own inverse.
func bigEndian32(a netip.Addr) uint32 {
	b := a.As4()
	return binary.NativeEndian.Uint32(b[:])
}

func bigEndian16(port uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], port)
	return binary.NativeEndian.Uint16(b[:])
}

func address(v uint32) netip.Addr {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], v)
	return netip.AddrFrom4(b)
}
