// Package offload loads the XDP program of the TURN server, and reads and writes its maps.
package offload

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"

	"mapsync/docs/examples/turn/bpf"
)

// linkName is the file of the attachment in the pin directory.
const linkName = "turn_link"

// Maps lists the names of the maps that nodes replicate. turn_interfaces is not one of them, because
// interface indexes are local to a node.
func Maps() []string {
	return []string{"turn_upstream", "turn_downstream", "turn_stats", "turn_allocs", "turn_perms"}
}

// Offload is the loaded program with its maps. Its methods are safe for concurrent use.
type Offload struct {
	objects bpf.TurnObjects
	pinDir  string
	server  netip.AddrPort
}

// Open loads the program for a server with that address, and opens the maps in pinDir, a directory in
// a BPF file system. It creates maps that do not exist. It attaches nothing. The caller closes the
// Offload; maps and attachment remain. Open needs CAP_BPF and CAP_NET_ADMIN.
func Open(pinDir string, server netip.AddrPort) (*Offload, error) {
	if err := rlimit.RemoveMemlock(); err != nil { // kernels before 5.11 count maps as locked memory
		return nil, fmt.Errorf("raise memory lock limit: %w", err)
	}
	if err := os.MkdirAll(pinDir, 0o700); err != nil {
		return nil, fmt.Errorf("create pin directory: %w", err)
	}
	spec, err := bpf.LoadTurn()
	if err != nil {
		return nil, fmt.Errorf("read offload: %w", err)
	}
	if err := spec.Variables["server_port"].Set(bigEndian16(server.Port())); err != nil {
		return nil, fmt.Errorf("set port of the offload: %w", err)
	}
	o := &Offload{pinDir: pinDir, server: server}
	err = spec.LoadAndAssign(&o.objects, &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: pinDir}})
	if err != nil {
		return nil, fmt.Errorf("load offload with the maps in %s (remove maps of another release): %w", pinDir, err)
	}
	return o, nil
}

// Attach starts the offload on an interface of the calling thread's network namespace. If the
// program of an earlier process is attached there, Attach replaces it, so that no packet is without
// offload. The attachment outlives this process until Detach.
func (o *Offload) Attach(name string) error {
	device, err := net.InterfaceByName(name)
	if err != nil {
		return fmt.Errorf("find interface %s: %w", name, err)
	}
	replaced, err := o.replace(device.Index)
	if err != nil {
		return err
	}
	if !replaced {
		if err := o.attach(device.Index); err != nil {
			return fmt.Errorf("attach offload to %s: %w", name, err)
		}
	}
	return o.Enable(device.Index, true)
}

// replace replaces the program of the pinned attachment, if there is one on the interface.
func (o *Offload) replace(index int) (done bool, err error) {
	pin := filepath.Join(o.pinDir, linkName)
	l, err := link.LoadPinnedLink(pin, nil)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open attachment %s: %w", pin, err)
	}
	defer l.Close() //nolint:errcheck // the pin holds the attachment
	info, err := l.Info()
	if err != nil {
		return false, fmt.Errorf("read attachment %s: %w", pin, err)
	}
	if x := info.XDP(); x == nil || x.Ifindex != uint32(index) {
		return false, o.Detach()
	}
	if err := l.Update(o.objects.Turn); err != nil {
		return false, fmt.Errorf("replace program of attachment %s: %w", pin, err)
	}
	return true, nil
}

func (o *Offload) attach(index int) error {
	l, err := link.AttachXDP(link.XDPOptions{Program: o.objects.Turn, Interface: index, Flags: link.XDPDriverMode})
	if err != nil { // the driver has no XDP
		l, err = link.AttachXDP(link.XDPOptions{Program: o.objects.Turn, Interface: index, Flags: link.XDPGenericMode})
	}
	if err != nil {
		return err
	}
	defer l.Close() //nolint:errcheck // the pin holds the attachment
	return l.Pin(filepath.Join(o.pinDir, linkName))
}

// Detach ends the offload on this node. All packets then go to the server.
func (o *Offload) Detach() error {
	err := os.Remove(filepath.Join(o.pinDir, linkName))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("detach offload: %w", err)
	}
	return nil
}

// Enable lets the attached program handle the packets that it receives on the interface with that
// index, or pass all of them to the server.
func (o *Offload) Enable(index int, on bool) error {
	var err error
	if on {
		err = o.objects.TurnInterfaces.Put(uint32(index), bigEndian32(o.server.Addr()))
	} else if err = o.objects.TurnInterfaces.Delete(uint32(index)); errors.Is(err, ebpf.ErrKeyNotExist) {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("change interface %d of the offload: %w", index, err)
	}
	return nil
}

// Close releases the program and the maps. Pinned maps and the attachment remain.
func (o *Offload) Close() error { return o.objects.Close() }
