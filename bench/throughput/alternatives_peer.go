package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// alternativeVariable is the environment variable that names the alternative whose peer this
// process runs. A caller and its peer are two processes, as two nodes are. Within one process the
// Go scheduler passes a call on without the kernel's scheduler. That is up to four times as fast as
// between two nodes.
const alternativeVariable = "MAPSYNC_THROUGHPUT_ALTERNATIVE"

// peerResult is the report of a peer at its end.
type peerResult struct {
	Stored int    // number of stored deltas
	Last   []byte // key and value of the last delta
}

// runPeer runs the peer's process. It prints its address, serves until its standard input ends, and
// reports the deltas that it stored. asked is true if this process was started as a peer.
func runPeer() (asked bool, err error) {
	name := os.Getenv(alternativeVariable)
	if name == "" {
		return false, nil
	}
	for i := range alternatives {
		if alternatives[i].name != name {
			continue
		}
		s := new(sink)
		addr, stop, err := alternatives[i].serve(s)
		if err != nil {
			return true, err
		}
		out := json.NewEncoder(os.Stdout)
		if err := out.Encode(addr); err != nil {
			return true, err
		}
		if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
			return true, err
		}
		last, err := s.last()
		return true, errors.Join(err, stop(), out.Encode(peerResult{Stored: s.n, Last: last}))
	}
	return true, fmt.Errorf("no alternative has the name %q", name)
}

// peerProcess is a running peer.
type peerProcess struct {
	addr string
	cmd  *exec.Cmd
	in   io.Closer
	out  *json.Decoder
}

func startPeer(name string) (*peerProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &peerProcess{cmd: exec.Command(self)}
	p.cmd.Env = append(os.Environ(), alternativeVariable+"="+name)
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.out = json.NewDecoder(out)
	if err := p.out.Decode(&p.addr); err != nil {
		_, stopErr := p.stop()
		return nil, errors.Join(fmt.Errorf("read the peer's address: %w", err), stopErr)
	}
	return p, nil
}

// stop stops the peer and returns its report.
func (p *peerProcess) stop() (s peerResult, err error) {
	err = p.in.Close()
	if p.addr != "" {
		err = errors.Join(err, p.out.Decode(&s))
	}
	return s, errors.Join(err, p.cmd.Wait())
}
