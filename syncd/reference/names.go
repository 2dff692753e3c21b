// Package reference translates ids that each node assigns itself, for example the ids of backends: another map of the load
// balancer, the referenced map, says what an id means. A session that a peer takes over must keep its backend, whatever id the
// backend has there.
//
// Tables contain the number of a meaning in place of an id. This package assigns the numbers. A number means the same for as long as
// it is in use, so that a change of the referenced map changes no record of a table. Entries are translated where they are read from
// the kernel map and where they are written to it: see Translation.
package reference

import (
	"encoding/binary"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"
)

const (
	// unknownPrefix begins the text of a number for an id that the referenced map has never had. It is not a valid meaning.
	unknownPrefix = "id "
	// noNumber is the number of all ids that find no number of their own. It has no meaning.
	noNumber = 1
	// maxMeanings is the maximum number of meanings of a reference. Peers can name some that this node does not have.
	maxMeanings = 1 << 20
)

// Names are the meanings of the ids of one reference. A Names is safe for concurrent use. It implements schema.Links.
type Names struct {
	// size is the size of an id in the referenced map in bytes. Ids and numbers fit into it.
	size int
	// most is the highest number.
	most uint32

	// current is the content of the referenced map. It is never nil and does not change.
	current atomic.Pointer[Content]
	// texts are the meanings by number. Elements are replaced as a whole; nil: unused.
	texts atomic.Pointer[[]*meaning]

	// mu guards the fields below and changes of texts.
	mu sync.Mutex
	// numbers are the numbers in use by text. 0 is not a number: it stands for no id.
	numbers map[string]uint32
	// free are numbers that can be used again.
	free []uint32
	// marked are the numbers that Release found in use, or that were given out since it began; nil: it does not run.
	marked map[uint32]bool
	// unmarked are the numbers that the last Release did not find in use.
	unmarked map[uint32]bool
}

// meaning is the text of a number.
type meaning struct {
	text string
	// sum is a hash of text, the same on all nodes.
	sum uint64
}

// Content is what the ids of a referenced map mean at one moment. It does not change.
type Content struct {
	// meanings has the number of each id.
	meanings map[uint64]uint32
	// ids has the lowest id of each number.
	ids map[uint32]uint64
	// lost has the last number of each id that means nothing now, and former the last id of each number that has none now.
	lost   map[uint64]uint32
	former map[uint32]uint64
	// seen is the wall time in nanoseconds at which the last reading began that has found the content.
	seen *atomic.Int64
}

func newContent(seen int64) *Content {
	c := &Content{meanings: make(map[uint64]uint32), ids: make(map[uint32]uint64), seen: new(atomic.Int64)}
	c.seen.Store(seen)
	return c
}

// NewNames returns the meanings of ids of a size in bytes: 1, 2, 4 or 8.
func NewNames(size int) *Names {
	n := &Names{size: size, most: maxMeanings, numbers: make(map[string]uint32)}
	if size < 4 {
		n.most = min(n.most, 1<<(8*size)-1)
	}
	n.current.Store(newContent(0))
	n.texts.Store(&[]*meaning{nil, {text: unknownPrefix}}) // numbers 0 and noNumber
	return n
}

// Size returns the size of an id in bytes.
func (n *Names) Size() int { return n.size }

// Name returns the meaning of a number. ok is false if it is the number of an id that means nothing.
func (n *Names) Name(number uint32) (text string, ok bool) {
	m := n.meaning(number)
	if m == nil || strings.HasPrefix(m.text, unknownPrefix) {
		return "", false
	}
	return m.text, true
}

// Index returns the number of a meaning, which may be unknown on this node. ok is false if all numbers are in use.
func (n *Names) Index(text string) (number uint32, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.number(text)
}

func (n *Names) meaning(number uint32) *meaning {
	if texts := *n.texts.Load(); int64(number) < int64(len(texts)) {
		return texts[number]
	}
	return nil
}

// sum returns a hash of the meaning of a number that is equal on all nodes.
func (n *Names) sum(number uint32) uint64 {
	if m := n.meaning(number); m != nil {
		return m.sum
	}
	return 0
}

// number returns the number of a text, and assigns one if it has none. The caller holds mu.
func (n *Names) number(text string) (uint32, bool) {
	if k, ok := n.numbers[text]; ok {
		n.giveOut(k)
		return k, true
	}
	texts := *n.texts.Load()
	m := &meaning{text: strings.Clone(text), sum: xxh3.HashString(text)}
	var k uint32
	switch last := len(n.free) - 1; {
	case last >= 0:
		k, n.free = n.free[last], n.free[:last]
		texts = slices.Clone(texts)
		texts[k] = m
	case int64(len(texts)) > int64(n.most):
		return 0, false
	default:
		k = uint32(len(texts))
		texts = append(texts, m) // readers of the old slice do not see the new element
	}
	n.texts.Store(&texts)
	n.numbers[m.text] = k
	n.giveOut(k)
	return k, true
}

// giveOut notes that a number may be on its way into a table. The caller holds mu.
func (n *Names) giveOut(k uint32) {
	if n.marked != nil {
		n.marked[k] = true
	}
	delete(n.unmarked, k)
}

// Update is UpdateAt for a reading that begins now.
func (n *Names) Update(content map[uint64]string) (changed bool) {
	return n.UpdateAt(content, time.Now().UnixNano())
}

// UpdateAt replaces the content of the referenced map: the meaning of each id, in a reading that began at a wall time in nanoseconds. It
// reports whether something has changed. An id with an empty meaning counts as absent.
func (n *Names) UpdateAt(content map[uint64]string, began int64) (changed bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	old, c := n.current.Load(), newContent(began)
	for id, text := range content {
		if text == "" {
			continue
		}
		k, ok := n.number(text)
		if !ok {
			k = noNumber // until numbers are free again
		}
		c.meanings[id] = k
		if lowest, ok := c.ids[k]; k != noNumber && (!ok || id < lowest) {
			c.ids[k] = id
		}
	}
	c.lost, c.former = missing(c.meanings, old.lost, old.meanings), missing(c.ids, old.former, old.ids)
	if maps.Equal(c.meanings, old.meanings) {
		old.seen.Store(began)
		return false
	}
	n.current.Store(c)
	return true
}

// Confirm notes that a reading that began at a wall time has found the current content again.
func (n *Names) Confirm(began int64) { n.current.Load().seen.Store(began) }

// missing returns the elements of older and old without those whose key now has. The elements of old count more.
func missing[K, V comparable](now, older, old map[K]V) map[K]V {
	left := maps.Clone(older)
	if left == nil {
		left = make(map[K]V)
	}
	maps.Copy(left, old)
	maps.DeleteFunc(left, func(k K, _ V) bool { _, ok := now[k]; return ok })
	return left
}

// Content returns the current content of the referenced map.
func (n *Names) Content() *Content { return n.current.Load() }

// numberOf returns the number of an id. An id that has lost its meaning keeps it. An id of 0 without a meaning has the number 0: it stands
// for no id. Another id without a meaning has a number without a meaning. So has, in keys, an id whose meaning a lower id has, too: the
// entries of both cannot have one key.
func (n *Names) numberOf(c *Content, id uint64, inKey bool) uint32 {
	if k, ok := c.numberOf(id, inKey); ok {
		return k
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	k, ok := n.number(unknownText(id))
	if !ok {
		return noNumber
	}
	return k
}

// numberOf is Names.numberOf without ids that have a number without a meaning.
func (c *Content) numberOf(id uint64, inKey bool) (number uint32, ok bool) {
	if k, ok := c.meanings[id]; ok {
		return k, !inKey || k == noNumber || c.ids[k] == id
	}
	if k, ok := c.lost[id]; ok {
		return k, true
	}
	return 0, id == 0
}

// unknownText returns the text of the number of an id without a meaning.
func unknownText(id uint64) string {
	return unknownPrefix + string(binary.BigEndian.AppendUint64(nil, id))
}

// idOf returns the id of a number. ok is false if the referenced map has no entry with that meaning. id is then the last one, and stale
// reports that it means something else now.
func (n *Names) idOf(c *Content, number uint32) (id uint64, ok, stale bool) {
	if number == 0 {
		_, taken := c.meanings[0] // 0 would not stand for no id
		return 0, !taken, taken
	}
	if id, ok = c.ids[number]; ok {
		return id, true, false
	}
	if m := n.meaning(number); m != nil && strings.HasPrefix(m.text, unknownPrefix) {
		if number == noNumber {
			return 0, false, false
		}
		id = binary.BigEndian.Uint64([]byte(m.text[len(unknownPrefix):])) // an id of this node
		k, taken := c.meanings[id]
		taken = taken && (k == noNumber || c.ids[k] == id) // otherwise a lower id has the meaning
		return id, !taken, taken
	}
	if id, ok = c.former[number]; ok {
		_, stale = c.meanings[id]
	}
	return id, false, stale
}

// changed returns the numbers whose id differs between two contents, and those of ids that mean something else now. A meaning that has only
// disappeared is not among them: entries keep its id.
func (n *Names) changed(old, now *Content) map[uint32]bool {
	changed := make(map[uint32]bool)
	n.mu.Lock()
	defer n.mu.Unlock()
	// In keys, only one of several ids with a meaning has its number.
	number := func(c *Content, id uint64, inKey bool) (uint32, bool) {
		if k, ok := c.numberOf(id, inKey); ok {
			return k, true
		}
		k, ok := n.numbers[unknownText(id)]
		return k, ok
	}
	for id := range now.meanings {
		for _, inKey := range []bool{false, true} {
			was, known := number(old, id, inKey)
			if is, ok := number(now, id, inKey); was != is || known != ok {
				changed[was], changed[is] = changed[was] || known, changed[is] || ok
			}
		}
	}
	for k, id := range now.ids {
		if was, ok := old.ids[k]; !ok || was != id {
			changed[k] = true
		}
	}
	return changed
}

// Len returns the number of meanings in use.
func (n *Names) Len() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.numbers)
}

// Crowded reports whether so many numbers are in use that Release should be called.
func (n *Names) Crowded() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.numbers) > releaseAbove && len(n.numbers) > 2*len(n.current.Load().meanings) || int64(len(n.numbers)) > int64(n.most)/4*3
}

// releaseAbove is the number of meanings up to which none is released, unless the ids are too narrow for it.
const releaseAbove = 1 << 16

// Release makes numbers free that nothing uses. each calls mark for each number in all tables, and returns false if it could not do so, or if
// a Translation still has former contents. A number becomes free if two successive calls do not find it, and it was not given out meanwhile:
// it may be on its way into a table. The first call makes ids that had it forget it.
func (n *Names) Release(each func(mark func(number uint32)) bool) {
	n.mu.Lock()
	n.marked = make(map[uint32]bool)
	n.mu.Unlock()
	found := make(map[uint32]bool)
	all := each(func(k uint32) { found[k] = true })
	n.mu.Lock()
	defer n.mu.Unlock()
	maps.Copy(found, n.marked)
	if n.marked = nil; !all {
		return
	}
	c := n.current.Load()
	for _, k := range c.meanings {
		found[k] = true
	}
	unmarked := make(map[uint32]bool)
	for text, k := range n.numbers {
		switch {
		case found[k]:
		case n.unmarked[k]:
			delete(n.numbers, text)
			n.free = append(n.free, k)
		default:
			unmarked[k] = true
		}
	}
	n.unmarked = unmarked
	n.forget(c, unmarked)
}

// forget removes the former meanings of ids whose numbers are not in use. The caller holds mu.
func (n *Names) forget(c *Content, unused map[uint32]bool) {
	less := *c
	less.lost, less.former = maps.Clone(c.lost), maps.Clone(c.former)
	maps.DeleteFunc(less.former, func(k uint32, _ uint64) bool { return unused[k] })
	maps.DeleteFunc(less.lost, func(_ uint64, k uint32) bool { return unused[k] })
	if len(less.lost) < len(c.lost) || len(less.former) < len(c.former) {
		n.current.Store(&less)
	}
}

// appendMeaning appends the meaning of a number: bytes that do not depend on the number.
func (n *Names) appendMeaning(dst []byte, number uint32) []byte {
	if m := n.meaning(number); m != nil {
		return append(append(dst, byte(len(m.text))), m.text...)
	}
	return append(dst, 0)
}

// ID returns the id that a key of a referenced map is: 1 to 8 bytes in host order.
func ID(key []byte) uint64 { return load(key) }

// load returns the unsigned integer in b, of 1, 2, 4 or 8 bytes in host order.
func load(b []byte) uint64 {
	var word [8]byte
	copy(word[:], b) // hosts are little-endian
	return binary.LittleEndian.Uint64(word[:])
}

// store writes an unsigned integer to b in host order.
func store(b []byte, v uint64) {
	var word [8]byte
	binary.LittleEndian.PutUint64(word[:], v)
	copy(b, word[:len(b)])
}
