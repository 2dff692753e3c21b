package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"mapsync/syncd/capture"
)

// processes is a place with one process per node, each with a loopback address. It needs a kernel
// with real hooks.
type processes struct {
	t      *testing.T
	attach capture.Attach
}

func (p *processes) start(_ context.Context, i int, m mapSettings) (address, control string, err error) {
	address = fmt.Sprintf("127.0.0.%d", 10+i)
	control = net.JoinHostPort(address, controlPort)
	s := settings{Number: uint32(i), Map: m, Hooks: true, Control: control, Dir: filepath.Join(p.t.TempDir(), "node")}
	return address, control, startNode(p.t, s, (*exec.Cmd).Start)
}

// startNode starts a node's process and waits until it is up. The process ends with the test.
func startNode(t *testing.T, s settings, start func(*exec.Cmd) error) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), roleVariable+"="+roleNode, settingsVariable+"="+string(data))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := start(cmd); err != nil {
		return err
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		return fmt.Errorf("node %d did not start: %q, %w", s.Number, line, err)
	}
	return nil
}
