package table

// convertedFlags are the flags of a record that stay in a new kernel map of another layout. All others describe the former map, the
// writer, or a queue.
const convertedFlags = flagExpired | flagInferred | flagLoaded | flagNamed | flagCleared | flagUnfit

// flags returns the flags of a record in the new table, besides those that enter sets.
func (w *conversion) flags(m *meta) flags {
	f := m.flags & convertedFlags
	if !m.live() {
		return f // flagUnsent has another meaning: see raced
	}
	f |= m.flags & flagUnsent
	if x := &w.from.clears; m.is(flagHeld) && (x.active && !x.decided || x.absentCleared) {
		f |= flagCleared // the writer restores the entry
	}
	return f
}

// drop counts a record that the new table does not have. known reports that w.key has its key. Peers may hold a record of this
// node. The absence of its entry therefore proves nothing, also at the next start.
func (w *conversion) drop(m *meta, known bool, reason error) {
	w.done.Failed++
	if w.done.Err == nil {
		w.done.Err = reason
	}
	switch {
	case !m.live() || !w.from.ours(m.owner):
	case known:
		w.to.addUnheld(w.key, m.version)
	default:
		w.to.unheld.otherLayout = true
	}
}

// notes copies what the old table has noted about keys and about the start of this incarnation.
func (w *conversion) notes() {
	from, to := w.from, w.to
	u := &from.unheld
	// Hashes of keys are those of the other layout, so the unheld keys are unknown from now on. If absent keys were not decided yet,
	// the writer restores them in the new map: a part of them would not look like a clear.
	to.opt.SameMap = from.opt.SameMap && len(u.of) == 0 && from.clears.absent.len() == 0
	to.unheld.overflow = to.unheld.overflow || u.some() || u.otherLayout
	to.clears.absentDelayed, to.clears.found = from.clears.absentDelayed, from.clears.found
	to.clears.stopKnown, to.clears.stopped, to.clears.latestStopped = from.clears.stopKnown, from.clears.stopped, from.clears.latestStopped
	if x := &from.clears; x.clear.At != 0 && !x.decided {
		to.clears.clear = x.clear
		to.clears.clear.Restored = true
	}
	if from.replaced.of != nil {
		to.replaced.begin()
	}
	for key, old := range from.replaced.of {
		w.replacedLoad(key, old)
	}
	for key, r := range from.refusals.of {
		if w.funcs.Key(w.key, []byte(key)) == nil {
			to.refusals.put(w.key, r)
		}
	}
}

// replacedLoad copies the content of a key that a record of another node has replaced.
func (w *conversion) replacedLoad(key string, old replacedLoad) {
	if w.funcs.Key(w.key, []byte(key)) != nil {
		return
	}
	var value []byte
	if old.value != nil {
		if w.funcs.Value(w.value, old.value) != nil {
			return
		}
		value = w.value
	}
	w.to.replaced.note(w.key, value, old.loaded)
}
