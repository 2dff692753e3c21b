package kmap

import (
	"cmp"
	"fmt"
	"slices"

	"mapsync/syncd/table"
)

// mergeRanges returns the ranges in ascending order, with adjacent and overlapping ranges merged.
// It returns an error if a range is not inside a value of size bytes.
func mergeRanges(ranges []table.Range, size int) ([]table.Range, error) {
	for _, r := range ranges {
		if r.Offset < 0 || r.Size <= 0 || r.Offset > size || r.Size > size-r.Offset {
			return nil, fmt.Errorf("keep %d bytes from %d on: no part of a value of %d bytes", r.Size, r.Offset, size)
		}
	}
	sorted := slices.SortedFunc(slices.Values(ranges), func(a, b table.Range) int { return cmp.Compare(a.Offset, b.Offset) })
	tidy := sorted[:0]
	for _, r := range sorted {
		if last := len(tidy) - 1; last >= 0 && r.Offset <= tidy[last].Offset+tidy[last].Size {
			tidy[last].Size = max(tidy[last].Size, r.Offset+r.Size-tidy[last].Offset)
			continue
		}
		tidy = append(tidy, r)
	}
	return tidy, nil
}
