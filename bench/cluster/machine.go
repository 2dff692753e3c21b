package cluster

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
)

// machineAddress returns the address of node i on the link of the two machines.
func machineAddress(i int) string { return fmt.Sprintf("10.30.0.%d", i+1) }

// runMachine runs the node of the second machine.
func runMachine(s settings) error {
	if err := linkUp(s.Number); err != nil {
		return err
	}
	return runNode(s)
}

// linkUp gives the link between the machines an address.
func linkUp(i uint32) error {
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	for _, l := range links {
		if l.Attrs().Flags&net.FlagLoopback != 0 || l.Type() != "device" {
			continue
		}
		address, err := netlink.ParseAddr(machineAddress(int(i)) + "/24")
		if err == nil {
			err = errors.Join(netlink.AddrAdd(l, address), netlink.LinkSetUp(l))
		}
		return err
	}
	return errors.New("the machine has no link")
}
