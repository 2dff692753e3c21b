package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
)

// usage is the processor time of a process, and of the BPF programs that it holds: they run in other processes.
type usage struct {
	process, programs time.Duration
	runs              uint64 // of the programs
}

func (u usage) minus(o usage) usage {
	return usage{u.process - o.process, u.programs - o.programs, u.runs - o.runs}
}

// total is the time of the process and of its programs.
func (u usage) total() time.Duration { return u.process + u.programs }

// meter measures the usage of a process.
type meter struct {
	pid      int
	programs []*ebpf.Program
}

// newMeter finds the BPF programs of a process: the caller closes it.
func newMeter(pid int) (*meter, error) {
	m := &meter{pid: pid}
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	if err != nil {
		return nil, err
	}
	found := make(map[ebpf.ProgramID]bool)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the process has closed it
		}
		for line := range strings.Lines(string(text)) {
			field, value, _ := strings.Cut(line, ":")
			if field != "prog_id" {
				continue
			}
			id, err := strconv.ParseUint(strings.TrimSpace(value), 10, 32)
			if err != nil {
				return nil, fmt.Errorf("read %s: %w", file, err)
			}
			found[ebpf.ProgramID(id)] = true
		}
	}
	for id := range found {
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open BPF program %d: %w", id, err), m.close())
		}
		m.programs = append(m.programs, p)
	}
	return m, nil
}

func (m *meter) close() (err error) {
	for _, p := range m.programs {
		err = errors.Join(err, p.Close())
	}
	return err
}

// since begins a measurement. The function that it returns ends it, and adds to the error. A meter without a process measures
// nothing.
func (m *meter) since() func(*error) usage {
	before, beforeErr := m.read()
	return func(err *error) usage {
		after, afterErr := m.read()
		*err = errors.Join(*err, beforeErr, afterErr)
		return after.minus(before)
	}
}

// read returns the usage so far.
func (m *meter) read() (u usage, err error) {
	if m.pid == 0 {
		return u, nil
	}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", m.pid))
	if err != nil {
		return u, err
	}
	for _, file := range tasks {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		var ns int64
		if _, err := fmt.Sscan(string(text), &ns); err != nil {
			return u, fmt.Errorf("read %s: %w", file, err)
		}
		u.process += time.Duration(ns)
	}
	if u.process == 0 {
		return u, fmt.Errorf("read processor time of process %d: there is none", m.pid)
	}
	for _, p := range m.programs {
		s, err := p.Stats()
		if err != nil {
			return u, fmt.Errorf("read statistics of a BPF program: %w", err)
		}
		u.programs += s.Runtime
		u.runs += s.RunCount
	}
	return u, nil
}
