package tool

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

func TestNumbers(t *testing.T) {
	list := []int{7}
	if err := Numbers(&list)("1,20"); err != nil || !slices.Equal(list, []int{1, 20}) {
		t.Errorf("1,20: got %v, error %v, want both numbers instead of the default", list, err)
	}
	for _, text := range []string{"", "0", "1,", "-1", "x"} {
		if err := Numbers(&list)(text); err == nil {
			t.Errorf("%q: got %v, want an error", text, list)
		}
	}
}

func TestMedian(t *testing.T) {
	for want, list := range map[float64][]float64{3: {9, 1, 3}, 2.5: {4, 1, 3, 2}, 5: {5}} {
		if got := Median(list); got != want {
			t.Errorf("median of %v: got %v, want %v", list, got, want)
		}
	}
}

func TestPauseEndsWithContext(t *testing.T) {
	if err := Pause(t.Context(), time.Millisecond); err != nil {
		t.Errorf("pause: got error %v, want none", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := Pause(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("pause with an ended context: got error %v, want %v", err, context.Canceled)
	}
}
