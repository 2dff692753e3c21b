// Package mutate measures the quality of a package's tests. It changes the package's code in one place
// at a time and checks whether a test fails.
//
// All changes, the mutants, are compiled into one test binary, each behind a switch. A package is
// therefore built only once. A first run records which mutants each test reaches, and how long the
// test takes. A mutant is then tried only with the tests that reach it, the fastest first, until one
// fails.
package mutate

// Mutant is one change of the code.
type Mutant struct {
	ID   int    `json:"id"` // counted from 1, in the order of files and positions
	File string `json:"file"`
	Line int    `json:"line"`
	// Func is the function that contains the mutant, with its receiver: "(*Tx).Get".
	Func string `json:"func"`
	// Op is the kind of change: "negate", "boundary", "arithmetic", "drop", ...
	Op string `json:"op"`
	// Text is the original code of the mutant, on one line.
	Text string `json:"text"`
	// Nth counts the mutants with the same file, function, operator and text, from 1.
	Nth int `json:"nth,omitempty"`
}

// Key identifies the mutant across changes elsewhere in the file.
func (m *Mutant) Key() string {
	key := m.File + ":" + m.Func + ": " + m.Op + " `" + m.Text + "`"
	if m.Nth > 1 {
		key += " #" + itoa(m.Nth)
	}
	return key
}
