package trace

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"

	"mapsync/docs/examples/bundling/bpf"
)

// The hooks for messages. Connections are counted by a tracepoint in all cases.
const (
	auto        = "auto"       // the first one that the kernel supports
	kprobes     = "kprobe"     // TCP, and UDP by the headers of datagrams
	tracepoints = "tracepoint" // kernels from 6.3: TCP, and UDP sockets with a peer
)

// functions are the kernel functions of the kprobes, by program.
var functions = map[string]string{
	bpf.TracerProgTcpSendmsg:     "tcp_sendmsg",
	bpf.TracerProgTcpCleanupRbuf: "tcp_cleanup_rbuf",
	bpf.TracerProgIpSendSkb:      "ip_send_skb",
	bpf.TracerProgSkbConsumeUdp:  "skb_consume_udp",
	bpf.TracerProgInetBind:       "__inet_bind",
}

// tracing are the programs of tracepoints. Only the first one is for all kernels.
var tracing = []string{bpf.TracerProgSocketState, bpf.TracerProgSentLength, bpf.TracerProgReceivedLength}

// tracer is the trace of one network namespace.
type tracer struct {
	method, hooks string
	resumed       bool // the trace began earlier, in another process

	flows, spare, active, listeners, lost, closed *ebpf.Map

	moveSpare *ebpf.Program
	links     map[string]link.Link // by program
	connectionSums
}

// open begins the trace, or continues the one in the pins.
func open(o *options) (*tracer, error) {
	if err := rlimit.RemoveMemlock(); err != nil { // kernels before 5.11 count maps as locked memory
		return nil, err
	}
	if o.pin != "" && !o.check {
		t, err := resume(o)
		if err != nil || t != nil {
			return t, err
		}
	}
	hooks := []string{o.hooks}
	switch o.hooks {
	case kprobes, tracepoints:
	case auto:
		hooks = []string{kprobes, tracepoints}
	default:
		return nil, fmt.Errorf("-hooks %s: choose auto, kprobe or tracepoint", o.hooks)
	}
	var refused error
	for _, h := range hooks {
		t, err := load(o, h)
		if err != nil {
			refused = errors.Join(refused, fmt.Errorf("use hooks %s: %w", h, err))
			continue
		}
		if err := t.addListeners(); err != nil {
			return nil, errors.Join(err, t.close())
		}
		if o.pin == "" || o.check {
			return t, nil
		}
		if err := t.pin(o.pin); err != nil {
			return nil, errors.Join(err, t.close())
		}
		return t, nil
	}
	return nil, fmt.Errorf("%w (the trace needs kprobes or a kernel from 6.3, BTF, CAP_BPF and CAP_PERFMON)", refused)
}

// load loads the programs of some hooks and attaches them.
func load(o *options, hooks string) (_ *tracer, err error) {
	spec, err := bpf.LoadTracer()
	if err != nil {
		return nil, err
	}
	if err := configure(spec, o.method, hooks); err != nil {
		return nil, err
	}
	c, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, err
	}
	t := &tracer{
		method: o.method, hooks: hooks, links: make(map[string]link.Link), connectionSums: newConnectionSums(o),
		flows: c.DetachMap("flows"), spare: c.DetachMap("spare"), active: c.DetachMap("active"),
		listeners: c.DetachMap("listeners"), lost: c.DetachMap("lost"), closed: c.DetachMap("closed"),
		moveSpare: c.DetachProgram("move_spare"),
	}
	defer c.Close() // after the links, which hold the other programs
	if err := t.attach(c); err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

// configure prepares the object for a method, and removes the programs of other hooks.
func configure(spec *ebpf.CollectionSpec, method, hooks string) error {
	info, err := os.Stat("/proc/thread-self/ns/net")
	if err != nil {
		return fmt.Errorf("find this network namespace: %w", err)
	}
	err = errors.Join(
		spec.Variables[bpf.TracerVarNetns].Set(uint32(info.Sys().(*syscall.Stat_t).Ino)),
		spec.Variables[bpf.TracerVarPerConnection].Set(method != Bundle),
		spec.Variables[bpf.TracerVarStream].Set(method == Stream),
	)
	if method != Bundle {
		for _, m := range []*ebpf.MapSpec{spec.Maps["flows"], spec.Maps["spare"], spec.Maps["active"].InnerMap} {
			m.KeySize, m.MaxEntries, m.Key, m.Value = connectionKeyBytes, maxConnections, nil, nil
		}
	}
	if hooks == kprobes {
		for _, p := range tracing[1:] {
			delete(spec.Programs, p)
		}
		return err
	}
	for p := range functions {
		delete(spec.Programs, p)
	}
	return err
}

// attach attaches the programs of a collection.
func (t *tracer) attach(c *ebpf.Collection) error {
	for _, p := range tracing {
		program := c.Programs[p]
		if program == nil {
			continue
		}
		l, err := link.AttachTracing(link.TracingOptions{Program: program})
		if err != nil {
			return fmt.Errorf("attach program %s: %w", p, err)
		}
		t.links[p] = l
	}
	for p, function := range functions {
		program := c.Programs[p]
		if program == nil {
			continue
		}
		l, err := link.Kprobe(function, program, nil)
		if err != nil {
			return fmt.Errorf("attach program %s: %w", p, err)
		}
		t.links[p] = l
	}
	return nil
}

// close releases what this process holds. Pinned programs continue.
func (t *tracer) close() (err error) {
	for _, l := range t.links {
		err = errors.Join(err, l.Close())
	}
	for _, m := range []*ebpf.Map{t.flows, t.spare, t.active, t.listeners, t.lost, t.closed} {
		err = errors.Join(err, m.Close())
	}
	return errors.Join(err, t.moveSpare.Close())
}
