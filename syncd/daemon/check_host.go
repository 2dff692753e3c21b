package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"mapsync/syncd/drained"

	"golang.org/x/sys/unix"
)

// checkFiles checks the paths that syncd writes to.
func (k *checker) checkFiles() {
	c := k.config
	if info, err := os.Lstat(c.ControlSocket); err == nil && info.Mode().Type() != fs.ModeSocket {
		k.fail("control-socket", fmt.Errorf("%s exists and is not a socket (%s)", c.ControlSocket, info.Mode()))
	}
	const longest = 107 // bytes of sun_path, without the final zero
	if len(c.ControlSocket) > longest {
		k.fail("control-socket", fmt.Errorf("the path has %d bytes, a unix socket's at most %d", len(c.ControlSocket), longest))
	}
	if err := checkWritable(filepath.Dir(c.ControlSocket)); err != nil {
		k.fail("control-socket", fmt.Errorf("%w; let the user of syncd write there", err))
	}
	if err := checkWritable(c.StateDir); err != nil {
		k.fail("state-dir", fmt.Errorf("%w; let the user of syncd write there: otherwise ended sessions may come back from peers after a restart of syncd", err))
	}
	path := filepath.Join(c.StateDir, c.NodeName+".state.json")
	switch info, err := os.Lstat(path); {
	case err != nil || info.Mode().IsRegular():
	case info.IsDir():
		k.fail("state-dir", fmt.Errorf("%s is a directory: remove it, or set another state-dir", path))
	default:
		k.warn("state-dir", "%s is not a regular file (%s): it is replaced at the start", path, info.Mode())
	}
	k.checkPinDir()
}

// checkWritable returns an error unless this process can create files in a directory, or can create the directory.
func checkWritable(dir string) error {
	for {
		info, err := os.Stat(dir)
		if parent := filepath.Dir(dir); errors.Is(err, fs.ErrNotExist) && parent != dir {
			dir = parent
			continue
		}
		if err != nil {
			return err
		}
		if !info.IsDir() {
			return fmt.Errorf("%s is not a directory", dir)
		}
		break
	}
	if err := tryWrite(dir); err != nil {
		return fmt.Errorf("%s cannot be written: %w", dir, err)
	}
	return nil
}

// tryWrite writes a file in a new directory, and removes both. Only that shows what a file system without files, or without space,
// refuses.
func tryWrite(dir string) (err error) {
	made, err := os.MkdirTemp(dir, ".syncd-check-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(made)) }()
	return os.WriteFile(filepath.Join(made, "file"), []byte{'\n'}, 0o600)
}

// checkPinDir checks the folders of the pins of drained maps.
func (k *checker) checkPinDir() {
	for _, name := range k.config.DrainSumsMaps {
		folder := k.config.DrainSumsFolder(name)
		if folder == "" {
			continue
		}
		switch err := drained.CheckFolder(folder); {
		case errors.Is(err, drained.ErrNotBPF):
			k.warn("pin-dir", "%v: the sums of drained entries end with syncd; set pin-dir to a folder in a mounted BPF file system", err)
		case err != nil:
			k.fail("pin-dir", err)
		}
	}
}

// port is an address at which syncd listens, with its setting.
type port struct{ setting, network, addr string }

// checkPorts checks that syncd can listen at its addresses. A port in use may be that of the daemon that answers at the control
// socket: the settings are then for its reload or restart.
func (k *checker) checkPorts(ctx context.Context) {
	c := k.config
	var ports []port
	if !c.Standalone() {
		ports = append(ports, port{"gossip-listen", "udp", c.GossipListen})
	}
	for _, l := range c.Listeners() {
		ports = append(ports, port{l.Setting, "tcp", l.Addr})
	}
	for _, p := range ports {
		if err := p.listen(ctx); errors.Is(err, unix.EADDRINUSE) {
			k.checkUsedPort(p, err)
		} else {
			k.fail(p.setting, err)
		}
	}
}

// checkUsedPort reports a port in use, unless the running daemon uses it.
func (k *checker) checkUsedPort(p port, inUse error) {
	if pid, running := daemonAt(k.config.ControlSocket); running {
		switch owned, err := p.ownedBy(pid); {
		case err != nil:
			k.warn(p.setting, "%v, and it is not checked whether by the running syncd: %v", inUse, err)
			return
		case owned:
			return
		}
	}
	k.fail(p.setting, fmt.Errorf("%w; stop the program on that port, which `ss -lntup` lists, or set another port", inUse))
}

// listen listens briefly at the address. It returns nil for an empty address, and for one that Validate refuses.
func (p *port) listen(ctx context.Context) error {
	host, _, err := net.SplitHostPort(p.addr)
	if err != nil {
		return nil
	}
	if ip, err := netip.ParseAddr(host); err == nil && !ip.IsUnspecified() && !isLocal(ip) {
		return fmt.Errorf("no interface of this host has the address %s now", ip)
	}
	var config net.ListenConfig
	var l interface{ Close() error }
	if p.network == "udp" {
		l, err = config.ListenPacket(ctx, p.network, p.addr)
	} else {
		l, err = config.Listen(ctx, p.network, p.addr)
	}
	if err != nil {
		return err
	}
	return l.Close()
}

// isLocal reports whether an interface of this host has an address.
func isLocal(ip netip.Addr) bool {
	own, err := net.InterfaceAddrs()
	if err != nil || ip.IsLoopback() {
		return true
	}
	for _, a := range own {
		if strings.HasPrefix(a.String(), ip.WithZone("").String()+"/") {
			return true
		}
	}
	return false
}

// peerTimeout bounds the resolution of a peer's name, and each connection to it.
const peerTimeout = 2 * time.Second

// checkPeers warns about nodes of join that do not answer: syncd may not run there yet.
func (k *checker) checkPeers(ctx context.Context) {
	problems := make([]string, len(k.config.Join))
	var wait sync.WaitGroup
	for i, addr := range k.config.Join {
		wait.Go(func() { problems[i] = k.peerProblem(ctx, addr) })
	}
	wait.Wait()
	for _, text := range problems {
		if text != "" {
			k.warn("join", "%s", text)
		}
	}
}

// peerProblem returns why a node of join cannot be a peer, or an empty text. It tries the port of the gossip, and then that of
// grpc-listen: nodes usually have the same one.
func (k *checker) peerProblem(ctx context.Context, addr string) string {
	c := k.config
	host, number, err := net.SplitHostPort(addr)
	if err != nil {
		return "" // Options.Check has reported it
	}
	named, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	found, err := net.DefaultResolver.LookupHost(named, host)
	if err != nil {
		return fmt.Sprintf("%s cannot be resolved now: %v", addr, err)
	}
	if k.isOwn(found, number) {
		return ""
	}
	if err := answers(ctx, addr); err != nil {
		return fmt.Sprintf("%s does not answer now: %v: start syncd there, and open the port of gossip-listen for TCP and UDP", addr, err)
	}
	_, number, err = net.SplitHostPort(c.GRPCListen)
	if err != nil || number == "0" {
		return ""
	}
	if err := answers(ctx, net.JoinHostPort(host, number)); err != nil {
		return fmt.Sprintf("%s answers, but not the port %s of grpc-listen: %v: open it for TCP, unless grpc-listen has another port there", addr, number, err)
	}
	return ""
}

// isOwn reports whether one of the addresses of a node of join, with its port, is a gossip address of this node.
func (k *checker) isOwn(hosts []string, number string) bool {
	for _, own := range []string{k.config.GossipListen, k.config.GossipAdvertise} {
		host, port, err := net.SplitHostPort(own)
		if err != nil || port != number {
			continue
		}
		ip, err := netip.ParseAddr(host)
		wildcard := host == "" || err == nil && ip.IsUnspecified()
		for _, other := range hosts {
			local, err := netip.ParseAddr(other)
			if other == host || wildcard && err == nil && isLocal(local) {
				return true
			}
		}
	}
	return false
}

// answers returns nil if a program listens at an address.
func answers(ctx context.Context, addr string) error {
	dialer := net.Dialer{Timeout: peerTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	return conn.Close()
}
