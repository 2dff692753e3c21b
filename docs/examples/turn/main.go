// Turn is a TURN server whose channels an XDP program relays. It is pion's server, unmodified, with
// state in pinned BPF maps. syncd replicates the maps to a second server, which takes over the address.
//
//	turn -listen 192.0.2.10:3478 -interface eth0 -secret-file /etc/turn/secret
//
// SIGUSR1 makes a server that was started with -standby rebuild the allocations in the maps. SIGTERM ends
// the server, not the offload: channels continue, and the next server rebuilds the allocations.
package main

import (
	"fmt"
	"os"

	"mapsync/docs/examples/turn/server"
)

func main() {
	if err := server.Main(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "turn:", err)
		os.Exit(1)
	}
}
