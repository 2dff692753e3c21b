package netns

import (
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"
)

func pair(t *testing.T) (a, b *NS) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root; the virtual machine runs this test as root")
	}
	make := func(name string) *NS {
		n, err := New(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := n.Close(); err != nil {
				t.Error(err)
			}
		})
		return n
	}
	a, b = make("a"), make("b")
	must(t, Veth(a, "left", b, "right"))
	must(t, a.Addr("left", "10.77.0.1/24"))
	must(t, b.Addr("right", "10.77.0.2/24"))
	must(t, a.Up("left"))
	must(t, b.Up("right"))
	return a, b
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// echoLimit is the time for a connection, and for the echo, on a busy machine.
const echoLimit = 10 * time.Second

// echoRoundTrip sends a message from a to a listener of b at addr and checks the echo.
func echoRoundTrip(t *testing.T, a, b *NS, addr string) error {
	t.Helper()
	var ln net.Listener
	must(t, b.Do(func() (err error) { ln, err = net.Listen("tcp", addr); return err }))
	defer ln.Close()
	go func() {
		if c, err := ln.Accept(); err == nil {
			_, _ = io.Copy(c, c)
			c.Close()
		}
	}()
	var c net.Conn
	err := a.Do(func() (err error) { c, err = net.DialTimeout("tcp", ln.Addr().String(), echoLimit); return err })
	if err != nil {
		return err
	}
	defer c.Close()
	must(t, c.SetDeadline(time.Now().Add(echoLimit)))
	if _, err = c.Write([]byte("ping")); err != nil {
		return err
	}
	buf := make([]byte, 4)
	_, err = io.ReadFull(c, buf)
	if err == nil && string(buf) != "ping" {
		t.Errorf("echo: got %q, want \"ping\"", buf)
	}
	return err
}

func TestVethCarriesTCP(t *testing.T) {
	a, b := pair(t)
	must(t, echoRoundTrip(t, a, b, "10.77.0.2:0"))
	must(t, b.Down("right"))
	must(t, b.Up("right"))
	must(t, echoRoundTrip(t, a, b, "10.77.0.2:0"))
}

func TestRouteIsReplaced(t *testing.T) {
	a, b := pair(t)
	must(t, b.Addr("lo", "10.78.0.1/32"))
	if err := echoRoundTrip(t, a, b, "10.78.0.1:0"); err == nil {
		t.Fatal("connection without a route: got a reply, want an error")
	}
	must(t, a.Route("10.78.0.0/16", "10.77.0.9")) // no host has this address
	must(t, a.Route("10.78.0.0/16", "10.77.0.2"))
	must(t, echoRoundTrip(t, a, b, "10.78.0.1:0"))
}

func TestNeighAndMAC(t *testing.T) {
	a, b := pair(t)
	mac, err := b.MAC("right")
	must(t, err)
	must(t, a.Neigh("left", "10.77.0.2", mac))
	must(t, echoRoundTrip(t, a, b, "10.77.0.2:0"))
	must(t, a.Neigh("left", "10.77.0.2", net.HardwareAddr{2, 0, 0, 0, 0, 1}))
	if err := echoRoundTrip(t, a, b, "10.77.0.2:0"); err == nil {
		t.Fatal("connection with a wrong hardware address: got a reply, want an error")
	}
}

func TestTxChecksum(t *testing.T) {
	a, b := pair(t)
	for _, want := range []bool{false, true, false} {
		must(t, a.TxChecksum("left", want))
		if got, err := a.TxChecksumOn("left"); err != nil || got != want {
			t.Fatalf("TxChecksumOn: got %v (%v), want %v", got, err, want)
		}
	}
	must(t, echoRoundTrip(t, a, b, "10.77.0.2:0"))
	if err := a.TxChecksum("a-name-that-is-too-long", false); err == nil {
		t.Fatal("TxChecksum with a name that is too long: got nil, want an error")
	}
}

func TestSysctlAndProcessUseNamespace(t *testing.T) {
	a, _ := pair(t)
	const key = "/proc/sys/net/ipv4/ip_forward"
	before, err := os.ReadFile(key)
	must(t, err)
	want := "1"
	if strings.TrimSpace(string(before)) == "1" {
		want = "0"
	}
	must(t, a.Sysctl("net.ipv4.ip_forward", want))
	after, err := os.ReadFile(key)
	must(t, err)
	if string(after) != string(before) {
		t.Fatal("sysctl of the host changed by the namespace")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestPrintForward$", "-test.v")
	cmd.Env = append(os.Environ(), "PRINT_FORWARD=1")
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, a.Start(cmd))
	got, err := io.ReadAll(out)
	must(t, err)
	must(t, cmd.Wait())
	if !strings.Contains(string(got), "forward="+want+"\n") {
		t.Fatalf("process in the namespace: got %q, want forward=%s", got, want)
	}
}

// TestPrintForward is the process that the test above starts.
func TestPrintForward(t *testing.T) {
	if os.Getenv("PRINT_FORWARD") == "" {
		return
	}
	b, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
	must(t, err)
	_, _ = os.Stdout.WriteString("forward=" + string(b))
}

func TestGoexitInsideDoIsReported(t *testing.T) {
	a, _ := pair(t)
	done := make(chan error, 1)
	go func() { done <- a.Do(func() error { runtime.Goexit(); return nil }) }()
	select {
	case err := <-done:
		if err == nil {
			t.Fatal("Do with runtime.Goexit: got nil, want an error")
		}
	case <-time.After(5 * time.Second):
		t.Fatal("Do with runtime.Goexit: timed out")
	}
}
