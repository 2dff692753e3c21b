// Module turn is the example of a TURN server. It is a module of its own, so that mapsync does not depend on pion/turn.
module mapsync/docs/examples/turn

go 1.26.8

require (
	github.com/cilium/ebpf v0.22.0
	github.com/pion/stun/v3 v3.1.7
	github.com/pion/turn/v4 v4.1.4
	golang.org/x/net v0.60.0
	golang.org/x/sync v0.24.0
	golang.org/x/sys v0.49.0
	mapsync v0.0.0
)

require (
	github.com/pion/dtls/v3 v3.1.5 // indirect
	github.com/pion/logging v0.2.4 // indirect
	github.com/pion/randutil v0.1.0 // indirect
	github.com/pion/transport/v4 v4.1.0 // indirect
	github.com/vishvananda/netlink v1.3.1 // indirect
	github.com/vishvananda/netns v0.0.5 // indirect
	github.com/wlynxg/anet v0.0.5 // indirect
	golang.org/x/crypto v0.57.0 // indirect
)

replace mapsync => ../../..
