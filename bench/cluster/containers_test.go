package cluster

import (
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/network"
	"github.com/testcontainers/testcontainers-go/wait"
)

// inMachine is set by scripts/test-kernels. Docker is unavailable inside a virtual machine.
const inMachine = "MAPSYNC_KERNEL"

// containers is a place with one container per node. The image contains only this test binary.
type containers struct {
	t       *testing.T
	network string
	image   string
}

func newContainers(t *testing.T) *containers {
	t.Helper()
	if os.Getenv(inMachine) != "" {
		t.Skip("no containers inside the virtual machine")
	}
	// The reaper needs an image that would have to be pulled; t.Cleanup removes the containers
	// instead.
	t.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
	n, err := network.New(t.Context())
	if err != nil {
		t.Fatalf("create a network of containers (is Docker running?): %v", err)
	}
	t.Cleanup(func() {
		if err := n.Remove(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return &containers{t: t, network: n.Name}
}

// buildContext returns a directory with this binary and a Dockerfile.
func (c *containers) buildContext() (string, error) {
	dir := c.t.TempDir()
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	if err := checkStatic(exe); err != nil {
		return "", err
	}
	in, err := os.Open(exe)
	if err != nil {
		return "", err
	}
	defer in.Close()
	out, err := os.OpenFile(filepath.Join(dir, "node"), os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return "", err
	}
	if _, err := io.Copy(out, in); err != nil {
		return "", err
	}
	if err := out.Close(); err != nil {
		return "", err
	}
	dockerfile := "FROM scratch\nCOPY node /node\nENTRYPOINT [\"/node\"]\n"
	return dir, os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(dockerfile), 0o600)
}

// checkStatic returns an error with a hint if the binary cannot run in an image without other
// files.
func checkStatic(exe string) error {
	f, err := elf.Open(exe)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return errors.New("this test binary needs shared libraries: run the test with CGO_ENABLED=0")
		}
	}
	return nil
}

func (c *containers) start(ctx context.Context, i int, m mapSettings) (address, control string, err error) {
	s, err := json.Marshal(settings{Number: uint32(i), Map: m, Control: net.JoinHostPort("", controlPort), Dir: "/run/mapsync"})
	if err != nil {
		return "", "", err
	}
	request := testcontainers.ContainerRequest{
		Image:      c.image,
		Networks:   []string{c.network},
		Env:        map[string]string{roleVariable: roleNode, settingsVariable: string(s)},
		WaitingFor: wait.ForLog("node is up"),
		HostConfigModifier: func(h *container.HostConfig) {
			h.CapAdd = []string{"SYS_ADMIN", "NET_ADMIN"}
		},
		LogConsumerCfg: &testcontainers.LogConsumerConfig{Consumers: []testcontainers.LogConsumer{logTo{c.t, i}}},
	}
	if c.image == "" {
		dir, err := c.buildContext()
		if err != nil {
			return "", "", fmt.Errorf("make the image: %w", err)
		}
		request.FromDockerfile = testcontainers.FromDockerfile{Context: dir, Repo: "mapsync-cluster", Tag: "test"}
	}
	box, err := testcontainers.GenericContainer(ctx, testcontainers.GenericContainerRequest{ContainerRequest: request, Started: true})
	testcontainers.CleanupContainer(c.t, box)
	if err != nil {
		return "", "", fmt.Errorf("start container: %w", err)
	}
	address, err = box.ContainerIP(ctx)
	return address, net.JoinHostPort(address, controlPort), err
}

// logTo writes a container's output to the log of the test.
type logTo struct {
	t *testing.T
	i int
}

func (l logTo) Accept(log testcontainers.Log) {
	if testing.Verbose() {
		fmt.Fprintf(os.Stderr, "n%d: %s", l.i, log.Content)
	}
}
