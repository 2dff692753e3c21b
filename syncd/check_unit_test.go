package main

import (
	"strings"
	"testing"
)

// TestUnitCommandKeepsArguments: the command line in the unit has the settings, without the flags about the unit, and no characters
// that systemd replaces. deploy.TestUnitReplicatesTypes runs such a unit.
func TestUnitCommandKeepsArguments(t *testing.T) {
	cmd := newCheck()
	err := cmd.ParseFlags([]string{
		"--as-unit", "--unit=other.service", "--config=/etc/a b.yaml", "--map=a=/x/50%", "--map=b=/x/$HOME", `--node-name="lb1"\`, "--expected-peers=lb2,lb3", "--json",
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := unitCommand(cmd)
	if err != nil {
		t.Fatal(err)
	}
	_, got, _ = strings.Cut(got, `" `) // after the program
	const want = `check "--config=/etc/a b.yaml" "--expected-peers=lb2,lb3" "--json=true" "--map=a=/x/50%%" "--map=b=/x/$$HOME" "--node-name=\"lb1\"\\"`
	if got != want {
		t.Errorf("command of the unit: got %s, want %s", got, want)
	}
}
