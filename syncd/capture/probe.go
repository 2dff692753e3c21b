package capture

import (
	"log/slog"

	"mapsync/bpf"
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
		offers = append(offers, probe(attach))
	}
	return offers
}

func probe(attach Attach) ProbeResult {
	o := ProbeResult{Attach: attach}
	own, err := bpf.NewOwnWriteMarks()
	if err != nil {
		o.Err = err
		return o
	}
	defer own.Close()
	c, err := Open(Options{
		Attach: attach, Buffer: BufferRing, BufferSize: minRingBytes,
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
