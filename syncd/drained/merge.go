package drained

import (
	"bytes"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"

	"mapsync/bpf"
)

// mergePause and mergeLimit bound the wait for the calls that former programs have ended.
const (
	mergePause = time.Millisecond
	mergeLimit = 10 * time.Second
	// programPause is longer than a call may take from one program to the next.
	programPause = 100 * time.Millisecond
)

// mergeFormer adds the sums of former generations to the present ones, and removes the pins of other generations. A
// former syncd may have been killed before it did so.
func (s *Sums) mergeFormer() error {
	present := atomic.LoadUint64(&s.state.Generation)
	list, err := s.formerGenerations(present)
	if err != nil || len(list) == 0 {
		return errors.Join(err, s.removeOthers(present))
	}
	// The programs of a former generation may still add the entries of a call.
	for until := time.Now().Add(mergeLimit); time.Now().Before(until); time.Sleep(mergePause) {
		if _, ended := s.Calls(); ended {
			break
		}
	}
	for _, generation := range list {
		if err := s.merge(pinOf(pinSums, generation)); err != nil {
			return err
		}
	}
	return s.removeOthers(present)
}

func (s *Sums) removeOthers(present uint64) error {
	removed := false
	err := s.removePins(func(generation uint64) bool {
		other := generation != 0 && generation != present
		removed = removed || other
		return other
	})
	if removed {
		time.Sleep(programPause)
	}
	return err
}

// merge moves pinned sums to the present ones, unless both are the same map.
func (s *Sums) merge(pin string) error {
	former, err := s.loadPinned(pin)
	if err != nil {
		return err
	}
	defer former.Close() //nolint:errcheck // no error is possible
	same, err := sameMap(former, s.sums)
	if err != nil || same {
		return err
	}
	move, err := s.loadMove(former)
	if err != nil {
		return err
	}
	defer move.Close() //nolint:errcheck // no error is possible
	sums, left := 0, 0
	err = s.options.EachKey(former, func(key []byte) error {
		sums++
		if s.mergeKey(move, former, key) != nil {
			left++
		}
		return nil
	})
	if left > 0 {
		atomic.AddUint64(&s.state.Full, uint64(left))
	}
	if err != nil {
		return fmt.Errorf("read former sums: %w", err)
	}
	s.options.Logger.Info("sums of drained entries have another maximum", "sums", sums, "without_room", left, "max_entries", s.options.MaxEntries)
	return nil
}

// loadMove loads the program that moves a sum from the former sums to the present ones. The caller closes it.
func (s *Sums) loadMove(former *ebpf.Map) (*ebpf.Program, error) {
	spec, err := s.options.spec(s.method, 0)
	if err != nil {
		return nil, err
	}
	sums := spec.Maps[sumsMap].Copy()
	sums.MaxEntries = former.MaxEntries()
	spec.Maps[formerSumsMap] = sums
	var objects struct {
		Move *ebpf.Program `ebpf:"move_former"`
	}
	err = spec.LoadAndAssign(&objects, &ebpf.CollectionOptions{
		MapReplacements: map[string]*ebpf.Map{
			sumsMap: s.sums, formerSumsMap: former, stateMapName: s.objects.Maps[stateMapName], backMap: s.back,
		},
		Cache: bpf.KernelTypes(),
	})
	if err != nil {
		return nil, fmt.Errorf("load the program that moves former sums: %w", err)
	}
	return objects.Move, nil
}

// mergeKey adds a former sum to the present ones. A sum of this host leaves the former map in the same run of a program: a
// syncd that is killed leaves none in both maps, which the next one would add again. Without room, the sum stays.
func (s *Sums) mergeKey(move *ebpf.Program, former *ebpf.Map, key []byte) error {
	origin := s.Origin()
	own := bytes.HasSuffix(key, origin[:])
	if own {
		// Kernels before 5.13 return no result if a signal arrives.
		if _, err := s.run(move, key, nil); err != nil {
			return err
		}
	}
	value, err := former.LookupBytes(key)
	if err != nil || value == nil {
		return err
	}
	if own {
		return errNoRoom
	}
	err = s.sums.Update(key, value, ebpf.UpdateNoExist)
	if errors.Is(err, ebpf.ErrKeyExist) {
		err = nil
	}
	return err
}

func sameMap(a, b *ebpf.Map) (bool, error) {
	one, err := a.Info()
	if err != nil {
		return false, fmt.Errorf("examine sums: %w", err)
	}
	two, err := b.Info()
	if err != nil {
		return false, fmt.Errorf("examine sums: %w", err)
	}
	idA, _ := one.ID()
	idB, _ := two.ID()
	return idA == idB, nil
}
