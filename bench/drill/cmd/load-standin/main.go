// Command load-standin takes the place of tcpkali, netperf and netserver in tests on machines without them: the name of its
// file selects the program. It understands the arguments that the drill gives, and makes connections and exchanges of the
// same kind. With cgo it is linked with shared libraries, as those programs are.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	programs := map[string]func() error{"tcpkali": tcpkali, "netperf": netperf, "netserver": netserver}
	name := filepath.Base(os.Args[0])
	run := programs[name]
	if run == nil {
		fmt.Fprintln(os.Stderr, "load-standin: the name of this file must be tcpkali, netperf or netserver, not", name)
		os.Exit(2)
	}
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}
