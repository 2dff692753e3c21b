// Package counters counts the bytes that this host sends by TCP, by program and destination service, in a pinned BPF map.
// syncd makes Prometheus counters of that map. It is an example: copy it and change the types and the hook.
package counters

import (
	_ "embed" // the settings
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"

	"mapsync/docs/examples/counters/bpf"
)

// Settings is the content of syncd.yaml.
//
//go:embed syncd.yaml
var Settings []byte

// MapName is the name of the map, of its pin, and in the settings of syncd.
const MapName = bpf.AccountingMapServices

// Attach is the way in which the program is attached.
type Attach string

// The ways to attach the program. Each counts the same bytes.
const (
	AttachAuto       Attach = "auto"       // the first one of the following that the kernel allows
	AttachFexit      Attach = "fexit"      // tcp_sendmsg, one call when it returns
	AttachKprobe     Attach = "kprobe"     // tcp_sendmsg, one call at its entry and one at its return
	AttachTracepoint Attach = "tracepoint" // sock_send_length, from kernel 6.3
)

// Options are the options of Open.
type Options struct {
	Attach Attach // empty: AttachAuto
	// PinDir is a directory of a BPF filesystem. Open uses the map that is pinned there, or creates it.
	PinDir string
	// Network contains the destinations that are counted. The zero value contains all.
	Network netip.Prefix
}

// Accountant is an attached program. Its map stays pinned after Close.
type Accountant struct {
	attach Attach
	loaded *ebpf.Collection
	links  []link.Link
}

// maxReturnProbes is the number of calls of tcp_sendmsg that a return probe follows at a time. The kernel does not report
// the return of others.
const maxReturnProbes = 4096

// Open loads the program and attaches it. The caller closes the Accountant.
func Open(o Options) (*Accountant, error) {
	if err := rlimit.RemoveMemlock(); err != nil { // kernels before 5.11 count maps as locked memory
		return nil, fmt.Errorf("load program: %w", err)
	}
	if err := os.MkdirAll(o.PinDir, 0o700); err != nil {
		return nil, fmt.Errorf("create directory of the pin: %w", err)
	}
	ways := []Attach{o.Attach}
	if o.Attach == "" || o.Attach == AttachAuto {
		ways = []Attach{AttachFexit, AttachKprobe, AttachTracepoint}
	}
	var errs []error
	for _, way := range ways {
		a, err := open(way, &o)
		if err == nil {
			return a, nil
		}
		errs = append(errs, fmt.Errorf("attach by %s: %w", way, err))
	}
	return nil, errors.Join(errs...)
}

// programsOf names the programs of each way.
var programsOf = map[Attach][]string{
	AttachFexit:      {bpf.AccountingProgFexitTcpSendmsg},
	AttachKprobe:     {bpf.AccountingProgKretprobeTcpSendmsg, bpf.AccountingProgKprobeTcpSendmsg},
	AttachTracepoint: {bpf.AccountingProgTraceSockSendLength},
}

func open(way Attach, o *Options) (_ *Accountant, err error) {
	if programsOf[way] == nil {
		return nil, errors.New("no such way: choose auto, fexit, kprobe or tracepoint")
	}
	spec, err := bpf.LoadAccounting()
	if err != nil {
		return nil, err
	}
	for name := range spec.Programs {
		if !slices.Contains(programsOf[way], name) {
			delete(spec.Programs, name)
		}
	}
	spec.Maps[MapName].Pinning = ebpf.PinByName
	if err := configure(spec, o); err != nil {
		return nil, err
	}
	a := &Accountant{attach: way}
	a.loaded, err = ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: o.PinDir}})
	if err != nil {
		return nil, fmt.Errorf("load program: %w", err)
	}
	for _, name := range programsOf[way] {
		l, err := attach(way, name, a.loaded.Programs[name])
		if err != nil {
			return nil, errors.Join(err, a.Close())
		}
		a.links = append(a.links, l)
	}
	return a, nil
}

// hooked is the kernel function of the probes.
const hooked = "tcp_sendmsg"

func attach(way Attach, name string, p *ebpf.Program) (l link.Link, err error) {
	switch {
	case way != AttachKprobe:
		l, err = link.AttachTracing(link.TracingOptions{Program: p})
	case name == bpf.AccountingProgKprobeTcpSendmsg:
		l, err = link.Kprobe(hooked, p, nil)
	default:
		l, err = link.Kretprobe(hooked, p, &link.KprobeOptions{RetprobeMaxActive: maxReturnProbes})
	}
	if err != nil {
		return nil, fmt.Errorf("attach %s: %w", name, err)
	}
	return l, nil
}

// Attached returns the way in which the program is attached.
func (a *Accountant) Attached() Attach { return a.attach }

// Map returns the map of services. The Accountant owns it.
func (a *Accountant) Map() *ebpf.Map { return a.loaded.Maps[MapName] }

// Missed returns the bytes that were not counted because the map was full, and the number of calls whose bytes are not
// known because too many were in progress.
func (a *Accountant) Missed() (bytes, calls uint64, err error) {
	var ofCPUs []bpf.AccountingMissed
	if err := a.loaded.Maps[bpf.AccountingMapMissedSums].Lookup(uint32(0), &ofCPUs); err != nil {
		return 0, 0, fmt.Errorf("read what was not counted: %w", err)
	}
	for _, m := range ofCPUs {
		bytes += m.Bytes
		calls += m.Calls
	}
	return bytes, calls, nil
}

// Close detaches the program. The map stays pinned with its content.
func (a *Accountant) Close() error {
	var errs []error
	for _, l := range a.links {
		errs = append(errs, l.Close())
	}
	a.links = nil
	a.loaded.Close()
	return errors.Join(errs...)
}

// configure sets the constants of the program.
func configure(spec *ebpf.CollectionSpec, o *Options) error {
	network, mask := words(o.Network)
	first, err := firstClientPort()
	if err != nil {
		return err
	}
	return errors.Join(
		spec.Variables[bpf.AccountingVarNetwork].Set(network),
		spec.Variables[bpf.AccountingVarNetworkMask].Set(mask),
		spec.Variables[bpf.AccountingVarFirstClientPort].Set(first),
	)
}

// words returns a network as the program compares it: an IPv4 address is in the first word, and the other words are zero.
func words(p netip.Prefix) (network, mask [16]byte) {
	if !p.IsValid() {
		return network, mask
	}
	copy(network[:], p.Masked().Addr().AsSlice())
	bits := p.Bits()
	for i := range mask {
		n := min(max(bits-8*i, 0), 8)
		if p.Addr().Is4() && i >= 4 {
			n = 8
		}
		mask[i] = byte(0xff << (8 - n))
	}
	return network, mask
}

// firstClientPort returns the lowest port that the kernel chooses for clients.
func firstClientPort() (uint16, error) {
	const setting = "/proc/sys/net/ipv4/ip_local_port_range"
	text, err := os.ReadFile(setting)
	if err != nil {
		return 0, fmt.Errorf("read the ports of clients: %w", err)
	}
	first, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\t")
	n, err := strconv.ParseUint(first, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("read the ports of clients: parse %s: %w", setting, err)
	}
	return uint16(n), nil
}
