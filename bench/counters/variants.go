package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mapsync/bench/counters/bpf"
	"mapsync/docs/examples/counters"
	example "mapsync/docs/examples/counters/bpf"
	"mapsync/internal/tool"
	"mapsync/syncd/daemon"
)

// accountant is a running accountant.
type accountant struct {
	*program
	pin string // of its map
}

// startAccountant starts the program of the example. The map is pinned after its end.
func (b *bench) startAccountant(ctx context.Context, way counters.Attach) (*accountant, error) {
	dir := filepath.Join(b.pins, "accounting")
	p, err := startProgram("counting by "+string(way), b.accountant, "-attach", string(way), "-pin-dir", dir, "-network", counted.String())
	if err != nil {
		return nil, err
	}
	if err := p.await(ctx); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return &accountant{p, filepath.Join(dir, counters.MapName)}, nil
}

// variant is a state of the host in which the throughput is measured.
type variant struct {
	name string
	// programs are the programs that a call or packet runs; none: their cost is not measured.
	programs []string
	// begin brings the host into the state, and end out of it.
	begin func(context.Context) (end func() error, err error)
}

// programsOf names the programs of each way.
var programsOf = map[counters.Attach][]string{
	counters.AttachFexit:      {example.AccountingProgFexitTcpSendmsg},
	counters.AttachKprobe:     {example.AccountingProgKprobeTcpSendmsg, example.AccountingProgKretprobeTcpSendmsg},
	counters.AttachTracepoint: {example.AccountingProgTraceSockSendLength},
}

// layer2 is the name of the control.
const layer2 = "layer 2"

// variants returns the variants. The first one is the base of all ratios.
func (b *bench) variants() []variant {
	list := []variant{{name: "off", begin: func(context.Context) (func() error, error) { return func() error { return nil }, nil }}}
	for _, way := range b.ways {
		list = append(list, variant{
			name: "export " + string(way), programs: programsOf[way],
			begin: func(ctx context.Context) (func() error, error) { return b.export(ctx, way, false) },
		})
	}
	way := b.ways[0]
	return append(list,
		variant{name: "sync " + string(way), begin: func(ctx context.Context) (func() error, error) { return b.export(ctx, way, true) }},
		variant{name: layer2, programs: []string{bpf.Layer2ProgLayer2}, begin: b.attachLayer2},
	)
}

// export starts the accountant and a syncd that exports its counters, with a peer that receives the entries or without.
func (b *bench) export(ctx context.Context, way counters.Attach, peer bool) (end func() error, err error) {
	var ends []func() error
	end = func() error {
		var errs []error
		for i := range ends {
			errs = append(errs, ends[len(ends)-1-i]())
		}
		return errors.Join(errs...)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, end())
		}
	}()
	dir, err := os.MkdirTemp(b.dir, "export")
	if err != nil {
		return nil, err
	}
	a, err := b.startAccountant(ctx, way)
	if err != nil {
		return nil, err
	}
	ends = append(ends, func() error { return os.Remove(a.pin) }, a.stop)
	nodes, err := b.newNodes(dir, a.pin, peer)
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		ends = append(ends, n.close)
		if err := n.start(ctx); err != nil {
			return nil, err
		}
	}
	if peer {
		ends = append([]func() error{func() error { return os.Remove(peerPin(a.pin)) }}, ends...)
		err = nodes[0].await(ctx, "a peer", func(s *daemon.Status) bool { return len(s.Peers) == 1 && s.Peers[0].Sending && s.Peers[0].Receiving })
	}
	if err != nil {
		return nil, err
	}
	ends = append(ends, func() error { return countedSome(nodes[0]) })
	return end, nil
}

// countedSome waits until a node exports some bytes. It returns an error if the node does not: then nothing was measured.
func countedSome(n *node) error {
	for end := time.Now().Add(limit); time.Now().Before(end); {
		series, err := n.scrape(context.Background())
		if err != nil {
			return err
		}
		for _, bytes := range series {
			if bytes > 0 {
				return nil
			}
		}
		if err := tool.Pause(context.Background(), scanInterval); err != nil {
			return err
		}
	}
	return fmt.Errorf("syncd has exported 0 bytes of the measurement within %s", limit)
}

func peerPin(pin string) string { return pin + "_peer" }

// newNodes returns the node of the accountant, and a peer if asked for, which is not started. They use TLS.
func (b *bench) newNodes(dir, pin string, peer bool) ([]*node, error) {
	first, err := newNode(dir, 1, pin, b.attach, startSyncd(b.syncd))
	if err != nil || !peer {
		return []*node{first}, err
	}
	if err := createMap(peerPin(pin)); err != nil {
		return nil, err
	}
	second, err := newNode(dir, 2, counters.MapName+"="+peerPin(pin), b.attach, startSyncd(b.syncd))
	if err != nil {
		return nil, err
	}
	return []*node{first, second}, connect(dir, first, second)
}

// createMap pins an empty map with the types of the accountant.
func createMap(pin string) (err error) {
	spec, err := example.LoadAccounting()
	if err != nil {
		return err
	}
	m, err := ebpf.NewMap(spec.Maps[counters.MapName])
	if err != nil {
		return fmt.Errorf("create the peer's map: %w", err)
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	return m.Pin(pin)
}

// attachLayer2 attaches the program at layer 2 where packets arrive: there, the kernel has split them for the network.
func (b *bench) attachLayer2(context.Context) (end func() error, err error) {
	spec, err := bpf.LoadLayer2()
	if err != nil {
		return nil, err
	}
	if err := spec.Variables[bpf.Layer2VarUpdates].Set(uint32(b.updates)); err != nil {
		return nil, err
	}
	var objects bpf.Layer2Objects
	if err := spec.LoadAndAssign(&objects, nil); err != nil {
		return nil, fmt.Errorf("load the layer 2 program: %w", err)
	}
	l, err := b.net.receiver.Link(link)
	if err != nil {
		return nil, errors.Join(err, objects.Close())
	}
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
	filter := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Protocol: unix.ETH_P_ALL},
		Fd:          objects.Layer2.FD(), Name: "layer2", DirectAction: true,
	}
	handle := b.net.receiver.Handle()
	if err := handle.QdiscAdd(qdisc); err != nil {
		return nil, errors.Join(fmt.Errorf("attach the layer 2 program: %w", err), objects.Close())
	}
	if err := handle.FilterAdd(filter); err != nil {
		return nil, errors.Join(fmt.Errorf("attach the layer 2 program: %w", err), handle.QdiscDel(qdisc), objects.Close())
	}
	return func() error { return errors.Join(handle.QdiscDel(qdisc), objects.Close()) }, nil
}
