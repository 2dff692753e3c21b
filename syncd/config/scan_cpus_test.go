package config

import "testing"

func TestScanCPUs(t *testing.T) {
	for list, want := range map[string][]int{"0": {0}, "2-3,8": {2, 3, 8}, " 1, 5": {1, 5}, "1023": {1023}, "4-4": {4}} {
		got, err := parseCPUs(list)
		if err != nil || got.Count() != len(want) {
			t.Errorf("CPUs %q: got %v, error %v, want %v", list, got, err, want)
			continue
		}
		for _, cpu := range want {
			if !got.IsSet(cpu) {
				t.Errorf("CPUs %q: got none with number %d, want %v", list, cpu, want)
			}
		}
	}
	for _, list := range []string{"", "a", "-1", "3-1", "1024", "1,", "1-", "0-99999", "1 2"} {
		if got, err := parseCPUs(list); err == nil {
			t.Errorf("CPUs %q: got %v, want an error", list, got)
		}
	}
}

// TestAnyCPUByDefault: a configuration without scan-cpus has no set of CPUs.
func TestAnyCPUByDefault(t *testing.T) {
	c := Default()
	if set, err := c.ScanCPUSet(); set != nil || err != nil {
		t.Errorf("CPUs by default: got %v, error %v, want nil", set, err)
	}
	c.ScanCPUs = "1"
	if set, err := c.ScanCPUSet(); err != nil || !set.IsSet(1) || set.Count() != 1 {
		t.Errorf("CPUs of 1: got %v, error %v, want 1", set, err)
	}
}
