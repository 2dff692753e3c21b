package capture_test

import (
	"slices"
	"strings"

	"mapsync/internal/dataplane"

	"github.com/cilium/ebpf"
)

// arrayCases are the rows of TestHookEvents on arrays. Events carry only the index. A delete by syncd is an
// update with zeros.
var arrayCases = slices.Concat(
	updateCases("array", ebpf.Array), ownWriteCases("array", ebpf.Array),
	withBatchSupport(updateCases("per-CPU array", ebpf.PerCPUArray)), withTitle("per-CPU array", ebpf.PerCPUArray, []hookCase{
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

// withBatchSupport sets which kernels have the row of batches: from 5.13 on.
func withBatchSupport(rows []hookCase) []hookCase {
	for i := range rows {
		if strings.HasSuffix(rows[i].name, "batch") {
			rows[i].supported = perCPUArrayBatches
		}
	}
	return rows
}

func perCPUArrayBatches() error {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 16, MaxEntries: 1})
	if err != nil {
		return err
	}
	defer m.Close()
	_, err = m.BatchUpdate([][4]byte{{}}, onEachCPU(m, [][16]byte{{}}), nil)
	return err
}
