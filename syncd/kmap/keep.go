package kmap

import (
	"cmp"
	"fmt"
	"slices"

	"mapsync/syncd/table"
)

// tidyRanges returns the ranges in order, with those that touch made one. Each must
// be a part of a value of that size.
func tidyRanges(ranges []table.Range, size int) ([]table.Range, error) {
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
