package table

import (
	"errors"
	"testing"
	"time"
)

// TestOptionsRefused: New refuses negative numbers, masks of a wrong size, and sizes of 0. It accepts
// the limits themselves.
func TestOptionsRefused(t *testing.T) {
	valid := Options{Self: self, KeySize: keySize, ValueSize: valueSize}
	for name, test := range map[string]struct {
		change func(*Options)
		valid  bool
	}{
		"none":                     {func(*Options) {}, true},
		"key and value of 1 byte":  {func(o *Options) { o.KeySize, o.ValueSize = 1, 1 }, true},
		"key of 0 bytes":           {func(o *Options) { o.KeySize = 0 }, false},
		"value of 0 bytes":         {func(o *Options) { o.ValueSize = 0 }, false},
		"one record":               {func(o *Options) { o.MaxRecords = 1 }, true},
		"most records":             {func(o *Options) { o.MaxRecords = maxRecords }, true},
		"too many records":         {func(o *Options) { o.MaxRecords = maxRecords + 1 }, false},
		"negative records":         {func(o *Options) { o.MaxRecords = -1 }, false},
		"negative evicted TTL":     {func(o *Options) { o.EvictedTTL = -1 }, false},
		"negative evicted records": {func(o *Options) { o.MaxEvicted = -1 }, false},
		"negative entries":         {func(o *Options) { o.MaxEntries = -1 }, false},
		"negative grace":           {func(o *Options) { o.TombstoneGrace = -1 }, false},
		"negative tombstones":      {func(o *Options) { o.MaxTombstones = -1 }, false},
		"negative lifetime":        {func(o *Options) { o.TombstoneTTL = -1 }, false},
		"negative refresh":         {func(o *Options) { o.Refresh = -1 }, false},
		"significant mask":         {func(o *Options) { o.Significant = make([]byte, valueSize) }, true},
		"short significant mask":   {func(o *Options) { o.Significant = make([]byte, valueSize-1) }, false},
		"long carried mask":        {func(o *Options) { o.Carried = make([]byte, valueSize+1) }, false},
		"timers":                   {func(o *Options) { o.Timers = []Range{{0, 1}, {1, valueSize - 1}} }, true},
		"timer beyond the value":   {func(o *Options) { o.Timers = []Range{{0, 1}, {1, valueSize}} }, false},
		"timer before the value":   {func(o *Options) { o.Timers = []Range{{-1, 2}} }, false},
		"timer of 0 bytes":         {func(o *Options) { o.Timers = []Range{{1, 0}} }, false},
		"compared within the masks": {func(o *Options) {
			o.Compared, o.Significant, o.Carried = []byte("\x01\x80\x00\x00\x00\x00\x00\x00"), []byte("\x03\xc0\x00\xff\xff\xff\xff\xff"), []byte("\x81\x80\x00\xff\xff\xff\xff\xff")
		}, true},
		"compared beyond a mask": {func(o *Options) {
			o.Compared, o.Carried = []byte("\x01\x00\x00\x00\x00\x00\x00\x03"), []byte("\xff\xff\xff\xff\xff\xff\xff\xfd")
		}, false},
	} {
		o := valid
		test.change(&o)
		switch tab, err := New(o); {
		case test.valid && err != nil:
			t.Errorf("%s: got error %v, want nil", name, err)
		case !test.valid && (!errors.Is(err, ErrOptions) || tab != nil):
			t.Errorf("%s: got error %v, table %t, want an error with ErrOptions and no table", name, err, tab != nil)
		}
	}
}

// TestOptionDefaults: New replaces zeros by defaults, and keeps other values.
func TestOptionDefaults(t *testing.T) {
	type defaults struct {
		ttl, grace, evicted time.Duration
		tombs, maxEvicted   int
	}
	for name, test := range map[string]struct {
		change func(*Options)
		want   defaults
	}{
		"zeros": {func(*Options) {}, defaults{DefaultTombstoneTTL, DefaultTombstoneGrace, DefaultEvictedTTL, DefaultMaxTombstones, DefaultMaxEvicted}},
		"entries": {
			func(o *Options) { o.MaxEntries = 100_000 },
			defaults{DefaultTombstoneTTL, DefaultTombstoneGrace, DefaultEvictedTTL, 200_000, 100_000},
		},
		"ones": {
			func(o *Options) {
				o.TombstoneTTL, o.TombstoneGrace, o.EvictedTTL, o.MaxTombstones, o.MaxEvicted, o.MaxEntries = 1, 1, 1, 1, 1, 5
			},
			defaults{1, 1, 1, 1, 1},
		},
	} {
		o := newRig(t, test.change).tab.opt
		if got := (defaults{o.TombstoneTTL, o.TombstoneGrace, o.EvictedTTL, o.MaxTombstones, o.MaxEvicted}); got != test.want {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
	for seed, kept := range map[uint64]bool{0: false, 1: true, 2: true} {
		if got := newRig(t, func(o *Options) { o.Seed = seed }).tab.opt.Seed; (got == seed) != kept {
			t.Errorf("seed %d: got %d, want the same: %t", seed, got, kept)
		}
	}
	if ttl := newRig(t, shortLived).tab.TombstoneTTL(); ttl != time.Second {
		t.Errorf("lifetime: got %s, want %s", ttl, time.Second)
	}
}
