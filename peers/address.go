package peers

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// maxName is the longest node name: the longest DNS name, for a name must fit
// into a certificate.
const maxName = 253

// CheckNodeName returns an error if name cannot be a node's name. A name stands
// in certificates as a DNS name, in logs and in metric labels, so it is made of
// dot-separated labels of letters, digits, '-' and '_', at most 253 bytes.
func CheckNodeName(name string) error {
	if name == "" {
		return errors.New("node name is empty")
	}
	if len(name) > maxName {
		return fmt.Errorf("node name has %d bytes, at most %d are allowed", len(name), maxName)
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || label[0] == '-' {
			return fmt.Errorf("node name %q has a label that is empty or starts with '-'", name)
		}
		for _, r := range label {
			if !nameRune(r) {
				return fmt.Errorf("node name %q has characters other than letters, digits, '-', '_' and '.'", name)
			}
		}
	}
	return nil
}

func nameRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_'
}

// checkDialable returns an error if addr is no host:port that another node
// could dial: the host is missing or a wildcard, or the port is zero.
func checkDialable(addr string) error {
	host, port, err := splitPort(addr)
	if err != nil {
		return err
	}
	if port == 0 {
		return fmt.Errorf("address %q has port 0", addr)
	}
	if host == "" {
		return fmt.Errorf("address %q has no host", addr)
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		if nameErr := CheckNodeName(host); nameErr != nil {
			return fmt.Errorf("address %q has neither an IP address nor a host name", addr)
		}
		return nil
	}
	if ip.IsUnspecified() || ip.IsMulticast() {
		return fmt.Errorf("address %q is a wildcard or multicast address, which nobody can dial", addr)
	}
	if ip.Zone() != "" {
		return fmt.Errorf("address %q has a zone, which means nothing on another host", addr)
	}
	return nil
}

// splitPort splits host:port and checks that the port is a number.
func splitPort(addr string) (host string, port uint16, err error) {
	host, service, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, fmt.Errorf("parse address %q: want host:port: %w", addr, err)
	}
	number, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("parse address %q: port is not a number from 0 to 65535", addr)
	}
	return host, uint16(number), nil
}

// hostOf returns the host of a host:port, or all of addr if it is none.
func hostOf(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	return host
}

// CheckExposure returns an error if addr (host:port) can be reached from other
// hosts although what is served there is not secured (by TLS, or by a gossip
// key), unless insecure allows just that. Loopback addresses and "localhost"
// are always allowed; any other host name is not, for what it means can change.
func CheckExposure(addr string, secured, insecure bool) error {
	host, _, err := splitPort(addr)
	if err != nil {
		return err
	}
	if secured || insecure || host == "localhost" {
		return nil
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.Unmap().IsLoopback() {
		return nil
	}
	return fmt.Errorf("refuse to use %s without encryption: whoever reaches it could read and change the replicated maps; "+
		"configure TLS and a gossip key, use a loopback address, or allow it with --insecure", addr)
}
