package tabletest

import (
	"errors"

	"mapsync/syncd/table"
)

// layout is the format of the keys and values of a kernel map. A load balancer that makes its map again with another layout
// makes its daemon convert the table. Records have the same content in each layout, except that a narrow one cannot hold some
// values.
type layout struct {
	size   int  // of a key and of a value in bytes
	mask   byte // changes the bytes of a key, and those of a value that identify its write
	narrow bool // some values do not fit
}

// layouts are the possible layouts. Each map begins with the first one.
var layouts = [...]layout{{size: keySize}, {size: keySize, mask: 0x5a}, {size: keySize + 4, narrow: true}, {size: keySize + 4, mask: 0x33}}

// identifyingBytes is the number of bytes of a value that identify its write.
const identifyingBytes = 5

// errRange is the error of a value that a narrow layout cannot hold.
var errRange = errors.New("value out of range")

// fits reports whether a layout can hold a value.
func (y *layout) fits(v Value) bool { return !y.narrow || v.Number()%4 != 0 }

// key returns the bytes of a key in the layout of the table.
func (d *Daemon) key(i int) []byte { return d.n.world.keyIn(d.layout, i) }

// keyIn returns the bytes of a key in a layout.
func (w *World) keyIn(layout, i int) []byte {
	if layout == 0 {
		return w.keys[i][:]
	}
	y := &layouts[layout]
	for all := &w.converted[layout]; len(*all) <= i; {
		b := make([]byte, y.size)
		for at, x := range w.keys[len(*all)] {
			b[at] = x ^ y.mask
		}
		*all = append(*all, b)
	}
	return w.converted[layout][i]
}

// keyNumber returns the number of a key of the table.
func (d *Daemon) keyNumber(b []byte) int {
	k := entryKey(b)
	for i := range k {
		k[i] ^= layouts[d.layout].mask
	}
	return d.n.world.Key(k[:])
}

// value returns the value that the bytes of a record have. Without a value, it returns the zero Value.
func (d *Daemon) value(b []byte) (v Value) {
	copy(v[:], b)
	if len(b) > 0 {
		v.mask(layouts[d.layout].mask)
	}
	return v
}

// bytes returns the bytes of a value in the layout of the table. It may return the memory of v.
func (d *Daemon) bytes(v *Value) []byte { return layouts[d.layout].bytes(v) }

// bytes returns the bytes of a value. It may return the memory of v.
func (y *layout) bytes(v *Value) []byte {
	if *y == layouts[0] {
		return v[:]
	}
	b := make([]byte, y.size)
	x := *v
	x.mask(y.mask)
	copy(b, x[:])
	return b
}

// mask changes the bytes that identify the write.
func (v *Value) mask(mask byte) {
	for i := range identifyingBytes {
		v[i] ^= mask
	}
}

// in returns options with the sizes and masks of a layout. The masks have further bytes of which all bits count.
func (y *layout) in(o table.Options) table.Options {
	o.KeySize, o.ValueSize = y.size, y.size
	for _, mask := range []*[]byte{&o.Significant, &o.Carried, &o.Stable} {
		for *mask != nil && len(*mask) < y.size {
			*mask = append((*mask)[:len(*mask):len(*mask)], 0xff)
		}
	}
	return o
}

// convert converts the table to the layout of a map. Positions begin anew, so all streams of the table end. Peers then send
// everything again. In syncd, peers use the former table until the new map is read, and its later changes are sent again.
func (d *Daemon) convert(to int) {
	w, from, forgot := d.n.world, d.layout, d.floor() > 0
	d.noteDropped(to)
	o := layouts[to].in(d.n.opt)
	o.LRU, o.MaxEntries, o.Room, o.Seed = d.n.lru, d.n.room, d.n.fills(), 1
	key := 0
	converted, result, err := d.tab.Convert(o, table.Conversion{
		Key: func(dst, src []byte) error {
			key = d.keyNumber(src)
			copy(dst, w.keyIn(to, key))
			return nil
		},
		Value: func(dst, src []byte) error {
			v := d.value(src)
			if !layouts[to].fits(v) {
				w.dropRecord(d.n, key)
				return errRange
			}
			copy(dst, layouts[to].bytes(&v))
			return nil
		},
	})
	if err != nil {
		w.tb.Fatal(err)
	}
	d.endStreams()
	d.tab, d.layout, d.converted, d.epoch = converted, to, true, d.epoch+1
	d.syncBarrier, d.returnBarrier, d.expiredEarly, d.ownersChecked = nil, nil, 0, 0
	w.forgotten = w.forgotten || forgot
	if d.n.leastClear > 0 {
		d.internals().HoldSmallClears(d.tab, d.n.leastClear)
	}
	d.applyMembers()
	w.notef("%s converts its table from layout %d to %d: %d records, %d dropped", d.n.Name, from, to, result.Records, result.Failed)
}

// noteDropped notes the records of the node that a conversion is about to drop, and the entries of which peers have only named the
// owner.
func (d *Daemon) noteDropped(to int) {
	d.unfit = make(map[int]Content)
	for _, key := range d.namedEntries() {
		d.named[key] = d.Content(key).Owner
	}
	for key := range d.n.world.keys {
		if c := d.Content(key); c.Live() && c.Owner.Node == d.n.Name && !layouts[to].fits(c.Value) {
			d.unfit[key] = c
		}
	}
}

// hasDropped reports whether a daemon has dropped a record that its map cannot hold, and has none of the key since.
func (d *Daemon) hasDropped(key int, version table.Version, owner table.Owner) bool {
	c, dropped := d.unfit[key]
	return dropped && c.version == version && c.Owner == owner && !layouts[d.layout].fits(c.Value) && d.floor() == 0 && !d.Content(key).Known
}

// endStreams ends all streams, and creates the inbound streams anew.
func (d *Daemon) endStreams() {
	for len(d.outbound) > 0 {
		d.outbound[0].end()
	}
	for i, l := range d.Inbound {
		if l != nil {
			l.cut()
		}
		d.Inbound[i] = nil
	}
	for i, inc := range d.view.live {
		if i != d.n.ID && inc != 0 {
			d.setInbound(i, inc)
		}
	}
}

// dropRecord records that a conversion drops a live record that does not fit. Only copies of it are left.
func (w *World) dropRecord(n *Node, key int) {
	w.filtered = true
	n.Daemon.awaited |= 1 << (key % 64)
	m := w.Model
	if m == nil || m.keys[key].home < 0 {
		return
	}
	k := &m.keys[key]
	switch home := w.Nodes[k.home]; {
	case home == n:
		k.raceOpen, k.racedBefore = true, true
	case home.Daemon == nil || !m.holdsLast(home, key):
		k.contested = true
	}
}

// newMap returns an empty map with the present layout of a node.
func (n *Node) newMap() *Map {
	m := n.world.NewMap()
	m.layout = n.layout
	return m
}

// changeLayout simulates a load balancer that makes its map again with another layout.
func (n *Node) changeLayout(layout int) {
	w := n.world
	n.layout = layout
	n.Map, n.copied = n.newMap(), nil
	if w.Model != nil {
		w.Model.LostMap(n)
	}
	w.moves++
	w.notef("%s's load balancer makes map %d with layout %d", n.Name, n.Map.ID, layout)
}

// equalLayouts ends the differences of the layouts: all nodes have one that holds all values.
func (w *World) equalLayouts() {
	to := 0
	for _, n := range w.Up() {
		if !layouts[n.layout].narrow {
			to = n.layout
		}
	}
	for _, n := range w.Nodes {
		if n.layout != to {
			n.changeLayout(to)
		}
	}
}
