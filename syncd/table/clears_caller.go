package table

import "time"

// Process is a process on this host. A process ID may be used again, with another start.
type Process struct {
	// ID is the process ID in the initial PID namespace. 0: unknown.
	ID uint32
	// Start is the time of its start in nanoseconds since boot, suspend included.
	Start int64
}

// Caller is the process that deletes an entry by bpf(2).
type Caller struct {
	Process
	// Age is the time since the start of the process.
	Age time.Duration
}

// SetCaller sets the process of the deletes by bpf(2) that are entered next, or whose rereads are requested next.
func (tx *Tx) SetCaller(c Caller) { tx.t.clears.caller = c }

// callerIndex returns the index of a process in callers, 0 if too many others have deleted entries.
func (x *clears) callerIndex(c Caller) uint8 {
	free := 0
	for i := 1; i < clearCallers && c.ID != 0; i++ {
		switch at := &x.callers[i]; {
		case at.n > 0 && at.Process == c.Process:
			return uint8(i)
		case at.n == 0 && free == 0:
			free = i
		}
	}
	if free > 0 {
		x.callers[free].Caller = c
	}
	return uint8(free)
}

// seenCallers has the processes of deletes that hooks have reported and that a reread has yet to decide. The lock of the
// table protects it.
type seenCallers struct {
	// list has the latest processes, at most maxSeenCallers. next is the index of the one that another process replaces.
	list []Caller
	next int
	// latest is the index in list of the process of the latest delete, if list is not empty.
	latest int
	// of has one element for each of the lowest slots: the index in list plus 1 of the process that has deleted the entry,
	// 0 if it is unknown. It has a meaning for slots with flagDeleteSeen.
	of []uint8
}

// maxSeenCallers limits seenCallers.list. Indexes plus 1 fit into a byte.
const maxSeenCallers = 255

// noteDeleteSeen notes that a process has deleted the entry of a record. A reread is to decide.
func (t *Table) noteDeleteSeen(s uint32, by Caller) {
	t.meta(s).flags |= flagDeleteSeen
	x := &t.clears.seen
	if !t.opt.HoldClears || by.ID == 0 && int(s) >= len(x.of) {
		return
	}
	if int(s) >= len(x.of) {
		x.of = append(x.of, make([]uint8, int(t.allocated)-len(x.of))...)
	}
	x.of[s] = x.index(by)
}

// index returns the index of a process in list plus 1, 0 for an unknown process. It adds the process to list if necessary.
func (x *seenCallers) index(c Caller) uint8 {
	if c.ID == 0 {
		return 0
	}
	if len(x.list) > 0 && x.list[x.latest].Process == c.Process {
		x.list[x.latest] = c // it is older now
		return uint8(x.latest + 1)
	}
	for i := range x.list {
		if x.list[i].Process == c.Process {
			x.list[i], x.latest = c, i
			return uint8(i + 1)
		}
	}
	if len(x.list) < maxSeenCallers {
		x.list, x.latest = append(x.list, c), len(x.list)
	} else {
		x.list[x.next], x.latest = c, x.next
		x.next = (x.next + 1) % maxSeenCallers
	}
	return uint8(x.latest + 1)
}

// seenCaller returns the process whose delete of an entry hooks have reported before a reread has found it absent. It is
// unknown if no hook has reported a delete.
func (t *Table) seenCaller(s uint32) Caller {
	x := &t.clears.seen
	if !t.meta(s).is(flagDeleteSeen) || int(s) >= len(x.of) || x.of[s] == 0 {
		return Caller{}
	}
	return x.list[x.of[s]-1]
}

// bytes returns the memory of the processes in bytes.
func (x *seenCallers) bytes() uint64 { return uint64(cap(x.of)) + uint64(cap(x.list))*24 }
