package table

// simTables creates tables. It uses the memory of tables that were released. A run uses many tables for a
// short time. Most of the cost of New is memory that small tables never touch.
type simTables struct {
	internals   internals
	used, spare []*Table
}

func newTables(in internals) *simTables { return &simTables{internals: in} }

func (p *simTables) get(tb interface{ Fatal(...any) }, o Options) *Table {
	var old *Table
	if last := len(p.spare) - 1; last >= 0 {
		old = p.spare[last]
		p.spare = p.spare[:last]
	}
	t, err := p.internals.New(o, old)
	if err != nil {
		tb.Fatal(err)
	}
	p.used = append(p.used, t)
	return t
}

// release takes all tables back. The caller may not use them afterwards.
func (p *simTables) release() {
	p.spare = append(p.spare, p.used...)
	p.used = p.used[:0]
}
