// Package sample is what the mutation tester is tested with.
package sample

import (
	"errors"
	"fmt"
	"log/slog"
)

var errNegative = errors.New("negative")

type box struct{ n, dropped int }

// put is tested in full.
func (b *box) put(n int) (bool, error) {
	if n < 0 {
		return false, errNegative
	}
	if n == 0 || b.n+n > 10 {
		b.dropped++
		slog.Default().Debug("dropped", "number", n+1)
		return false, nil
	}
	b.n += n
	return true, nil
}

// twice returns numbers beside its errors that no caller looks at.
func (b *box) twice(n int) (int, error) {
	if n > 5 {
		return 0, fmt.Errorf("put %d twice", n)
	}
	if _, err := b.put(n); err != nil {
		return n, err
	}
	return 1, nil
}

// sum is tested without what it does at its bounds.
func sum(from, to int) (total int) {
	for i := from; i < to; i++ {
		if i >= 100 {
			break
		}
		total += 2 * i
	}
	return total
}

// same has a mutant that changes nothing.
func same(a, b uint8) bool {
	if a >= b && b >= a {
		return a-b == 0
	}
	return false
}

// unused has no test.
func unused(ready bool, n uint64) uint64 {
	if ready {
		return n<<1 | 1
	}
	return n
}
