package schema

import (
	"errors"
	"slices"
	"unsafe"

	"pgregory.net/rapid"
)

// codecLinks are the interfaces of the codec tests.
type codecLinks struct{}

var codecLinkNames = []string{1: "lo", 2: "eth0", 3: "a-long-name-150"}

func (codecLinks) Name(index uint32) (string, bool) {
	if index == 0 || int(index) >= len(codecLinkNames) {
		return "", false
	}
	return codecLinkNames[index], true
}

func (l codecLinks) Reference(string) Links { return l }

func (codecLinks) Index(name string) (uint32, bool) {
	i := slices.Index(codecLinkNames, name)
	return uint32(i), i > 0
}

// codecTimes are the times of a host with some uptime.
var codecTimes = Times{Ktime: 1e18, Boottime: 1e18 + 5e9, Jiffies: 5e9, JiffiesAt: 1e18 + 7e13, Tick: 4e6}

func masked(b, mask []byte) []byte {
	out := make([]byte, len(b))
	for i := range b {
		out[i] = b[i] & mask[i]
	}
	return out
}

func newCodec(t rapid.TB, remote, local *Schema) (*Encoder, *Decoder) {
	enc, err := NewEncoder(remote, codecLinks{})
	if err != nil {
		t.Fatal(err)
	}
	dec, err := NewDecoder(remote, local, codecLinks{})
	if err != nil {
		t.Fatal(err)
	}
	return enc, dec
}

func checkCodecError(t rapid.TB, err error) {
	if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrRange) && !errors.Is(err, ErrLink) && !errors.Is(err, ErrReference) {
		t.Fatalf("codec error: got %v, want ErrMalformed, ErrRange, ErrLink or ErrReference", err)
	}
}

func ptr(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }
