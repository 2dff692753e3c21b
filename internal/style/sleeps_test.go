package style

import "testing"

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
	checkTests(t, Sleeps, code, []int{4, 8, 9, 10, 17})
}
