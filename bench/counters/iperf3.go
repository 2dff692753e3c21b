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

	"mapsync/internal/tool"
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
	args := []string{
		"--client", receiverAddress, "--port", iperf3Port, "--json", "--omit", "1",
		"--time", strconv.Itoa(max(1, int(window.Round(time.Second)/time.Second))), "--length", strconv.Itoa(size),
	}
	for end := time.Now().Add(limit); ; {
		rate, err = n.iperf3Client(exec.CommandContext(ctx, path, args...))
		if err == nil || time.Now().After(end) {
			return rate, err
		}
		if err := tool.Pause(ctx, 100*time.Millisecond); err != nil { // until the server listens
			return 0, err
		}
	}
}

// iperf3Client runs a client of iperf3 and returns the Mbit/s that the server has received.
func (n *network) iperf3Client(client *exec.Cmd) (rate float64, err error) {
	out, err := n.outputOf(client)
	var result struct {
		Error string `json:"error"` // with exit code 0
		End   struct {
			Received struct {
				Rate float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err == nil {
		err = json.Unmarshal(out, &result)
	}
	if err == nil && result.Error != "" {
		err = errors.New(result.Error)
	}
	if err != nil {
		return 0, fmt.Errorf("run iperf3: %w", err)
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
