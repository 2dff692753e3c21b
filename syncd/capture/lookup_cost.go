package capture

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"mapsync/bpf"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// LookupCost is the time that the hook on lookups adds to one lookup in a hash map by a program.
type LookupCost struct {
	Other   time.Duration // in a map whose lookups are not watched
	Watched time.Duration // in one whose lookups are watched; most of them are in a pause and not reported
	Uses    time.Duration // in one whose uses are noted; most of them are noted already
}

const (
	// lookupsPerRun is the number of lookups in one run of the measuring program.
	lookupsPerRun = 64
	// measuredRuns is the number of runs in one system call, and measuredCalls the number of these. The fastest
	// call counts, because other work on the machine delays the others.
	measuredRuns  = 256
	measuredCalls = 30
)

// MeasureLookupCost attaches the hooks briefly, with and without the one on lookups. tick is the length of a jiffy.
// It fails like [Capture.WatchLookups] if the hook cannot be attached.
func MeasureLookupCost(tick time.Duration) (c LookupCost, err error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "mapsync_lookups", Type: ebpf.Hash, KeySize: 16, ValueSize: 8, MaxEntries: 16})
	if err != nil {
		return c, fmt.Errorf("create a map to look up: %w", err)
	}
	defer m.Close()
	program, err := newLookups(m)
	if err != nil {
		return c, err
	}
	defer program.Close()
	own, err := bpf.NewOwnWriteMarks()
	if err != nil {
		return c, err
	}
	defer own.Close()
	bare, err := lookupTime(program)
	if err != nil {
		return c, err
	}
	h, err := Open(Options{
		Attach: AttachFexit, Buffer: BufferRing, BufferSize: MinBufferSize(BufferRing), OwnWriteMarks: own,
		Lookups: true, Uses: true, Tick: tick, EmitOwn: true, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	if h.lookupsErr != nil {
		return c, h.lookupsErr
	}
	other, err := lookupTime(program)
	if err != nil {
		return c, err
	}
	info, err := m.Info()
	if err != nil {
		return c, fmt.Errorf("read info of the map to look up: %w", err)
	}
	id, _ := info.ID() // each kernel with fexit has it
	h.watches.add(uint32(id), int(m.KeySize()), 0)
	h.watches.reportLookups(uint32(id))
	watched, err := lookupTime(program)
	if err != nil {
		return c, err
	}
	h.watches.remove(uint32(id))
	h.watches.add(uint32(id), int(m.KeySize()), 0)
	h.watches.noteUses(uint32(id), 1)
	uses, err := lookupTime(program)
	return LookupCost{max(0, other-bare), max(0, watched-bare), max(0, uses-bare)}, err
}

// newLookups returns a program that looks a key up lookupsPerRun times.
func newLookups(m *ebpf.Map) (*ebpf.Program, error) {
	code := asm.Instructions{
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreMem(asm.RFP, -16, asm.R1, asm.DWord),
		asm.StoreMem(asm.RFP, -8, asm.R1, asm.DWord),
	}
	for range lookupsPerRun {
		code = append(code,
			asm.LoadMapPtr(asm.R1, m.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -16),
			asm.FnMapLookupElem.Call(),
		)
	}
	code = append(code, asm.Mov.Imm(asm.R0, 1), asm.Return())
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "mapsync_lookups", Type: ebpf.CGroupSKB, License: "Dual BSD/GPL", Instructions: code,
	})
	if err != nil {
		return nil, fmt.Errorf("load a program that looks keys up: %w", err)
	}
	return program, nil
}

// lookupTime returns the shortest measured time of one lookup.
func lookupTime(program *ebpf.Program) (time.Duration, error) {
	packet := make([]byte, 64)
	best := time.Hour
	for range measuredCalls {
		begin := time.Now()
		_, err := program.Run(&ebpf.RunOptions{Data: packet, Repeat: measuredRuns})
		if errors.Is(err, unix.EINTR) {
			continue // a signal has ended the call early
		}
		if err != nil {
			return 0, fmt.Errorf("look keys up: %w", err)
		}
		best = min(best, time.Since(begin))
	}
	return best / (lookupsPerRun * measuredRuns), nil
}
