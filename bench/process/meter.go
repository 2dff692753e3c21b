package process

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

// Usage is the processor time of a process, and of the BPF programs that it holds: they run in other processes. The kernel measures
// programs only while its statistics are on, see [ebpf.EnableStats].
type Usage struct {
	Process, Programs time.Duration
	Runs              uint64 // of the programs
}

func (u Usage) minus(o Usage) Usage {
	return Usage{u.Process - o.Process, u.Programs - o.Programs, u.Runs - o.Runs}
}

// Total is the time of the process and of its programs.
func (u Usage) Total() time.Duration { return u.Process + u.Programs }

// Meter measures the usage of a process. The zero Meter has no process and measures nothing.
type Meter struct {
	pid      int
	programs []*ebpf.Program
}

// NewMeter finds the BPF programs of a process: the caller closes it.
func NewMeter(pid int) (*Meter, error) {
	m := &Meter{pid: pid}
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
			return nil, errors.Join(fmt.Errorf("open BPF program %d: %w", id, err), m.Close())
		}
		m.programs = append(m.programs, p)
	}
	return m, nil
}

// Close closes the programs.
func (m *Meter) Close() (err error) {
	for _, p := range m.programs {
		err = errors.Join(err, p.Close())
	}
	return err
}

// Since begins a measurement. The function that it returns ends it, and adds to the error.
func (m *Meter) Since() func(*error) Usage {
	before, beforeErr := m.read()
	return func(err *error) Usage {
		after, afterErr := m.read()
		*err = errors.Join(*err, beforeErr, afterErr)
		return after.minus(before)
	}
}

// read returns the usage so far.
func (m *Meter) read() (u Usage, err error) {
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
		u.Process += time.Duration(ns)
	}
	if u.Process == 0 {
		return u, fmt.Errorf("read processor time of process %d: there is none", m.pid)
	}
	for _, p := range m.programs {
		s, err := p.Stats()
		if err != nil {
			return u, fmt.Errorf("read statistics of a BPF program: %w", err)
		}
		u.Programs += s.Runtime
		u.Runs += s.RunCount
	}
	return u, nil
}
