package cluster

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"mapsync/internal/testcert"
)

// isMisfit reports whether a node of this name replicates nothing with the others.
func (tr *trial) isMisfit(name string) bool {
	return slices.ContainsFunc(tr.misfit, func(m *remote) bool { return m.name == name })
}

// isForeign reports whether the hostile member sent a value in another's name: one that was never
// live, or an earlier incarnation of a node.
func isForeign(value string) bool {
	version := binary.LittleEndian.Uint64([]byte(value[:8]))
	return version == inventedValue || version == forgedValue
}

// exposed reports whether an invented owner's record may replace one of a node: the node leaves
// while the hostile member takes part.
func (p *plan) exposed(node int) bool {
	has := func(kind faultKind, node int) bool {
		return slices.ContainsFunc(p.Faults, func(f fault) bool { return f.Kind == kind && f.Node == node })
	}
	return has(faultHostile, 0) && has(faultKill, node)
}

// flows counts the entries that are not guests'.
func flows(held content) (n int) {
	for key, value := range held {
		if node := binary.LittleEndian.Uint32([]byte(key[:4])); node != hostileNode && node != crowdNode && !isForeign(value) {
			n++
		}
	}
	return n
}

// guest starts a guest in a namespace of its own and returns what ends it.
func (c *chaos) guest(f *fault) func() {
	i := c.plan.Nodes + len(c.misfit) + c.guests
	c.guests++
	ns, err := c.net.connect(i)
	c.must(err)
	s := guestSettings{
		Kind: guestHostile, Seed: c.plan.Seed, Names: f.Names, AtOnce: f.AtOnce, Address: c.net.address(i), Join: c.join, DeadTime: c.start[0].Config.DeadTime,
		Dir: filepath.Join(c.net.dir, fmt.Sprintf("guest%d", i)), Ahead: f.Ahead, Flows: c.plan.Load.Flows, Nodes: c.plan.Nodes,
	}
	names := []string{hostileName}
	if f.Kind == faultCrowd {
		s.Kind, names = guestCrowd, nil
		for k := range f.Names {
			names = append(names, crowdName(k))
		}
	}
	c.must(os.MkdirAll(s.Dir, 0o700))
	for name, data := range c.files(string(s.Kind), testcert.Options{DNSNames: names}) {
		c.must(os.WriteFile(filepath.Join(s.Dir, name), data, 0o600))
	}
	data, err := json.Marshal(s)
	c.must(err)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleVariable+"="+roleGuest, settingsVariable+"="+string(data))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	c.must(err)
	c.must(ns.Start(cmd))
	c.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	in := bufio.NewReader(out)
	if line, err := in.ReadString('\n'); err != nil {
		c.t.Fatalf("guest %s did not come up: %q, %v", s.Kind, line, err)
	}
	return func() {
		if f.Kind == faultCrowd {
			c.dispersed(in)
		}
		end := syscall.SIGTERM
		if f.Abrupt {
			end = syscall.SIGKILL
		}
		_ = cmd.Process.Signal(end) // a crowd has ended by itself
		_ = cmd.Wait()
	}
}

// dispersed waits until all names of a crowd have come and gone.
func (c *chaos) dispersed(in *bufio.Reader) {
	done := make(chan error, 1)
	go func() {
		_, err := in.ReadString('\n')
		done <- err
	}()
	select {
	case err := <-done:
		c.must(err)
	case <-time.After(5 * time.Minute):
		c.t.Error("the crowd has not come and gone")
	}
}
