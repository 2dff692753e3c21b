package drained

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"mapsync/bpf"
)

// Sums are the sums of one drained map, and the programs that add to them.
type Sums struct {
	options Options
	sums    *ebpf.Map
	back    *ebpf.Map
	method  Method
	links   []link.Link
	objects *ebpf.Collection // nil if the programs of an earlier syncd are attached

	mu    sync.Mutex // guards the fields below after Open
	state *state
	stuck stuckCall
}

// stuckCall is a difference between the calls that have begun and those that have ended.
type stuckCall struct {
	begun, left uint64
	since       time.Time
	missing     uint64 // ends that the programs have missed since the sums began
}

// stuckAfter is the time after which a call whose end was not seen counts as ended: the kernel does not run a program
// that already runs on that processor.
const stuckAfter = 5 * time.Second

// Open begins sums, or continues those in the folder of the pins. It attaches the programs. The errors of maps that
// cannot be drained wrap ErrUnsupported. The caller closes the Sums.
func Open(o Options) (_ *Sums, err error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	s := &Sums{options: o}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	stateMap, err := s.openMaps()
	if err != nil {
		return nil, err
	}
	defer stateMap.Close() //nolint:errcheck // the memory stays mapped
	if err := s.openPrograms(stateMap); err != nil {
		return nil, err
	}
	return s, nil
}

// Map returns the map of sums. Its keys are those of the drained map with an origin at their end. The Sums own it.
func (s *Sums) Map() *ebpf.Map { return s.sums }

// Method returns the way in which the programs are attached.
func (s *Sums) Method() Method { return s.method }

// Origin returns the end of the keys of this host's sums.
func (s *Sums) Origin() (origin [OriginSize]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	binary.NativeEndian.PutUint64(origin[:], s.state.Origin)
	return origin
}

// Follow makes the programs add what is drained from the map with this id. 0: from no map.
func (s *Sums) Follow(id uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	atomic.StoreUint32(&s.state.MapId, id)
}

// ended reports whether all calls have ended. The lock is held.
func (s *Sums) ended(begun, left uint64) bool {
	c := &s.stuck
	switch {
	case begun == left+c.missing:
		c.since = time.Time{}
		return true
	case c.since.IsZero() || c.begun != begun || c.left != left:
		c.begun, c.left, c.since = begun, left, time.Now()
		return false
	case time.Since(c.since) < stuckAfter:
		return false
	}
	c.missing, c.since = begun-left, time.Time{}
	return true
}

// AddBack adds an entry to the sums. key and value are those of an entry of the drained map.
func (s *Sums) AddBack(key, value []byte) error {
	work := bpf.DrainWork{}
	copy(work.Key[:], key)
	copy(work.Value[:], value)
	if err := s.back.Put(uint32(0), &work); err != nil {
		return fmt.Errorf("pass an entry to the sums: %w", err)
	}
	// The data has at least the size of an Ethernet header, which the kernel requires.
	if _, err := s.objects.Programs[addBackProgram].Run(&ebpf.RunOptions{Data: make([]byte, 64)}); err != nil {
		return fmt.Errorf("add an entry to the sums: %w", err)
	}
	return nil
}

// Close frees the resources of this process. Pinned programs continue to add.
func (s *Sums) Close() error {
	var errs []error
	for _, l := range s.links {
		errs = append(errs, l.Close())
	}
	if s.objects != nil {
		s.objects.Close()
	}
	s.mu.Lock()
	if s.state != nil {
		errs = append(errs, s.state.close())
	}
	s.mu.Unlock()
	if s.sums != nil {
		errs = append(errs, s.sums.Close())
	}
	return errors.Join(errs...)
}

// newOrigin returns a random origin that is not 0.
func newOrigin() uint64 {
	var origin [OriginSize]byte
	for {
		_, _ = rand.Read(origin[:]) // never fails
		if n := binary.NativeEndian.Uint64(origin[:]); n != 0 {
			return n
		}
	}
}
