package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"syscall"
	"time"
)

// iperf3Port is not the port of the built-in receiver.
const iperf3Port = "5202"

// iperf3 is throughput with iperf3.
func (n *network) iperf3(ctx context.Context, path string, size int, window time.Duration) (rate float64, err error) {
	server := exec.CommandContext(ctx, path, "--server", "--one-off", "--port", iperf3Port)
	server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := n.receiver.Start(server); err != nil {
		return 0, fmt.Errorf("start iperf3: %w", err)
	}
	defer func() {
		_ = server.Process.Kill() // it fails only if the server has ended, as it does after one client
		_ = server.Wait()
	}()
	seconds := max(1, int(window.Round(time.Second)/time.Second))
	var out []byte
	for end := time.Now().Add(limit); ; {
		out, err = n.outputOf(exec.CommandContext(ctx, path, "--client", receiverAddress, "--port", iperf3Port, "--json", "--omit", "1",
			"--time", strconv.Itoa(seconds), "--length", strconv.Itoa(size)))
		if err == nil || time.Now().After(end) {
			break
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil { // until the server listens
			return 0, err
		}
	}
	var result struct {
		Error string `json:"error"`
		End   struct {
			Received struct {
				Rate float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err := errors.Join(err, json.Unmarshal(out, &result)); err != nil {
		return 0, fmt.Errorf("run iperf3: %w: %s", err, result.Error)
	}
	return result.End.Received.Rate / 1e6, nil
}

// outputOf runs a command of the sender and returns its output.
func (n *network) outputOf(cmd *exec.Cmd) (out []byte, err error) {
	err = n.sender.Do(func() error {
		out, err = cmd.Output()
		return err
	})
	return out, err
}
