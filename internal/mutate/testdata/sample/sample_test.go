package sample

import (
	"errors"
	"testing"
)

func TestPut(t *testing.T) {
	b := new(box)
	for _, step := range []struct {
		n    int
		ok   bool
		err  error
		want box
	}{
		{-1, false, errNegative, box{0, 0}},
		{0, false, nil, box{0, 1}},
		{9, true, nil, box{9, 1}},
		{2, false, nil, box{9, 2}},
		{1, true, nil, box{10, 2}},
	} {
		if ok, err := b.put(step.n); ok != step.ok || !errors.Is(err, step.err) || *b != step.want {
			t.Errorf("put %d: %v, %v, %+v, want %+v", step.n, ok, err, *b, step)
		}
	}
}

func TestTwice(t *testing.T) {
	for n, ok := range map[int]bool{-1: false, 3: true, 5: true, 6: false} {
		b := new(box)
		if got, err := b.twice(n); (err == nil) != ok || ok && got != 1 {
			t.Errorf("put %d twice: %d, %v", n, got, err)
		}
	}
}

func TestSum(t *testing.T) {
	if got := sum(1, 3); got != 6 {
		t.Error(got)
	}
}

func TestSame(t *testing.T) {
	if same(1, 2) || same(2, 1) || !same(3, 3) {
		t.Error("wrong")
	}
}

func TestFails(t *testing.T) { t.Error("also without a mutant") }
