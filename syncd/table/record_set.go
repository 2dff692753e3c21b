package table

// RecordSet is a set of live records of one table, with a bit for each record of the table. It does not change when records
// do: a record that enters the table after the last Add may count as in the set.
type RecordSet struct {
	slots slotSet
}

// Add adds a live record.
func (x *RecordSet) Add(r Ref) { x.slots.add(uint32(r)) }

// Has reports whether a live record is in the set.
func (x *RecordSet) Has(r Ref) bool { return x.slots.has(uint32(r)) }
