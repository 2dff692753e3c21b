package bpf

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestKernelTypesAreShared: uses in short succession share the types, which leave the memory after the last one.
func TestKernelTypesAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := KernelTypes()
		for range 3 {
			time.Sleep(typesLifetime - time.Second)
			if got := KernelTypes(); got != first {
				t.Fatalf("types %s after the last use: got others, want the same", typesLifetime-time.Second)
			}
		}
		time.Sleep(typesLifetime)
		synctest.Wait()
		if types.cache != nil {
			t.Fatalf("types %s after the last use: got some in memory, want none", typesLifetime)
		}
		if got := KernelTypes(); got == first {
			t.Error("types after they left the memory: got the same, want others")
		}
		time.Sleep(typesLifetime)
	})
}

// TestKeptKernelTypesStay: types that are kept stay in memory without a use.
func TestKeptKernelTypesStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer func() { types.keep, types.cache = false, nil }()
		KeepKernelTypes()
		first := KernelTypes()
		time.Sleep(2 * typesLifetime) // in the time of synctest
		if got := KernelTypes(); got != first {
			t.Fatalf("types %s after the last use: got others, want the same", 2*typesLifetime)
		}
	})
}
