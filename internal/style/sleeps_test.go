package style

import (
	"slices"
	"testing"
)

func TestSleeps(t *testing.T) {
	const code = `package a

func TestA(t *testing.T) {
	time.Sleep(1)
	time.Sleep(2) // the rate of the load
	// The limit of syncd passes.
	time.Sleep(3)
	time.Sleep(4)
	time.Sleep(5) //nolint:all
	for ; ; time.Sleep(6) {
		clock.Sleep(7)
	}
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(8)
	})
	synctest.Wait(func() {
		time.Sleep(9)
	})
	/* a reason
	   of two lines */ pause(time.Sleep)
	var sleep = time.Sleep
}
`
	for file, want := range map[string][]int{"a_test.go": {4, 8, 9, 10, 17}, "a.go": nil} {
		found, err := Sleeps(file, []byte(code))
		if err != nil {
			t.Fatal(err)
		}
		var lines []int
		for _, f := range found {
			lines = append(lines, f.Line)
		}
		if !slices.Equal(lines, want) {
			t.Errorf("sleeps without a reason in %s: got lines %v, want %v", file, lines, want)
		}
	}
	if _, err := Sleeps("b_test.go", []byte("no Go")); err == nil {
		t.Error("a file with a syntax error: got no error, want one")
	}
}
