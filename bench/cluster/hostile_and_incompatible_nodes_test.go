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

// isIncompatible reports whether the node with this name does not replicate with the others.
func (tr *trial) isIncompatible(name string) bool {
	return slices.ContainsFunc(tr.incompatible, func(m *remote) bool { return m.name == name })
}

// neverInSync returns an error if a node counts an incompatible one as in sync.
func neverInSync(node, incompatible string, inSync bool) error {
	if !inSync {
		return nil
	}
	return fmt.Errorf("%s counts %s as in sync, but their maps are incompatible", node, incompatible)
}

// isForged reports whether the hostile member sent this value in another owner's name: an owner
// that was never live, or an earlier incarnation of a node. A data plane may have changed the value in place
// since.
func isForged(value string) bool {
	for _, at := range []int{0, 8} {
		version := binary.LittleEndian.Uint64([]byte(value[at : at+8]))
		if version == inventedValue || version == forgedValue {
			return true
		}
	}
	return false
}

// mayBeForged reports whether an invented owner's record may replace a record of a node: the hostile
// member takes part, and a fault may make the node count as gone.
func (p *plan) mayBeForged(node int) bool {
	has := func(match func(f *fault) bool) bool {
		return slices.ContainsFunc(p.Faults, func(f fault) bool { return match(&f) })
	}
	return has(func(f *fault) bool { return f.Kind == faultHostile }) && has(func(f *fault) bool {
		switch f.Kind {
		case faultKill, faultStop:
			return f.Node == node
		case faultCut:
			return slices.ContainsFunc(f.Cut, func(d direction) bool { return d.from == node })
		}
		return f.Kind == faultStarve
	})
}

// countFlows counts the entries that do not come from extra members.
func countFlows(held content) (n int) {
	for key, value := range held {
		if node := binary.LittleEndian.Uint32([]byte(key[:4])); node != hostileNode && node != churnNode && !isForged(value) {
			n++
		}
	}
	return n
}

// startExtraMember starts an extra member in a new namespace. It returns the function that ends it.
func (c *chaos) startExtraMember(f *fault) func() {
	i := c.plan.Nodes + len(c.incompatible) + c.extraMembers
	c.extraMembers++
	ns, err := c.net.connect(i)
	c.must(err)
	s := extraMemberSettings{
		Kind: extraMemberHostile, Seed: c.plan.Seed, Names: f.Names, AtOnce: f.AtOnce, Address: c.net.address(i), Join: c.join, DeadTime: c.start[0].Config.DeadTime,
		Dir: filepath.Join(c.net.dir, fmt.Sprintf("extra%d", i)), Ahead: f.Ahead, Flows: c.plan.Load.Flows, Nodes: c.plan.Nodes,
	}
	names := []string{hostileName}
	if f.Kind == faultChurn {
		s.Kind, names = extraMemberChurn, nil
		for k := range f.Names {
			names = append(names, churnName(k))
		}
	}
	c.must(os.MkdirAll(s.Dir, 0o700))
	for name, data := range c.files(string(s.Kind), testcert.Options{DNSNames: names}) {
		c.must(os.WriteFile(filepath.Join(s.Dir, name), data, 0o600))
	}
	data, err := json.Marshal(s)
	c.must(err)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleVariable+"="+roleExtraMember, settingsVariable+"="+string(data))
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
		c.t.Fatalf("extra member %s did not start: %q, %v", s.Kind, line, err)
	}
	return func() {
		if f.Kind == faultChurn {
			c.awaitChurn(in)
		}
		end := syscall.SIGTERM
		if f.Abrupt {
			end = syscall.SIGKILL
		}
		_ = cmd.Process.Signal(end) // the churn member ends by itself
		_ = cmd.Wait()
	}
}

// awaitChurn waits until all names of the churn member have joined and left.
func (c *chaos) awaitChurn(in *bufio.Reader) {
	done := make(chan error, 1)
	go func() {
		_, err := in.ReadString('\n')
		done <- err
	}()
	select {
	case err := <-done:
		c.must(err)
	case <-time.After(5 * time.Minute):
		c.t.Error("wait for the churn member: not all names have joined and left within 5 min")
	}
}
