package drained

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"

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
	objects *ebpf.Collection
	limited bool // a return probe has the kernel's default limit of calls

	mu    sync.Mutex // guards state after Open
	state *state
}

// Open begins sums, or continues those in the folder of the pins. It attaches the programs. The errors of maps that
// cannot be drained wrap ErrUnsupported. The caller closes the Sums.
func Open(o Options) (_ *Sums, err error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	if o.Folder != "" {
		switch err := prepareFolder(o.Folder); {
		case errors.Is(err, ErrNotBPF):
			o.Logger.Warn("sums of drained entries end with syncd", "error", err, "hint", "set pin-dir to a folder in a mounted BPF filesystem")
			o.Folder = ""
		case err != nil:
			return nil, err
		}
	}
	s := &Sums{options: o}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	stateMap, err := s.openState()
	if err != nil {
		return nil, err
	}
	defer stateMap.Close() //nolint:errcheck // the memory stays mapped
	if err := s.openPrograms(stateMap); err != nil {
		return nil, err
	}
	if err := s.mergeFormer(); err != nil {
		return nil, err
	}
	atomic.StoreUint32(&s.state.Exclusive, 1)
	return s, nil
}

// openState opens the pinned state and sums if they have the layout of the options. Otherwise it creates and pins a
// state.
func (s *Sums) openState() (stateMap *ebpf.Map, err error) {
	stateMap, err = s.openPinned()
	if err == nil {
		return stateMap, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		s.options.Logger.Warn("sums of drained entries begin again", "folder", s.options.Folder, "reason", err,
			"hint", "normal after an upgrade that changes the map, or a change of field; otherwise check pin-dir")
	}
	if err := s.removePins(anyGeneration); err != nil {
		return nil, err
	}
	spec, err := s.options.spec(BySyscall, 0) // only its maps
	if err != nil {
		return nil, err
	}
	if stateMap, err = ebpf.NewMap(spec.Maps[stateMapName]); err != nil {
		return nil, fmt.Errorf("create the state of the sums: %w", err)
	}
	calls, err := ebpf.NewMap(spec.Maps[callsMap])
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create the map of calls: %w", err), stateMap.Close())
	}
	if s.state, err = mapState(stateMap, calls); err != nil {
		return nil, errors.Join(err, stateMap.Close(), calls.Close())
	}
	atomic.StoreUint64(&s.state.Origin, newOrigin())
	atomic.StoreUint64(&s.state.Layout, s.options.layout())
	s.pin(calls.Pin, pinCalls)
	s.pin(stateMap.Pin, pinState)
	return stateMap, nil
}

func (s *Sums) openPinned() (stateMap *ebpf.Map, err error) {
	stateMap, err = s.loadPinned(pinState)
	if err != nil {
		return nil, err
	}
	calls, err := s.loadPinned(pinCalls)
	if err != nil {
		return nil, errors.Join(err, stateMap.Close())
	}
	st, err := mapState(stateMap, calls)
	if err != nil {
		return nil, errors.Join(err, stateMap.Close(), calls.Close())
	}
	generation := atomic.LoadUint64(&st.Generation)
	switch {
	case atomic.LoadUint64(&st.Layout) != s.options.layout():
		err = errors.New("the map has another layout, or other fields have the role sum")
	case generation == 0:
		err = errors.New("syncd was killed when it began them")
	default:
		s.sums, err = s.loadPinned(pinOf(pinSums, generation))
	}
	if err != nil {
		return nil, errors.Join(err, st.close(), stateMap.Close())
	}
	s.state = st
	return stateMap, nil
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

// Follow makes the programs add what is drained from the map with this id, by calls that end from now on. 0: from no map.
func (s *Sums) Follow(id uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	atomic.StoreUint32(&s.state.MapId, id)
}

// errNoRoom is the error of an entry for which the sums have no room.
var errNoRoom = errors.New("they have no room")

// AddBack adds an entry to the sums. key and value are those of an entry of the drained map.
func (s *Sums) AddBack(key, value []byte) error {
	added, err := s.run(s.objects.Programs[addBackProgram], key, value)
	if err == nil && added == 0 {
		err = errNoRoom
	}
	if err != nil {
		return fmt.Errorf("add an entry to the sums: %w", err)
	}
	return nil
}

// run runs a program that takes an entry from the map drain_back. It returns the program's result.
func (s *Sums) run(program *ebpf.Program, key, value []byte) (uint32, error) {
	work := bpf.DrainWork{}
	copy(work.Key[:], key)
	copy(work.Value[:], value)
	if err := s.back.Put(uint32(0), &work); err != nil {
		return 0, fmt.Errorf("pass the entry to the program: %w", err)
	}
	// The data has at least the size of an Ethernet header, which the kernel requires.
	return program.Run(&ebpf.RunOptions{Data: make([]byte, 64)})
}

// Close frees the resources of this process. Pinned programs continue to add.
func (s *Sums) Close() error {
	errs := []error{s.closeLinks()}
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
