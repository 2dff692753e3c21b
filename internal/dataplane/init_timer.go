package dataplane

import (
	"encoding/binary"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// InitTimer sets up the bpf_timer at an offset of the value of an entry, like a data plane that is about to start it.
// The key has 8 bytes. The timer is never due. On a kernel without timers, HasTimers returns an error.
func InitTimer(m *ebpf.Map, key []byte, offset int32) error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SocketFilter, License: "GPL", Instructions: asm.Instructions{
		asm.LoadImm(asm.R1, int64(binary.NativeEndian.Uint64(key)), asm.DWord),
		asm.StoreMem(asm.RFP, -8, asm.R1, asm.DWord),
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -8),
		asm.FnMapLookupElem.Call(),
		asm.JNE.Imm(asm.R0, 0, "found"),
		asm.Mov.Imm(asm.R0, -int32(unix.ENOENT)),
		asm.Return(),
		asm.Mov.Reg(asm.R1, asm.R0).WithSymbol("found"),
		asm.Add.Imm(asm.R1, offset),
		asm.LoadMapPtr(asm.R2, m.FD()),
		asm.Mov.Imm(asm.R3, unix.CLOCK_MONOTONIC),
		asm.FnTimerInit.Call(),
		asm.Return(),
	}})
	if err != nil {
		return fmt.Errorf("load the program that sets up a timer: %w", err)
	}
	defer p.Close()
	code, err := p.Run(&ebpf.RunOptions{Data: testPacket[:]})
	switch {
	case err != nil:
		return fmt.Errorf("run the program that sets up a timer: %w", err)
	case code != 0:
		return fmt.Errorf("set up the timer of key %x: %w", key, unix.Errno(-int32(code)))
	}
	return nil
}
