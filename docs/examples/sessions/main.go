// Sessions writes a hash map of sessions, as a load balancer does, for docs/quickstart.md. It is an
// example of a pinned map whose types syncd reads from BTF.
//
//	sessions create PIN                               create the map and pin it
//	sessions put PIN CLIENT SERVICE-PORT BACKEND      write a session
//	sessions delete PIN CLIENT SERVICE-PORT           delete a session
//	sessions list PIN                                 print the sessions in the kernel map
//
// CLIENT and BACKEND are addresses such as 198.51.100.7:40001. bpftool does the same with the bytes of
// keys and values.
package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
)

// commands maps each command to its function and the number of its arguments.
var commands = map[string]struct {
	arguments int
	run       func(out io.Writer, args []string) error
}{
	"create": {1, create},
	"put":    {4, put},
	"delete": {3, remove},
	"list":   {1, list},
}

func main() {
	if err := run(os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "sessions:", err)
		os.Exit(1)
	}
}

func run(out io.Writer, args []string) error {
	if len(args) == 0 {
		return errors.New("no command is given: use create, put, delete or list")
	}
	c, ok := commands[args[0]]
	if !ok || len(args)-1 != c.arguments {
		return fmt.Errorf("%q is not a command with %d arguments: use create PIN, put PIN CLIENT SERVICE-PORT BACKEND, "+
			"delete PIN CLIENT SERVICE-PORT or list PIN", args[0], len(args)-1)
	}
	return c.run(out, args[1:])
}

// create creates the map and pins it. The pin keeps the map after the end of this program.
func create(_ io.Writer, args []string) error {
	if err := rlimit.RemoveMemlock(); err != nil { // kernels before 5.11 count maps as locked memory
		return fmt.Errorf("create map: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(args[0]), 0o700); err != nil {
		return fmt.Errorf("create map: %w", err)
	}
	m, err := ebpf.NewMap(mapSpec())
	if err != nil {
		return fmt.Errorf("create map: %w", err)
	}
	defer m.Close()
	if err := m.Pin(args[0]); err != nil {
		return fmt.Errorf("pin map at %s (is it in a file system of type bpf?): %w", args[0], err)
	}
	return nil
}

func open(pin string) (*ebpf.Map, error) {
	m, err := ebpf.LoadPinnedMap(pin, nil)
	if err != nil {
		return nil, fmt.Errorf("open map %s: %w", pin, err)
	}
	return m, nil
}

func put(_ io.Writer, args []string) error {
	k, err := parseKey(args[1], args[2])
	if err != nil {
		return err
	}
	backend, err := parseAddress(args[3])
	if err != nil {
		return err
	}
	v := value{Backend: backend.Addr().As4(), Port: backend.Port()}
	m, err := open(args[0])
	if err != nil {
		return err
	}
	defer m.Close()
	if err := m.Put(encodeKey(k), encodeValue(v)); err != nil {
		return fmt.Errorf("write session: %w", err)
	}
	return nil
}

func remove(_ io.Writer, args []string) error {
	k, err := parseKey(args[1], args[2])
	if err != nil {
		return err
	}
	m, err := open(args[0])
	if err != nil {
		return err
	}
	defer m.Close()
	if err := m.Delete(encodeKey(k)); err != nil {
		return fmt.Errorf("delete session: %w", err)
	}
	return nil
}

// list prints the sessions in the order of their clients.
func list(out io.Writer, args []string) error {
	m, err := open(args[0])
	if err != nil {
		return err
	}
	defer m.Close()
	var lines []session
	var k, v [entrySize]byte
	entries := m.Iterate()
	for entries.Next(&k, &v) {
		lines = append(lines, session{decodeKey(k), decodeValue(v)})
	}
	if err := entries.Err(); err != nil {
		return fmt.Errorf("read map: %w", err)
	}
	slices.SortFunc(lines, func(a, b session) int { return cmp.Compare(a.String(), b.String()) })
	for _, s := range lines {
		fmt.Fprintln(out, s)
	}
	return nil
}

func parseAddress(text string) (netip.AddrPort, error) {
	a, err := netip.ParseAddrPort(text)
	if err != nil || !a.Addr().Is4() {
		return netip.AddrPort{}, fmt.Errorf("address %q is not an IPv4 address and a port, such as 198.51.100.7:40001", text)
	}
	return a, nil
}

func parseKey(client, service string) (key, error) {
	source, err := parseAddress(client)
	if err != nil {
		return key{}, err
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return key{}, fmt.Errorf("port %q is not a number from 0 to 65535", service)
	}
	return key{Source: source.Addr().As4(), SourcePort: source.Port(), ServicePort: uint16(port)}, nil
}
