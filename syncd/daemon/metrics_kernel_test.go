package daemon_test

import (
	"strconv"
	"testing"

	"mapsync/syncd/kmap"
)

// TestMetricHasTheCreationOfTheBuffer: the daemon counts the call that creates its ring.
func TestMetricHasTheCreationOfTheBuffer(t *testing.T) {
	before := kmap.Calls()[kmap.CallCreateBuffer].Count
	n := newNode(t, 1)
	n.config.Join = nil
	n.start()
	const name, labels = "mapsync_kernel_call_seconds_count", `{call="create_buffer"}`
	value := n.sample(name, labels)
	if count, err := strconv.ParseUint(value, 10, 64); err != nil || count <= before {
		t.Errorf("%s%s: got %s, want more than %d", name, labels, value, before)
	}
}
