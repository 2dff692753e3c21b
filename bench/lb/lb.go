// Package lb is the load balancer under test: a small layer 4 NAT load balancer for TCP over IPv4
// in XDP. Its connection-tracking hash map is similar to those of real load balancers. Only its
// data plane creates and closes entries and changes them in place. User space only configures it
// and deletes idle entries. It has no code for replication.
//
// It runs on one link. The router sends it the packets from clients to a service and the answers of
// the backends, and receives every rewritten packet on the same link. The node should have the
// services' addresses on its loopback interface, so that its network stack resets connections
// without an entry in the map.
package lb

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"mapsync/bench/lb/bpf"
)

// MapName is the default name of the connection-tracking map, in the kernel and in the pin
// directory. [Config] can set another name.
const MapName = "ct_map"

// Mode is the XDP mode.
type Mode string

// The modes. ModeAuto uses the driver's XDP if the driver supports it, otherwise generic XDP.
const (
	ModeAuto    Mode = "auto"
	ModeNative  Mode = "native"
	ModeGeneric Mode = "generic"
)

// Service is an address and port for clients, and the backends that serve it, all IPv4.
type Service struct {
	VIP      netip.AddrPort   `json:"vip"`
	Backends []netip.AddrPort `json:"backends"` // at least one
}

// Config configures a [Balancer]. Zero fields take the default at the end of their comment.
type Config struct {
	Service
	More []Service // further services

	Layout Layout // of the connection-tracking map; LayoutV1
	Name   string // name of that map, at most 15 bytes; MapName

	// Reports are the maps of a capture: the program itself reports its writes to them, in place of hooks. Only for
	// LayoutV1.
	Reports map[string]*ebpf.Map

	PinDir     string // existing directory on a bpffs; empty: no pin
	NewMap     bool   // replace a pinned map instead of reusing it
	MaxEntries uint32 // two for each connection; 262144

	Handshake    time.Duration // idle limit of a half-open connection; 30 s
	Established  time.Duration // idle limit of an open one; 30 min
	Closing      time.Duration // idle limit of a half-closed one; 60 s
	CollectEvery time.Duration // interval between two scans of the collector; 30 s

	Logger *slog.Logger // required
}

func (c *Config) setDefaults() {
	setDefault(&c.Layout, LayoutV1)
	setDefault(&c.Name, MapName)
	setDefault(&c.Handshake, 30*time.Second)
	setDefault(&c.Established, 30*time.Minute)
	setDefault(&c.Closing, time.Minute)
	setDefault(&c.CollectEvery, 30*time.Second)
	setDefault(&c.MaxEntries, 262144)
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// services returns all services.
func (c *Config) services() []Service { return append([]Service{c.Service}, c.More...) }

func (c *Config) validate() error {
	for _, s := range c.services() {
		if err := s.validate(); err != nil {
			return err
		}
	}
	if c.Reports != nil && c.Layout != LayoutV1 {
		return fmt.Errorf("reports of layout %s: only layout %s has them", c.Layout, LayoutV1)
	}
	return c.Layout.Validate()
}

func (s *Service) validate() error {
	if !s.VIP.Addr().Is4() || s.VIP.Port() == 0 {
		return fmt.Errorf("service %s is not an IPv4 address and port", s.VIP)
	}
	if len(s.Backends) == 0 {
		return fmt.Errorf("service %s has no backend", s.VIP)
	}
	for _, b := range s.Backends {
		if !b.Addr().Is4() || b.Port() == 0 {
			return fmt.Errorf("backend %s is not an IPv4 address and port", b)
		}
	}
	return nil
}

// Balancer is a loaded load balancer. It owns its BPF objects until Close.
type Balancer struct {
	cfg     Config
	log     *slog.Logger
	release release
	objs    bpf.LBObjects // of either release: both use the same names
	links   []link.Link
	idle    atomic.Uint64 // entries that the collector deleted
}

// New loads the program, configures the service and its backends, and pins the connection-tracking
// map. It attaches no program. It needs CAP_BPF (or CAP_SYS_ADMIN before 5.8) and CAP_NET_ADMIN.
func New(cfg Config) (*Balancer, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("raise memory lock limit: %w", err)
	}
	b := &Balancer{cfg: cfg, log: cfg.Logger, release: releases[cfg.Layout]}
	if err := b.load(); err != nil {
		return nil, err
	}
	if err := b.configure(); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

func (b *Balancer) load() error {
	load := b.release.load
	if b.cfg.Reports != nil {
		load = bpf.LoadLBReports
	}
	spec, err := load()
	if err != nil {
		return fmt.Errorf("read load balancer object: %w", err)
	}
	ct := spec.Maps[MapName]
	ct.Name, ct.MaxEntries = b.cfg.Name, b.cfg.MaxEntries
	for name, n := range b.cfg.counts() {
		spec.Maps[name].MaxEntries = max(spec.Maps[name].MaxEntries, n)
	}
	if b.cfg.PinDir == "" {
		ct.Pinning = ebpf.PinNone
	} else if b.cfg.NewMap {
		err := os.Remove(filepath.Join(b.cfg.PinDir, b.cfg.Name))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove old connection-tracking map: %w", err)
		}
	}
	for name, limit := range map[string]time.Duration{
		"timeout_handshake":   b.cfg.Handshake,
		"timeout_established": b.cfg.Established,
		"timeout_closing":     b.cfg.Closing,
	} {
		if err := spec.Variables[name].Set(uint32(limit / time.Second)); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	opts := &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: b.cfg.PinDir}}
	if b.cfg.Reports != nil {
		m, err := b.reportTo(spec, opts)
		if err != nil {
			return err
		}
		defer m.Close() //nolint:errcheck // the program holds a copy
	}
	if err := spec.LoadAndAssign(&b.objs, opts); err != nil {
		return fmt.Errorf("load load balancer: %w", err)
	}
	return nil
}

// reportTo creates or opens the connection-tracking map, whose id the program needs for its reports, and selects the maps
// that receive them. The caller closes the map.
func (b *Balancer) reportTo(spec *ebpf.CollectionSpec, opts *ebpf.CollectionOptions) (*ebpf.Map, error) {
	m, err := ebpf.NewMapWithOptions(spec.Maps[MapName], opts.Maps)
	if err != nil {
		return nil, fmt.Errorf("create connection-tracking map: %w", err)
	}
	info, err := m.Info()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("describe connection-tracking map: %w", err), m.Close())
	}
	id, _ := info.ID()
	if err := spec.Variables["ct_map_id"].Set(uint32(id)); err != nil {
		return nil, errors.Join(fmt.Errorf("set ct_map_id: %w", err), m.Close())
	}
	opts.MapReplacements = map[string]*ebpf.Map{MapName: m}
	for name, shared := range b.cfg.Reports {
		if spec.Maps[name] != nil {
			spec.Maps[name].MaxEntries = shared.MaxEntries()
			opts.MapReplacements[name] = shared
		}
	}
	return m, nil
}

// counts returns how many entries the maps of the configuration need, by their names.
func (c *Config) counts() map[string]uint32 {
	list := c.services()
	backends := 0
	for i := range list {
		backends += len(list[i].Backends)
	}
	return map[string]uint32{"vips": uint32(len(list)), "backends": uint32(backends)}
}

// configure writes the services and their backends, which have consecutive numbers.
func (b *Balancer) configure() error {
	next := uint32(0)
	for id, s := range b.cfg.services() {
		first := next
		for _, be := range s.Backends {
			value := bpf.LBBackend{Addr: beAddr(be.Addr()), Port: bePort(be.Port()), Id: next}
			if err := b.objs.Backends.Put(next, value); err != nil {
				return fmt.Errorf("add backend %s: %w", be, err)
			}
			next++
		}
		key := bpf.LBVipKey{Addr: beAddr(s.VIP.Addr()), Port: bePort(s.VIP.Port()), Proto: unix.IPPROTO_TCP}
		if err := b.objs.Vips.Put(key, bpf.LBVipValue{First: first, Count: next - first, Id: uint32(id)}); err != nil {
			return fmt.Errorf("add service %s: %w", s.VIP, err)
		}
	}
	return nil
}

// Attach starts balancing on the named interface of the calling thread's network namespace. The
// link exists as long as this process: the kernel detaches the program when the process ends for
// any reason.
func (b *Balancer) Attach(iface string, mode Mode) error {
	dev, err := net.InterfaceByName(iface)
	if err != nil {
		return fmt.Errorf("find interface %s: %w", iface, err)
	}
	l, used, err := attach(b.objs.Lb, dev.Index, mode)
	if err != nil {
		return fmt.Errorf("attach to %s: %w", iface, err)
	}
	b.links = append(b.links, l)
	b.log.Info("load balancer attached", "interface", iface, "mode", used, "layout", b.cfg.Layout,
		"service", b.cfg.VIP.String(), "backends", len(b.cfg.Backends))
	return nil
}

func attach(prog *ebpf.Program, ifindex int, mode Mode) (link.Link, Mode, error) {
	opts := link.XDPOptions{Program: prog, Interface: ifindex, Flags: link.XDPDriverMode}
	if mode != ModeGeneric {
		l, err := link.AttachXDP(opts)
		if err == nil || mode == ModeNative {
			return l, ModeNative, err
		}
	}
	opts.Flags = link.XDPGenericMode
	l, err := link.AttachXDP(opts)
	return l, ModeGeneric, err
}

// AttachPass attaches a program that passes all packets to the interface with the given index in
// the calling thread's network namespace. The router's end of the load balancer's link needs it. A
// veth accepts XDP_TX frames from its peer only while it polls. Before kernel 5.13 it polls only
// with its own XDP program. The caller closes the link.
func AttachPass(ifindex int) (link.Link, error) {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "pass", Type: ebpf.XDP, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2 /* XDP_PASS */), asm.Return()},
	})
	if err != nil {
		return nil, fmt.Errorf("load pass program: %w", err)
	}
	defer prog.Close() //nolint:errcheck // the link holds the program
	l, _, err := attach(prog, ifindex, ModeAuto)
	if err != nil {
		return nil, fmt.Errorf("attach pass program: %w", err)
	}
	return l, nil
}

// Map returns the connection-tracking map. b owns it; callers must not close it.
func (b *Balancer) Map() *ebpf.Map { return b.objs.CtMap }

// Close detaches the program and frees everything except the pin. The pin and its map remain for
// the next balancer. Close must be called once, after Collect has returned.
func (b *Balancer) Close() error {
	errs := make([]error, 0, len(b.links)+1)
	for _, l := range b.links {
		errs = append(errs, l.Close())
	}
	return errors.Join(append(errs, b.objs.Close())...)
}

// beAddr and bePort return values whose bytes in memory are in network order.
func beAddr(a netip.Addr) uint32 {
	b := a.As4()
	return binary.NativeEndian.Uint32(b[:])
}

func bePort(p uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, p))
}
