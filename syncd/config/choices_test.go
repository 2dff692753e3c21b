package config

import (
	"fmt"
	"testing"

	"github.com/spf13/pflag"
)

// The settings accept each of their choices, and no other value.
func TestChoicesAreUsable(t *testing.T) {
	var c Config
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	c.Bind(flags)
	count := 0
	flags.VisitAll(func(f *pflag.Flag) {
		values, perMap := Choices(f.Name)
		if values == nil {
			return
		}
		count++
		for _, value := range append([]string{"tape"}, values...) {
			text := fmt.Sprintf("map: [ct]\nnode-name: lb1\n%s: %s", f.Name, value)
			if perMap {
				text = fmt.Sprintf("map: [ct]\nnode-name: lb1\n%s: [ct=%s]", f.Name, value)
			}
			c := Default()
			if err := c.Parse([]byte(text)); err != nil {
				t.Fatal(err)
			}
			if err := c.Validate(); (err == nil) != (value != "tape") {
				t.Errorf("%s: %s: got error %v, want one only for tape", f.Name, value, err)
			}
		}
	})
	if count != 9 {
		t.Errorf("settings with choices: got %d, want 9", count)
	}
}
