package trace

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/cilium/ebpf"

	"mapsync/docs/examples/bundling/bpf"
)

// The states of sockets in /proc/net: a service of UDP is a socket without a peer.
const (
	stateListen = "0A"
	stateNoPeer = "07"
)

// addListeners adds the services that listened before the programs were attached.
func (t *tracer) addListeners() error {
	first, err := firstEphemeralPort()
	if err != nil {
		return err
	}
	for _, file := range []struct {
		name, state string
		protocol    uint8
	}{{"tcp", stateListen, syscall.IPPROTO_TCP}, {"tcp6", stateListen, syscall.IPPROTO_TCP}, {"udp", stateNoPeer, syscall.IPPROTO_UDP}} {
		ports, err := localPorts("/proc/thread-self/net/"+file.name, file.state)
		if err != nil {
			return fmt.Errorf("find the services: %w", err)
		}
		for _, port := range ports {
			// A client of UDP may have no peer, either. The kernel chooses its port.
			if file.protocol == syscall.IPPROTO_UDP && port >= first {
				continue
			}
			err := t.listeners.Update(bpf.TracerListener{Port: port, Protocol: file.protocol}, uint64(1), ebpf.UpdateNoExist)
			if err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
				return fmt.Errorf("add the service on port %d: %w", port, err)
			}
		}
	}
	return nil
}

// localPorts returns the local ports of the sockets in a file of /proc/net with a state.
func localPorts(path, state string) (ports []uint16, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) { // a kernel without IPv6
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); ; {
		if !lines.Scan() {
			return ports, lines.Err()
		}
		fields := strings.Fields(lines.Text()) // sl local_address rem_address st ...
		if len(fields) < 4 || fields[3] != state {
			continue
		}
		_, hex, _ := strings.Cut(fields[1], ":")
		port, err := strconv.ParseUint(hex, 16, 16)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		ports = append(ports, uint16(port))
	}
}

// firstEphemeralPort returns the first port that the kernel chooses for clients.
func firstEphemeralPort() (uint16, error) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return 0, fmt.Errorf("read the ports of clients: %w", err)
	}
	var first uint16
	if _, err := fmt.Sscan(string(text), &first); err != nil {
		return 0, fmt.Errorf("read the ports of clients: %w", err)
	}
	return first, nil
}
