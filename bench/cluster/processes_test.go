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

// processes is a place of one process a node, each with a loopback address, for
// a kernel with real hooks.
type processes struct {
	t      *testing.T
	attach capture.Attach
}

func (p *processes) start(_ context.Context, i int) (string, error) {
	address := fmt.Sprintf("127.0.0.%d", 10+i)
	s, err := json.Marshal(settings{
		Number: uint32(i), Hooks: true,
		Control: net.JoinHostPort(address, controlPort), Dir: filepath.Join(p.t.TempDir(), "node"),
	})
	if err != nil {
		return "", err
	}
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), roleVariable+"="+roleNode, settingsVariable+"="+string(s))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	p.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		return "", fmt.Errorf("node %d did not come up: %q, %w", i, line, err)
	}
	return address, nil
}
