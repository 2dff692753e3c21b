package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// rivalVariable names the rival whose peer this process is to be. A caller and its
// peer are two processes, as two nodes are: within one, the scheduler hands a call
// over without the kernel's, and is up to four times as fast as any two nodes could be.
const rivalVariable = "MAPSYNC_THROUGHPUT_RIVAL"

// stored is what a peer says at its end.
type stored struct {
	Stored int    // deltas
	Last   []byte // key and value of the last
}

// runPeer is the peer's process: it tells its address, serves until its standard
// input ends, and says what it has stored. It reports whether it was asked for.
func runPeer() (asked bool, err error) {
	name := os.Getenv(rivalVariable)
	if name == "" {
		return false, nil
	}
	for i := range rivals {
		if rivals[i].name != name {
			continue
		}
		s := new(sink)
		addr, stop, err := rivals[i].serve(s)
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
		if err := stop(); err != nil || s.n == 0 {
			return true, errors.Join(err, out.Encode(stored{}))
		}
		return true, out.Encode(stored{Stored: s.n, Last: s.last()})
	}
	return true, fmt.Errorf("no rival is called %q", name)
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
	p.cmd.Env = append(os.Environ(), rivalVariable+"="+name)
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

// stop ends the peer, and returns what it has stored.
func (p *peerProcess) stop() (s stored, err error) {
	err = p.in.Close()
	if p.addr != "" {
		err = errors.Join(err, p.out.Decode(&s))
	}
	return s, errors.Join(err, p.cmd.Wait())
}
