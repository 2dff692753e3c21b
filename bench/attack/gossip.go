package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strconv"
	"sync"
	"time"

	"mapsync/peers"
)

// Traces of the messages that gossip refuses.
const (
	joinTrace         = `peer joined|^mapsync_gossip_(errors_total|members)`
	refutedTrace      = `peer left or died|peer restarted or changed its address|node moved to another address`
	nameConflictTrace = `name_conflict|same name`
)

// gossipAttacks returns the attacks of a host that has the gossip key and no certificate.
func gossipAttacks() []attack {
	return []attack{
		{name: "key: 60 messages of 20 MiB", by: byGossip, length: 10 * time.Second, trace: gossipRefusedTrace, run: encryptedFlood},
		{name: "key: packets with invalid padding", by: byGossip, trace: gossipRefusedTrace, run: invalidPadding},
		{name: "key: compressed messages of 39 MiB", by: byGossip, trace: gossipRefusedTrace, run: compressionBombs},
		{name: "key: malformed messages", by: byGossip, run: malformedGossip},
		{name: "key: a live node flaps with each packet", by: byGossip, newDaemons: true, trace: refutedTrace, run: flap},
		{name: "key: a live node is declared dead", by: byGossip, newDaemons: true, trace: refutedTrace, run: forgeGossip(deadMessage)},
		{name: "key: a live node is suspected", by: byGossip, run: forgeGossip(suspectMessage)},
		{name: "key: a live node is declared restarted", by: byGossip, newDaemons: true, trace: refutedTrace, run: forgeGossip(aliveMessage)},
		{name: "key: a live node is moved", by: byGossip, newDaemons: true, trace: refutedTrace, run: moveNode},
		{name: "key: unresponsive member while a node starts", by: byGossip, trace: joinTrace, restartedNode: 3, length: 25 * time.Second, run: unresponsiveMember},
		{name: "key: 3,000 invented names", by: byGossip, trace: joinTrace, run: inventNames},
		{name: "key: a second node with a live node's name", by: byGossip, trace: nameConflictTrace, run: duplicateName},
	}
}

// gossipMeta returns the metadata that a node announces in gossip: see peers/meta.go.
func gossipMeta(incarnation uint64, service string) []byte {
	b := append([]byte{1}, 1<<3)
	for ; incarnation >= 0x80; incarnation >>= 7 {
		b = append(b, byte(incarnation)|0x80)
	}
	b = append(b, byte(incarnation), 2<<3|2, byte(len(service)))
	return append(b, service...)
}

// packetSender sends gossip packets to all daemons.
type packetSender struct{ conns []net.Conn }

func (c *cluster) newPacketSender() (*packetSender, error) {
	p := &packetSender{}
	for _, n := range c.nodes {
		conn, err := net.Dial("udp", n.addr+":"+gossipPort)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open a UDP socket: %w", err), p.close())
		}
		p.conns = append(p.conns, conn)
	}
	return p, nil
}

func (p *packetSender) send(message []byte) {
	for _, conn := range p.conns {
		_, _ = conn.Write(seal(message, nil)) // UDP may lose packets
	}
}

func (p *packetSender) close() error {
	var errs []error
	for _, conn := range p.conns {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}

// incarnations are the values that an attacker chooses so that a message overrides the current
// state.
var incarnations = []uint32{1, 1000, math.MaxUint32 - 1, math.MaxUint32}

// forgeGossip returns an attack that repeatedly sends a message about lb2 to all daemons, with
// incarnations up to the highest possible one.
func forgeGossip(kind byte) func(context.Context, *cluster) error {
	return func(ctx context.Context, c *cluster) error {
		p, err := c.newPacketSender()
		if err != nil {
			return err
		}
		defer p.close()
		victim := c.nodes[1]
		for i := 0; i == 0 || sleep(ctx, 200*time.Millisecond); i++ {
			incarnation := incarnations[i%len(incarnations)]
			if kind == aliveMessage {
				service := victim.addr + ":" + grpcPort
				p.send(alive(victim.name, incarnation, victim.addr, gossipMeta(uint64(time.Now().UnixNano()), service)))
				continue
			}
			p.send(suspectOrDead(kind, incarnation, victim.name, []string{"lb1", "lb2", "lb3"}[i%3]))
		}
		return nil
	}
}

// flap declares lb2 dead and restarted in turn, with a growing incarnation.
func flap(ctx context.Context, c *cluster) error {
	p, err := c.newPacketSender()
	if err != nil {
		return err
	}
	defer p.close()
	victim := c.nodes[1]
	service := victim.addr + ":" + grpcPort
	for i := uint32(1000); sleep(ctx, time.Millisecond); i += 2 {
		p.send(suspectOrDead(deadMessage, i, victim.name, "lb1"))
		p.send(alive(victim.name, i+1, victim.addr, gossipMeta(uint64(time.Now().UnixNano()), service)))
	}
	return nil
}

// moveNode announces that lb2 is at an address of the attacker.
func moveNode(ctx context.Context, c *cluster) error {
	p, err := c.newPacketSender()
	if err != nil {
		return err
	}
	defer p.close()
	elsewhere := c.address(attackers)
	for i := 0; i == 0 || sleep(ctx, 200*time.Millisecond); i++ {
		meta := gossipMeta(uint64(time.Now().UnixNano()), elsewhere+":"+grpcPort)
		address := elsewhere
		if i%2 == 0 {
			address = c.nodes[1].addr // only its service moves
		}
		p.send(alive("lb2", incarnations[i%len(incarnations)], address, meta))
	}
	return nil
}

// joinGossip joins gossip with the cluster's key and takes part until the context ends or leave is
// called.
func (c *cluster) joinGossip(ctx context.Context, o peers.Options) (leave func(), err error) {
	o.GossipKeys, o.Join, o.DeadTime = [][]byte{gossipKey}, nil, 2*time.Second
	for _, n := range c.nodes {
		o.Join = append(o.Join, n.addr+":"+gossipPort)
	}
	if o.Incarnation == 0 {
		o.Incarnation = uint64(time.Now().UnixNano())
	}
	m, err := peers.New(o)
	if err != nil {
		return nil, fmt.Errorf("join gossip as %s: %w", o.NodeName, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { _ = m.Run(ctx) }) // ends with the attack
	return func() { cancel(); running.Wait() }, nil
}

// unresponsiveMember joins gossip under a name without a certificate while a daemon starts. Its
// service accepts connections and never answers. The daemon must become ready before its
// sync-timeout.
func unresponsiveMember(ctx context.Context, c *cluster) error {
	service, err := net.Listen("tcp", c.address(attackers)+":"+grpcPort)
	if err != nil {
		return fmt.Errorf("listen as an unresponsive member: %w", err)
	}
	defer service.Close()
	for _, name := range []string{"ghost", "lb9"} {
		leave, err := c.joinGossip(ctx, peers.Options{
			NodeName: name, BindAddr: c.address(attackers+len(name)) + ":" + gossipPort, ServiceAddr: service.Addr().String(), Incarnation: 1,
		})
		if err != nil {
			return err
		}
		defer leave()
	}
	sleep(ctx, 2*time.Second)
	victim := c.nodes[2]
	if err := victim.restart(ctx); err != nil {
		return err
	}
	// A node waits up to 10 s for its first connections, and sync-timeout ends only after 30 s.
	return eventually(context.WithoutCancel(ctx), 25*time.Second, func() error { return victim.ready(ctx) })
}

// inventNames sends alive messages of nodes that do not exist.
func inventNames(ctx context.Context, c *cluster) error {
	p, err := c.newPacketSender()
	if err != nil {
		return err
	}
	defer p.close()
	for i := range 3000 {
		address := fmt.Sprintf("127.%d.%d.%d", c.base[0], 251, i%250)
		p.send(alive("invented-"+strconv.Itoa(i), 1, address, gossipMeta(uint64(time.Now().UnixNano()), address+":"+grpcPort)))
		if i%10 == 9 && !sleep(ctx, 5*time.Millisecond) {
			break
		}
	}
	<-ctx.Done()
	return nil
}

// duplicateName joins gossip under the name of a live daemon, with a later incarnation.
func duplicateName(ctx context.Context, c *cluster) error {
	leave, err := c.joinGossip(ctx, peers.Options{
		NodeName: "lb2", BindAddr: c.address(attackers) + ":" + gossipPort, ServiceAddr: c.address(attackers) + ":" + grpcPort,
	})
	if err != nil {
		return err
	}
	defer leave()
	<-ctx.Done()
	return nil
}

// encryptedFlood sends large messages that decrypt.
func encryptedFlood(ctx context.Context, c *cluster) error {
	message := sealStream(make([]byte, 19<<20))
	var sending sync.WaitGroup
	for i := range 60 {
		sending.Go(func() {
			conn, err := c.dial(ctx, c.nodes[i%2], gossipPort, i%8)
			if err != nil {
				return
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(8 * time.Second))
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			defer stop()
			if _, err := conn.Write(message); err == nil {
				_, _ = io.Copy(io.Discard, conn)
			}
		})
	}
	sending.Wait()
	return nil
}

// compressionBomb returns two compressed messages: one for a stream, and one that is small enough
// for a packet. Compressing them takes longer than an attack may last.
var compressionBomb = sync.OnceValues(func() (message, small []byte) {
	return sealStream(compressed(make([]byte, 39<<20))), compressed(make([]byte, 20<<20))
})

// compressionBombs sends messages that are small until they are decompressed, by TCP and UDP.
func compressionBombs(ctx context.Context, c *cluster) error {
	p, err := c.newPacketSender()
	if err != nil {
		return err
	}
	defer p.close()
	message, small := compressionBomb()
	var sending sync.WaitGroup
	for i := range 60 {
		sending.Go(func() {
			for ctx.Err() == nil {
				if conn, err := c.dial(ctx, c.nodes[i%2], gossipPort, i%8); err == nil {
					_ = conn.SetDeadline(time.Now().Add(8 * time.Second))
					_, _ = conn.Write(message)
					_, _ = io.Copy(io.Discard, conn)
					_ = conn.Close()
				}
				sleep(ctx, 20*time.Millisecond)
			}
		})
	}
	for sleep(ctx, 20*time.Millisecond) {
		p.send(small)
	}
	sending.Wait()
	return nil
}

// invalidPadding sends messages of the older encryption version with a padding longer than the
// message.
func invalidPadding(ctx context.Context, c *cluster) error {
	plain := make([]byte, 16)
	for i := range plain {
		plain[i] = 0xff
	}
	p, err := c.newPacketSender()
	if err != nil {
		return err
	}
	defer p.close()
	for i, n := range c.nodes {
		for range 10 {
			_, _ = p.conns[i].Write(sealAs(0, plain, nil))
			if conn, err := c.dial(ctx, n, gossipPort, 0); err == nil {
				message := streamHead(1 + 12 + 16 + len(plain))
				_, _ = conn.Write(append(message, sealAs(0, plain, message)...))
				_ = conn.Close()
			}
		}
	}
	sleep(ctx, time.Second)
	return nil
}

// malformedGossip sends random messages that decrypt, as packets and on streams.
func malformedGossip(ctx context.Context, c *cluster) error {
	p, err := c.newPacketSender()
	if err != nil {
		return err
	}
	defer p.close()
	for i := 0; i < 5000 && ctx.Err() == nil; i++ {
		message := make([]byte, 1+i%600)
		_, _ = rand.Read(message)
		switch i % 3 {
		case 0:
			message[0] = byte(i / 3 % 15) // of a known type
		case 1: // well-formed, with invalid values
			message = alive(string(message), uint32(i), "", message[:min(len(message), 200)])
		}
		p.send(message)
		if i%20 == 0 {
			if conn, err := c.dial(ctx, c.nodes[i/20%3], gossipPort, 1); err == nil {
				_, _ = conn.Write(sealStream(message))
				_ = conn.Close()
			}
		}
		if i%50 == 49 && !sleep(ctx, 5*time.Millisecond) {
			break
		}
	}
	return nil
}
