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
