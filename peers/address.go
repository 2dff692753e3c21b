package peers

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// maxName is the maximum length of a node name in bytes. It equals the maximum length of a DNS name,
// because certificates contain node names.
const maxName = 253

// CheckNodeName returns an error if name is not a valid node name. Certificates contain a node name as
// a DNS name. Logs and metric labels contain it too. A valid name consists of dot-separated labels of
// letters, digits, '-' and '_', and has at most 253 bytes.
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

// checkDialable returns an error if addr is not a host:port that another node can dial. The host must
// be present and must not be a wildcard or multicast address. An IP address must not have a zone. The
// port must not be 0.
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
		return fmt.Errorf("address %q is a wildcard or multicast address and cannot be dialled", addr)
	}
	if ip.Zone() != "" {
		return fmt.Errorf("address %q has a zone, which is valid on this host only", addr)
	}
	return nil
}

// splitPort splits host:port. It returns an error if the port is not a number from 0 to 65535.
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

// hostOf returns the host of a host:port, or addr itself if it is not a host:port.
func hostOf(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	return host
}
