package table_test

// oldRuleList has the old rules. Those in files of tabletest are rules of syncd/replicate and syncd/daemon. Rules against hostile
// members are not among them, because the nodes of a simulation are honest: see bench/attack.
var oldRuleList = []oldRule{
	{
		name: "a filtered record counts as absent",
		file: "full_sync_sweep.go",
		old:  "	t.moveTail(s)\n	return true\n}",
		new:  "	return true\n}",
	},
	{
		name: "a filtered key counts as absent",
		file: "coverage.go",
		old:  "	return found || c.buckets.Has(int(h>>bucketShift))",
		new:  "	return found && false",
	},
	{
		name: "a record above the limit counts as absent",
		file: "tabletest/inbound.go",
		old:  "		l.noteFiltered(tx, x, &opt, resent, filterValue) // the table has no room\n",
		new:  "		w.filtered = true\n",
	},
	{
		name: "a record too far ahead counts as absent",
		file: "tabletest/filter.go",
		old:  "	l.noteFiltered(tx, x, opt, resent, f)\n",
		new:  "	if w.filtered = true; !ahead {\n		l.noteFiltered(tx, x, opt, resent, f)\n	}\n",
	},
	{
		name: "inferred deletes are sent with the version of the owner",
		file: "full_sync_sweep.go",
		old:  "	m.flags |= flagInferred\n",
		new:  "",
		test: "TestInferredDelete", // coverage by key leaves a simulation hardly any wrong inference
	},
	{
		name: "inferred deletes are sent",
		file: "tabletest/outbound.go",
		old:  "r.Version != 0 && !r.Inferred &&",
		new:  "r.Version != 0 &&",
	},
	{
		name: "the identity of the map is saved although the map has refused own records",
		file: "tabletest/state_file.go",
		old:  "held, unheld = tx.OwnNotHeld() == 0 && !tx.UnheldOverflow() && !restores, tx.Unheld()",
		new:  "held, unheld = !restores, tx.Unheld()",
		test: "TestSimulationFilters",
	},
	{
		name: "an own record with a victim counts as held before it is written",
		file: "coverage.go",
		old:  "m.flags&(flagFree|flagNotHeld|displaced)&^flagDirty == flagFailed {\n			n++",
		new:  "m.flags&(flagFree|flagNotHeld|displaced)&^flagDirty == flagFailed {\n			n += 0",
		test: "TestSimulationFilters",
	},
	{
		name: "own records that were filtered count as deleted at the next start",
		file: "coverage.go",
		old:  "	_, found := u.of[u.hash(key)]\n	return found\n}",
		new:  "	return false\n}",
		test: "TestSimulationFilters",
	},
	{
		name: "peers do not receive that own records were filtered",
		file: "tabletest/filter.go",
		old:  "		tx.NoteUnheld(key, x.version)\n		l.unheld = l.unheld || !x.unsent\n",
		new:  "		tx.NoteUnheld(key, x.version)\n",
		test: "TestSimulationFilters",
	},
	{
		name: "deletes that were filtered count as acknowledged",
		file: "tabletest/filter.go",
		old:  "	case x.dead:\n		l.unheld = l.unheld || !x.unsent && !resent\n",
		new:  "	case x.dead:\n",
		test: "TestSimulationFilters",
	},
	{
		name: "the sender omits records that it cannot send",
		file: "tabletest/outbound.go",
		old:  "		x.unsent, x.vague, x.value = true, st.from.n.filter(x.key) == filterKey, Value{}\n",
		new:  "		return\n",
	},
	{
		name: "a copied map wins over live peers",
		file: "load_new_map.go",
		old:  "equal || t.ownedByLivePeer(s):",
		new:  "equal:",
	},
	{
		name: "the tombstone of a copied entry is forgotten before its reread",
		file: "tombstones_expire.go",
		old:  " || kept&flagDirty != 0 && t.isCopy(s)",
		new:  "",
		test: "TestSimulationCopies",
	},
	{
		name: "a clear replicates",
		file: "merge_local_delete.go",
		old:  "case t.opt.HoldClears && (t.stats.Live",
		new:  "case false && (t.stats.Live",
	},
	{
		name: "a clear after a drain replicates",
		file: "merge_local_delete.go",
		old:  "	case t.keptWhileDrained(m):\n",
		new:  "	case false:\n",
	},
	{
		name: "a delete that waits is lost when the record gets another version",
		file: "record_ops.go",
		old:  "		t.holdLonger(s)\n",
		new:  "		t.unhold(s)\n",
	},
	{
		name: "a newer delete revives an absent key (c77c913)",
		file: "merge_restart.go",
		old:  "		t.put(s, nil, true, now) // the map lacks the entry\n",
		new:  "",
		test: "TestAbsentEntryHasNewerDelete", // in a simulation, peers seldom have different records of an absent key
	},
	{
		name: "used entries expire",
		file: "takeover.go",
		old:  "case x.scanned-at >= int64(wait) && idleFor(t.key(x.slot), uses, wait):",
		new:  "case x.scanned-at >= int64(wait):",
	},
	{
		name: "a sweep infers deletes by the buckets of another digest key",
		file: "full_sync_sweep.go",
		old:  "	if a.Buckets != nil && a.DigestID != t.DigestID() {",
		new:  "	if false {",
		test: "TestSweepOfAnotherDigestKey", // a sender with another digest key sends no answer by buckets
	},
	{
		name: "a resend has the buckets of another digest key",
		file: "tabletest/outbound.go",
		old:  "	f.checkResendKey(d.tab)\n",
		new:  "",
	},
	{
		name: "a change of the digest key forgets which records the map has refused",
		file: "digest_rekey.go",
		old:  "		t.owners.list[m.owner].digest.countUnheld(m, 1)\n",
		new:  "",
	},
	{
		name: "versions too far ahead stay after a step of the clock",
		file: "version_clock.go",
		old:  "	return t.clock.withdrawAbove > 0 && m.owner == selfID",
		new:  "	return false && m.owner == selfID",
	},
	{
		name: "an absence deletes an entry whose owner was only named",
		file: "full_sync_sweep.go",
		old:  "		case m.is(flagNamed):",
		new:  "		case false:",
		test: "TestSimulationFilters",
	},
	{
		name: "an absence deletes no entry with the lowest version",
		file: "full_sync_sweep.go",
		old:  "		case m.is(flagNamed):",
		new:  "		case m.version == AdoptedVersion && m.is(flagLoaded):",
		test: "TestSimulationFilters",
	},
	{
		name: "an absence adopts an entry whose owner was only named, although the answer is no evidence",
		file: "full_sync_sweep.go",
		old:  "	return a.Covered == nil || ",
		new:  "	return a.Covered == nil || m.is(flagNamed) || ",
	},
	{
		name: "a filtered record of a live peer protects no record of another owner",
		file: "superseded.go",
		old:  "	if t.superseding(t.meta(s)).effective() {\n",
		new:  "	if false {\n",
	},
	{
		name: "an entry whose owner was only named is sent",
		file: "tabletest/outbound.go",
		old:  " && !r.Inferred && !r.Named }",
		new:  " && !r.Inferred }",
		test: "TestSimulationFilters",
	},
	{
		name: "an entry whose owner was only named counts as a record of the owner",
		file: "coverage.go",
		old:  "	t.stamp(s, NamedVersion, o)\n",
		new:  "	t.stamp(s, AdoptedVersion, o)\n",
	},
	{
		name: "a changed copy counts as unchanged since the stop",
		file: "stop.go",
		old:  "	case e.content != content:\n",
		new:  "	case false && e.content != content:\n",
		test: "TestSimulationStops",
	},
	{
		name: "an entry without proof is below restored records",
		file: "tabletest/stops.go",
		old:  "n.opt.AdoptVersion = table.RestoredVersions",
		new:  "n.opt.AdoptVersion = table.AdoptedVersion",
		test: "TestSimulationFewStops",
	},
	{
		name: "restored versions are defended",
		file: "unverified_owners.go",
		old:  "t.isRestored(d.Version) && t.owners.stopped[from.Node] &&",
		new:  "t.isRestored(d.Version) && false &&",
		test: "TestRestoredRecordsAreNotDefended", // in a simulation, repairs make the nodes agree nevertheless
	},
	{
		name: "the stop file outlives the start",
		file: "tabletest/stops.go",
		old:  "	n.stop, n.stopMap = table.Stop{}, 0\n",
		new:  "",
		test: "TestSimulationStops",
	},
	{
		name: "a restored record replaces an entry that is not adopted",
		file: "stop.go",
		old:  "	return !owner.ours && opt.Sender != 0 &&",
		new:  "	return false && !owner.ours &&",
		test: "TestMergeOverFound", // a simulation does not predict the winner of two copies that may have changed
	},
	{
		name: "a delete of a restored record replaces an entry that may have changed",
		file: "stop.go",
		old:  "v != t.opt.AdoptVersion || d.Delete {",
		new:  "v != t.opt.AdoptVersion {",
		test: "TestMergeOverFound", // the model of a simulation does not expect an entry that another node has found
	},
	{
		name: "the deletes of a clear are entered",
		file: "clears.go",
		old:  "t.clearEvidence(ended); e.isClear() {",
		new:  "t.clearEvidence(ended); e.isClear() && false {",
	},
	{
		name: "a delete after the end of a clear is restored",
		file: "clears.go",
		old:  "	for ; x.queue.len() > 0 && x.queue.peek().since <= x.endedAt; limit-- {",
		new:  "	for ; x.queue.len() > 0; limit-- {",
		test: "TestDeleteAfterAClear", // the daemon of a simulation restores all entries of a clear at once
	},
	{
		name: "the absence of all entries at start never counts as a clear",
		file: "clears_restart.go",
		old:  "x.absentDecided, x.absentCleared = true, t.absentIsClear()",
		new:  "x.absentDecided, x.absentCleared = true, false",
	},
	{
		name: "the identity of the map stays during a restore",
		file: "tabletest/state_file.go",
		old:  "			d.inStateFile, d.n.StateFileMap, d.initialSyncDone = false, 0, false\n			tx",
		new:  "			tx",
	},
	{
		name: "the handover leaves the state file at once",
		file: "tabletest/drain.go",
		// The node has no identity of the map then, which alone would keep the entries: the rule is that of a time without either.
		old:  "	d.inStateFile, d.n.StateFileMap, d.initialSyncDone, d.restores = false, 0, false, false\n	d.n.world.moves++\n",
		new:  "	d.n.handover = table.Handover{}\n	d.n.world.moves++\n",
		test: "TestSimulationDrains",
	},
	{
		name: "a change from before a handover withdraws the record from it",
		file: "handover.go",
		old:  "		m.flags &^= flagUnsent\n",
		new:  "",
		test: "TestSimulationDrains",
	},
	{
		name: "an event of an early delete is forgotten",
		file: "merge_local_delete.go",
		old:  "		t.noteDeleted(c)\n		if t.loading",
		new:  "		if t.loading",
		test: "TestDeleteBeforeRecordOfNewMap", // a simulation seldom deletes an entry during the load that a peer has from an earlier incarnation
	},
	{
		name: "a sweep deletes records of earlier incarnations that the peer may lack",
		file: "full_sync_sweep.go",
		old:  "		owner != a.Peer && position > a.Acknowledged,\n",
		new:  "",
		test: "TestSimulationFilters",
	},
	{
		name: "a sender is authoritative for records of its earlier incarnations that it may lack",
		file: "merge_remote.go",
		old:  "d.Owner != opt.Sender && m.seq > opt.Acknowledged:",
		new:  "d.Owner != opt.Sender && false:",
		test: "TestSenderMayLackItsEarlierRecord", // a simulation seldom has the older record left at the sender
	},
	{
		name: "tombstones below a filtered record are forgotten",
		file: "tabletest/acks.go",
		old:  "inc != 0 && d.Inbound[i].lacksFiltered():",
		new:  "inc != 0 && false:",
		test: "TestTombstoneBelowAFilteredRecord", // a random simulation seldom sets back a clock and filters the record
	},
	{
		name: "compact tombstones are not sent again",
		file: "full_sync_sweep.go",
		old:  "	if _, s := t.findForChange(key); s != 0 && !t.meta(s).is(flagUnversioned) {\n		t.moveTail(s)\n	}\n	t.finishChange()\n",
		new:  "	if _, s := t.find(key); s != 0 && s&compactBit == 0 && !t.meta(s).is(flagUnversioned) {\n		t.moveTail(s)\n	}\n",
	},
	{
		name: "a filtered record makes an absence meaningless that the map proves",
		file: "coverage.go",
		old:  "tx.t.sameMap(key) || tx.Get(key, &rec) && rec.Owner == selfID {",
		new:  "tx.Get(key, &rec) && rec.Owner == selfID {",
		test: "TestSimulationFilters",
	},
	{
		name: "an absence deletes entries that the peer cannot hold",
		file: "tabletest/inbound_absence.go",
		old:  " || !l.peerCanHold(value)\n",
		new:  "\n",
	},
	{
		name: "a conversion forgets that peers have only named an owner",
		file: "convert_state.go",
		old:  "flagLoaded | flagNamed | flagCleared",
		new:  "flagLoaded | flagCleared",
		test: "TestSimulationLayouts",
	},
	{
		name: "the writer writes own records that a new map has",
		file: "load_new_map.go",
		old:  "		t.loadOwn(c, s)\n",
		new:  "		_ = t.loadOwn\n",
		test: "TestNewMapWithOwnRecords", // a later scan finds the difference in a simulation
	},
	{
		name: "a timer with known bytes is not seen",
		file: "scan.go",
		old:  " || t.showsTimer(c, m) {",
		new:  " {",
		test: "TestTimerWithKnownBytesPreventsExpiry", // 600,000 simulated seeds do not show it since rereads note timers, too
	},
	{
		name: "entries with a timer expire",
		file: "takeover.go",
		old:  "	case c.Op != OpUpdate || !t.showsTimer(c, m):\n",
		new:  "	case !t.showsTimer(c, m) || true:\n",
	},
	{
		name: "a timer ends a session that was handed over",
		file: "merge_local_delete.go",
		old:  "packet && !t.mayBeTimer(m), ",
		new:  "packet, ",
		test: "TestSimulationDrains",
	},
	{
		name: "a packet explains an absence after a delete by bpf(2)",
		file: "clears.go",
		old:  "		m.flags &^= flagPacketDelete // bpf(2) has found the entry since then\n",
		new:  "",
		test: "TestClearAfterADeleteOfAPacket", // one seed of 4 million shows it
	},
}
