package schema

import (
	"slices"
	"testing"
)

// TestTimers: the timers of a value include those in arrays and nested structs.
func TestTimers(t *testing.T) {
	timer := Field{Name: "timer", Offset: 8, Size: 16, Kind: KindNone, Timer: true}
	nested := &Message{Name: "nested", Size: 24, Fields: []Field{{Name: "state", Size: 8, Kind: KindUint}, timer}}
	wq := timer
	wq.Offset, wq.Count = 56, 2
	s := &Schema{Value: &Message{Name: "value", Size: 96, Fields: []Field{
		{Name: "state", Size: 8, Kind: KindUint},
		{Name: "nested", Offset: 8, Size: 24, Count: 2, Kind: KindMessage, Message: nested},
		wq,
		{Name: "lock", Offset: 88, Size: 4, Kind: KindNone},
	}}}
	want := []Range{{16, 16}, {40, 16}, {56, 16}, {72, 16}}
	if got := s.Timers(); !slices.Equal(got, want) {
		t.Errorf("timers: got %v, want %v", got, want)
	}
	s.Value.Fields = s.Value.Fields[:1]
	if got := s.Timers(); got != nil {
		t.Errorf("timers of a value without any: got %v, want none", got)
	}
}
