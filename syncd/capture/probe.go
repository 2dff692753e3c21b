package capture

import (
	"log/slog"
	"time"

	"mapsync/bpf"

	"github.com/cilium/ebpf"
)

// ProbeResult describes one attach method on this host.
type ProbeResult struct {
	Attach Attach // if it works, any but AttachAuto
	Err    error  // nil if it works, otherwise the missing feature
	// Missing lists optional kernel functions that cannot be hooked.
	Missing []string
	// SkippedCounted is true if the kernel counts the hook runs that it skipped.
	SkippedCounted bool
	// Limited is the reason if kprobes miss writes by bpf(2) while many tasks wait in bpf(2).
	Limited error
}

// Probe attaches the hooks briefly with each of the methods, and returns the results in the same order.
func Probe(methods ...Attach) []ProbeResult {
	var offers []ProbeResult
	for _, attach := range methods {
		offers = append(offers, ProbeBuffer(attach, BufferRing))
	}
	return offers
}

// ProbeUses attaches the hooks briefly, with the one on lookups. The result is that of [Capture.SeesUses]; err is why the
// hooks cannot be attached.
func ProbeUses(attach Attach, tick time.Duration) (sees func(ebpf.MapType) error, err error) {
	own, err := bpf.NewOwnWriteMarks()
	if err != nil {
		return nil, err
	}
	defer own.Close()
	c, err := Open(Options{
		Attach: attach, Buffer: BufferRing, BufferSize: MinBufferSize(BufferRing), Uses: true, Tick: tick,
		OwnWriteMarks: own, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	return c.SeesUses, c.Close()
}

// ProbeBuffer attaches the hooks briefly with a method and a kind of buffer.
func ProbeBuffer(attach Attach, buffer Buffer) ProbeResult {
	o := ProbeResult{Attach: attach}
	own, err := bpf.NewOwnWriteMarks()
	if err != nil {
		o.Err = err
		return o
	}
	defer own.Close()
	c, err := Open(Options{
		Attach: attach, Buffer: buffer, BufferSize: MinBufferSize(buffer),
		OwnWriteMarks: own, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		o.Err = err
		return o
	}
	o.Attach, o.Missing = c.Attached(), c.Missing()
	o.SkippedCounted, o.Limited = c.Stats().SkippedCounted, c.limited
	o.Err = c.Close()
	return o
}
