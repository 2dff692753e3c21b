package kmap

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mapsync/syncd/reference"
	"mapsync/syncd/table"
)

// Options are the options of [Open].
type Options struct {
	// OwnWriteMarks is the per-CPU array (bpf/own_write_marks.h) in which the writing program
	// stores its task while it writes. The hooks read it. Nil: a private array.
	OwnWriteMarks *ebpf.Map
	// Logger receives one line with the selected access methods. Nil: discarded.
	Logger *slog.Logger
	// Burst is the maximum number of entries per write. 0: the number that fits into 4 MiB and into the map's share of
	// the memory of all Maps, at most 8192.
	Burst int
	// Maps is the number of maps that share the memory for entries, this one included. 0: one.
	Maps int
	// Keep are the ranges of a value that an update keeps as they are in the map. For a new entry,
	// they are written like the rest of the value. A writing program reads them without the value's
	// spin lock, bpf(2) reads them under it. A change in place of a kept range during the write may
	// be lost.
	Keep []table.Range
	// Carried is a bit mask of a value, ValueSize bytes, with the bits that are replicated: see IsArray. Nil: all bits.
	Carried []byte
	// Translation translates entries between the map, which has ids of other maps, and callers, who have numbers of their meanings. Nil:
	// entries have no such ids.
	Translation *reference.Translation
	// ScanCPUs are the CPUs on which the map is read as a whole, see [CheckScanCPUs]. Nil: any.
	ScanCPUs *unix.CPUSet
	// Drained is set for a map of sums.
	Drained *Drained
	// NoProgram selects bpf(2) for all access, for comparisons and tests.
	NoProgram bool
}

// Limits of a burst. The limit in bytes bounds the locked memory of a map with large entries. The
// kernel may reschedule within a burst, which is one call: calls of 1,024 writes cost a tenth of the
// throughput. A call reads at most readEntries. The arrays of all maps of Options.Maps have at most allBytes together,
// as long as the share of each map has room for runEntries in each of its three arrays. A map that was opened when
// there were fewer keeps its larger arrays.
const (
	allBytes     = 256 << 20
	burstBytes   = 4 << 20
	burstEntries = 8192
	readEntries  = 256
	lookupSlots  = 1024
)

// Map is one kernel map, opened for reading and writing. Its methods are safe for concurrent use,
// but only one goroutine may use its [Batch].
type Map struct {
	m             *ebpf.Map
	info          Info
	layout        layout
	scanCPUs      *unix.CPUSet // of Options
	accessMethods AccessMethods
	keep          []table.Range // of Options: ascending, without adjacent or overlapping ranges
	zero          []byte        // the value of an absent element, ValueSize bytes; nil unless the map is an array
	carried       []byte        // of Options
	translation   *reference.Translation

	writeErr, lookupErr, readErr error // reasons for the fallback to bpf(2); nil: by program

	writeMu       sync.Mutex
	writer        *sharedProgram // nil: bpf(2)
	syscallWriter *syscallWriter // nil unless writer is nil
	turns         *cpuTurns      // nil: any CPU writes
	batch         Batch

	lookupMu      sync.Mutex
	lookupProgram *sharedProgram // nil: bpf(2)
	drained       *drainedReader // nil unless the map is one of sums

	readMu       sync.Mutex     // held during one call into the kernel, never for a whole read
	closed       bool           // under readMu
	bucketReader *sharedProgram // nil unless by buckets
	dumper       *object        // nil unless by iterator, or without a random seed
}

// Open prepares m for access. It checks type and sizes (an error wraps [ErrUnsupported]) and
// selects the access methods. The caller keeps m and may close it at once. If programs may not
// access the map, Open succeeds with bpf(2): see [Map.AccessMethods].
func Open(m *ebpf.Map, o Options) (*Map, error) {
	info, err := Describe(m)
	if err != nil {
		return nil, fmt.Errorf("open map: %w", err)
	}
	if info.Unsupported != nil {
		return nil, fmt.Errorf("open map %q (id %d): %w", info.Name, info.ID, info.Unsupported)
	}
	keep, err := mergeRanges(o.Keep, info.ValueSize)
	if err != nil {
		return nil, fmt.Errorf("open map %q (id %d): %w", info.Name, info.ID, err)
	}
	drained, err := o.openDrained(&info)
	if err != nil {
		return nil, fmt.Errorf("open map %q (id %d): %w", info.Name, info.ID, err)
	}
	own, err := m.Clone()
	if err != nil {
		return nil, fmt.Errorf("open map %q (id %d): %w", info.Name, info.ID, err)
	}
	k := &Map{m: own, info: info, layout: newLayout(&info), scanCPUs: o.ScanCPUs, keep: keep, carried: o.Carried, drained: drained, translation: o.Translation}
	if IsArray(info.Type) {
		k.zero = make([]byte, info.ValueSize)
	}
	k.accessMethods = AccessMethods{Read: ByBuckets, Lookup: ByProgram, Write: ByProgram}
	k.writeErr, k.lookupErr = k.openWriter(&o), k.openLookupProgram(&o)
	k.readErr = k.openReadMethod(&o)
	var turnsErr error
	k.turns, turnsErr = openCPUTurns(&info)
	k.accessMethods.Reason = errors.Join(k.writeErr, k.lookupErr, k.readErr, turnsErr)
	k.batch = k.newBatch(&o)
	k.log(o.Logger)
	return k, nil
}

func (k *Map) burst(o *Options) int {
	share := allBytes / max(o.Maps, 1) / k.layout.stride
	// The arrays of the lookup program and of the bucket reader have as many entries, up to these limits.
	share = max(share-lookupSlots-readEntries, share/3)
	n := min(burstEntries, burstBytes/k.layout.stride, k.info.MaxEntries, share)
	if o.Burst > 0 {
		n = min(n, o.Burst)
	}
	return max(n, runEntries)
}

func (k *Map) log(l *slog.Logger) {
	if l == nil {
		return
	}
	attrs := []any{
		"kernel_map", k.info.Name, "id", k.info.ID, "type", k.info.Type.String(),
		"key_bytes", k.info.KeySize, "value_bytes", k.info.ValueSize,
		"read", k.accessMethods.Read, "lookup", k.accessMethods.Lookup, "write", k.accessMethods.Write, "burst", k.batch.Cap(),
		"softirq_safe", k.softirqSafe(),
	}
	if k.accessMethods.Reason != nil {
		l.Warn("opened map with fallback access", append(attrs, "reason", k.accessMethods.Reason,
			"hint", "grant the privilege that syncd check names, or use a later kernel")...)
		return
	}
	l.Info("opened map", attrs...)
}

// Info returns the description of the map at the time of Open.
func (k *Map) Info() Info { return k.info }

// Close releases all resources of Open. The user of the [Batch] must have stopped.
func (k *Map) Close() error {
	k.writeMu.Lock()
	defer k.writeMu.Unlock()
	// The locks are taken in this order, because writes may call Lookup.
	k.readMu.Lock()
	defer k.readMu.Unlock()
	k.lookupMu.Lock()
	defer k.lookupMu.Unlock()
	err := errors.Join(k.writer.close(), k.lookupProgram.close(), k.bucketReader.close(), k.m.Close())
	k.dumper.close()
	k.writer, k.lookupProgram, k.bucketReader, k.dumper, k.batch.mem = nil, nil, nil, nil, nil
	k.closed = true
	return err
}
