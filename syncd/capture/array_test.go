package capture_test

import (
	"slices"

	"mapsync/internal/dataplane"

	"github.com/cilium/ebpf"
)

// arrayCases are the rows of TestHookEvents on arrays. Events carry only the index. A delete by syncd is an
// update with zeros.
var arrayCases = slices.Concat(
	updateCases("array", ebpf.Array), ownWriteCases("array", ebpf.Array),
	updateCases("per-CPU array", ebpf.PerCPUArray), withTitle("per-CPU array", ebpf.PerCPUArray, []hookCase{
		{name: "own updates", act: func(s *hookFixture) { s.byDaemon(false, 700); s.ownBySyscall() }},
		{name: "own deletes", act: func(s *hookFixture) { s.byDaemon(true, 0); s.ownBySyscall() }},
	}),
	withTitle("array", ebpf.Array, []hookCase{
		{name: "program writes in place", act: (*hookFixture).inPlace},
		{name: "update beyond the last index", entries: 10, act: func(s *hookFixture) {
			p := openDataPlane(s, s.m, dataplane.Options{Capacity: caseWrites})
			for i := range caseWrites {
				key, value := s.entry(10+i, i)
				p.Add(dataplane.Update, ebpf.UpdateAny, key, value)
			}
			failed, err := p.Run()
			if err != nil {
				s.Fatal(err)
			}
			s.expectFailed(failed)
		}},
	}),
)
