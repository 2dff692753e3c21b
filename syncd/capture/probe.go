package capture

import (
	"log/slog"

	"mapsync/bpf"
)

// Offer is what one way of attaching would give on this host.
type Offer struct {
	Attach Attach
	Err    error // nil when it works, else what is missing
	// Missing lists optional kernel functions that cannot be hooked.
	Missing []string
	// ControlPlane says whether bpf(2) writes of other processes are seen at once.
	ControlPlane bool
	// SkippedCounted says whether the kernel counts hook runs that it skipped.
	SkippedCounted bool
}

// Probe attaches each way for a moment, fexit first, and tells what it would see.
func Probe() []Offer {
	offers := make([]Offer, 0, 2)
	for _, attach := range []Attach{AttachFexit, AttachKprobe} {
		offers = append(offers, probe(attach))
	}
	return offers
}

func probe(attach Attach) Offer {
	o := Offer{Attach: attach, ControlPlane: attach == AttachFexit}
	own, err := bpf.NewOwnWriter()
	if err != nil {
		o.Err = err
		return o
	}
	defer own.Close()
	c, err := Open(Options{
		Attach: attach, Buffer: BufferRing, BufferSize: minRingBytes,
		OwnWriter: own, Logger: slog.New(slog.DiscardHandler),
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
