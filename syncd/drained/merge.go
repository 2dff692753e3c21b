package drained

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
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

// merge adds pinned sums to the present ones, unless both are the same map.
func (s *Sums) merge(pin string) error {
	former, err := s.loadPinned(pin)
	if err != nil {
		return err
	}
	defer former.Close() //nolint:errcheck // only read
	same, err := sameMap(former, s.sums)
	if err != nil || same {
		return err
	}
	sums, left := 0, 0
	err = s.options.EachKey(former, func(key []byte) error {
		sums++
		if s.mergeKey(former, key) != nil {
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

func (s *Sums) mergeKey(former *ebpf.Map, key []byte) error {
	value, err := former.LookupBytes(key)
	if err != nil || value == nil {
		return err
	}
	origin := s.Origin()
	own := len(key) - OriginSize
	if string(key[own:]) != string(origin[:]) {
		err := s.sums.Update(key, value, ebpf.UpdateNoExist)
		if errors.Is(err, ebpf.ErrKeyExist) {
			err = nil
		}
		return err
	}
	// The other fields are those of the newest entry.
	if newest, err := s.sums.LookupBytes(key); err == nil && newest != nil {
		for _, r := range s.options.copied() {
			copy(value[r.Offset:][:r.Size], newest[r.Offset:])
		}
	}
	if err := s.AddBack(key[:own], value); err != nil {
		return err
	}
	return former.Delete(key) // a second merge must not add it again
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
