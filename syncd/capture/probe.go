package capture

import (
	"log/slog"

	"mapsync/bpf"
)

// ProbeResult describes one attach method on this host.
type ProbeResult struct {
	Attach Attach
	Err    error // nil if it works, otherwise the missing feature
	// Missing lists optional kernel functions that cannot be hooked.
	Missing []string
	// ControlPlane is true if the hooks report bpf(2) writes of other processes.
	ControlPlane bool
	// SkippedCounted is true if the kernel counts the hook runs that it skipped.
	SkippedCounted bool
}

// Probe attaches the hooks briefly with each method, fexit first, and returns the results.
func Probe() []ProbeResult {
	offers := make([]ProbeResult, 0, 2)
	for _, attach := range []Attach{AttachFexit, AttachKprobe} {
		offers = append(offers, probe(attach))
	}
	return offers
}

func probe(attach Attach) ProbeResult {
	o := ProbeResult{Attach: attach, ControlPlane: attach == AttachFexit}
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
	o.Missing = c.Missing()
	o.SkippedCounted = c.Stats().SkippedCounted
	o.Err = c.Close()
	return o
}
