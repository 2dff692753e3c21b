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

// Traces of what gossip refuses.
const (
	unproven     = `peer joined|^mapsync_gossip_(errors_total|members)`
	contradicted = `peer left or died|peer restarted or changed its address|node moved to another address`
	nameConflict = `name_conflict|same name`
)

// gossipAttacks are those of a host that has the gossip key and no certificate.
func gossipAttacks() []attack {
	return []attack{
		{name: "key: 60 messages of 20 MiB", by: byGossip, trace: gossipRefusals, run: keyedFlood},
		{name: "key: packets that break the padding", by: byGossip, trace: gossipRefusals, run: padding},
		{name: "key: compressed messages of 39 MiB", by: byGossip, trace: gossipRefusals, run: bombs},
		{name: "key: malformed messages", by: byGossip, run: malformedGossip},
		{name: "key: a live node flaps with each packet", by: byGossip, fresh: true, trace: contradicted, run: flap},
		{name: "key: a live node is declared dead", by: byGossip, fresh: true, trace: contradicted, run: overrule(deadMessage)},
		{name: "key: a live node is suspected", by: byGossip, run: overrule(suspectMessage)},
		{name: "key: a live node is declared restarted", by: byGossip, fresh: true, trace: contradicted, run: overrule(aliveMessage)},
		{name: "key: a live node is moved", by: byGossip, fresh: true, trace: contradicted, run: move},
		{name: "key: a ghost keeps nodes from being ready", by: byGossip, trace: unproven, restarts: 3, fixed: 25 * time.Second, run: ghost},
		{name: "key: 3,000 invented names", by: byGossip, trace: unproven, run: inventNames},
		{name: "key: another node takes a live one's name", by: byGossip, trace: nameConflict, run: sameName},
	}
}

// gossipMeta is what a node states about itself in gossip: see peers/meta.go.
func gossipMeta(incarnation uint64, service string) []byte {
	b := append([]byte{1}, 1<<3)
	for ; incarnation >= 0x80; incarnation >>= 7 {
		b = append(b, byte(incarnation)|0x80)
	}
	b = append(b, byte(incarnation), 2<<3|2, byte(len(service)))
	return append(b, service...)
}

// packets sends gossip packets to all daemons.
type packets struct{ conns []net.Conn }

func (c *cluster) packets() (*packets, error) {
	p := &packets{}
	for _, n := range c.nodes {
		conn, err := net.Dial("udp", n.addr+":"+gossipPort)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open a UDP socket: %w", err), p.close())
		}
		p.conns = append(p.conns, conn)
	}
	return p, nil
}

func (p *packets) send(message []byte) {
	for _, conn := range p.conns {
		_, _ = conn.Write(seal(message, nil)) // lost packets are part of UDP
	}
}

func (p *packets) close() error {
	var errs []error
	for _, conn := range p.conns {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}

// incarnations are those that an attacker would choose for a message that is to win.
var incarnations = []uint32{1, 1000, math.MaxUint32 - 1, math.MaxUint32}

// overrule returns an attack that spreads a message about lb2 to everyone, again and again,
// with the highest incarnations that there are.
func overrule(kind byte) func(context.Context, *cluster) error {
	return func(ctx context.Context, c *cluster) error {
		p, err := c.packets()
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
			p.send(accuse(kind, incarnation, victim.name, []string{"lb1", "lb2", "lb3"}[i%3]))
		}
		return nil
	}
}

// flap declares lb2 dead and restarted in turn, with an incarnation that grows.
func flap(ctx context.Context, c *cluster) error {
	p, err := c.packets()
	if err != nil {
		return err
	}
	defer p.close()
	victim := c.nodes[1]
	service := victim.addr + ":" + grpcPort
	for i := uint32(1000); sleep(ctx, time.Millisecond); i += 2 {
		p.send(accuse(deadMessage, i, victim.name, "lb1"))
		p.send(alive(victim.name, i+1, victim.addr, gossipMeta(uint64(time.Now().UnixNano()), service)))
	}
	return nil
}

// move spreads that lb2 is at an address of the attacker.
func move(ctx context.Context, c *cluster) error {
	p, err := c.packets()
	if err != nil {
		return err
	}
	defer p.close()
	elsewhere := c.address(attackers)
	for i := 0; i == 0 || sleep(ctx, 200*time.Millisecond); i++ {
		meta := gossipMeta(uint64(time.Now().UnixNano()), elsewhere+":"+grpcPort)
		address := elsewhere
		if i%2 == 0 {
			address = c.nodes[1].addr // its service alone
		}
		p.send(alive("lb2", incarnations[i%len(incarnations)], address, meta))
	}
	return nil
}

// member joins gossip with the cluster's key and takes part until the context ends.
func (c *cluster) member(ctx context.Context, o peers.Options) (leave func(), err error) {
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
	running.Go(func() { _ = m.Run(ctx) }) // it ends with the attack
	return func() { cancel(); running.Wait() }, nil
}

// ghost joins gossip under a name that no certificate is for, with a service that accepts
// connections and never answers, while a daemon starts. That must become ready before its
// sync-timeout.
func ghost(ctx context.Context, c *cluster) error {
	service, err := net.Listen("tcp", c.address(attackers)+":"+grpcPort)
	if err != nil {
		return fmt.Errorf("listen as a ghost: %w", err)
	}
	defer service.Close()
	for _, name := range []string{"ghost", "lb9"} {
		leave, err := c.member(ctx, peers.Options{
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
	return eventually(ctx, 15*time.Second, func() error { return victim.ready(ctx) })
}

// inventNames spreads signs of life of nodes that are none.
func inventNames(ctx context.Context, c *cluster) error {
	p, err := c.packets()
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

// sameName joins gossip under the name of a live daemon, with a later incarnation.
func sameName(ctx context.Context, c *cluster) error {
	leave, err := c.member(ctx, peers.Options{
		NodeName: "lb2", BindAddr: c.address(attackers) + ":" + gossipPort, ServiceAddr: c.address(attackers) + ":" + grpcPort,
	})
	if err != nil {
		return err
	}
	defer leave()
	<-ctx.Done()
	return nil
}

// keyedFlood sends large messages that decrypt.
func keyedFlood(ctx context.Context, c *cluster) error {
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

// bomb returns compressed messages for a stream and, small enough, for a packet. Compressing them takes
// longer than an attack may last.
var bomb = sync.OnceValues(func() (message, small []byte) {
	return sealStream(compressed(make([]byte, 39<<20))), compressed(make([]byte, 20<<20))
})

// bombs sends messages that are small until they are decompressed, by TCP and UDP.
func bombs(ctx context.Context, c *cluster) error {
	p, err := c.packets()
	if err != nil {
		return err
	}
	defer p.close()
	message, small := bomb()
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

// padding sends messages of the older encryption whose padding is longer than they are.
func padding(ctx context.Context, c *cluster) error {
	plain := make([]byte, 16)
	for i := range plain {
		plain[i] = 0xff
	}
	p, err := c.packets()
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

// malformedGossip sends random messages that decrypt: packets and streams.
func malformedGossip(ctx context.Context, c *cluster) error {
	p, err := c.packets()
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
		case 1: // well-formed, with what cannot be
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
