package suggest

import (
	"slices"
	"strings"

	"mapsync/syncd/schema"
)

// words splits the name of a field: last_seen and lastSeen have the words last and seen.
func words(name string) []string {
	var list []string
	start := 0
	for i := range len(name) + 1 {
		upper := i < len(name) && i > start && 'A' <= name[i] && name[i] <= 'Z' && (name[i-1] < 'A' || name[i-1] > 'Z')
		if i == len(name) || name[i] == '_' || upper {
			if i > start {
				list = append(list, strings.ToLower(name[start:i]))
			}
			start = i
			if i < len(name) && name[i] == '_' {
				start = i + 1
			}
		}
	}
	return list
}

// Words in the names of times. Those of usedWords are times after last. Durations, such as timeout and ttl, are not among them. A name
// with one of otherWords is not that of a time.
var (
	timeWords = []string{
		"ts", "tstamp", "timestamp", "stamp", "seen", "lastseen", "lastused", "atime", "mtime", "ctime", "utime", "lts", "lifetime", "expire",
		"expires", "expiry", "expiration", "deadline", "created", "ktime", "jiffies", "mono", "updated", "accessed", "touched", "birth", "born",
		"heartbeat",
	}
	vagueTimeWords = []string{"time", "start", "end", "when", "since", "begin", "at", "opened", "closed", "started", "ended"}
	usedWords      = []string{"used", "use", "report", "access", "active", "activity", "update", "hit", "packet", "pkt", "refresh", "change", "rx", "tx"}
	otherWords     = []string{"bytes", "packets", "pkts", "count", "cnt", "num", "id", "idx", "index", "len", "size", "port", "seq", "seqno", "state", "flags", "rate", "timeout", "mask"}
	interfaceWords = []string{"ifindex", "ifidx", "oif", "iif", "ifi", "if", "intf", "iface", "netdev", "ifid", "oifindex", "iifindex", "devindex", "interface"}
)

func hasWord(name string, list ...[]string) bool {
	return slices.ContainsFunc(words(name), func(w string) bool {
		return slices.ContainsFunc(list, func(of []string) bool { return slices.Contains(of, w) })
	})
}

func isLast(name string) bool {
	return slices.ContainsFunc(words(name), func(w string) bool { return strings.HasPrefix(w, "last") })
}

// namesTime reports whether a field of this name may be a time.
func namesTime(name string) bool {
	return clearlyTime(name) || hasWord(name, vagueTimeWords) && !hasWord(name, otherWords)
}

// clearlyTime reports whether the name of a field alone shows a time.
func clearlyTime(name string) bool {
	named := hasWord(name, timeWords) || isLast(name) && hasWord(name, usedWords) || strings.HasSuffix(strings.ToLower(name), "timestamp")
	return named && !hasWord(name, otherWords)
}

// changesWithUse reports whether the use of an entry changes a time of this name.
func changesWithUse(name string) bool {
	return isLast(name) || hasWord(name, []string{"seen", "atime", "lts", "accessed", "touched", "updated", "heartbeat", "ts", "time"})
}

// namesInterface reports whether a field of this name may be the index of an interface.
func namesInterface(name string) bool {
	return hasWord(name, interfaceWords) || strings.HasSuffix(strings.ToLower(name), "ifindex")
}

func namesNamespace(name string) bool {
	return slices.ContainsFunc(words(name), func(w string) bool { return strings.HasPrefix(w, "netns") })
}

// byName returns the roles that the name of a field suggests.
func (c *candidate) byName() (roles, reason string) {
	f := c.path.Last()
	switch {
	case namesInterface(f.Name):
		return "ifindex", "the name is that of an interface's index"
	case namesNamespace(f.Name) && !c.key:
		return "local", "the name is that of a network namespace"
	case !clearlyTime(f.Name):
		return "", ""
	}
	t := nanosecondTests[0]
	if f.Size < 8 {
		t = coarseTests[0]
	}
	return t.roles(f), "the name is that of a time"
}

// Words in the names of addresses.
var (
	addressWords = []string{
		"addr", "address", "ip", "ipv4", "ipv6", "ip4", "ip6", "saddr", "daddr", "src", "dst", "vip", "xip", "rip", "dip", "sip", "nexthop", "gateway", "gw",
	}
	portWords = []string{"port", "sport", "dport", "xport", "port16", "lport", "rport", "vport"}
)

// display returns the role with which an address or a port is printed as such.
func (c *candidate) display() (x Suggestion, ok bool) {
	f := c.path.Last()
	x = Suggestion{Field: c.name, Display: true, Reason: "the name and the size are those of an address"}
	unsigned := f.Kind == schema.KindUint && f.Roles&^schema.RoleBE == 0
	bare := f.Roles&^schema.RoleBE == 0
	switch address := addressName(f.Name); {
	case unsigned && f.Size == 2 && f.BitSize == 0 && hasWord(f.Name, portWords):
		x.Roles, x.Reason = "port", "the name and the size are those of a port"
	case address && bare && f.Bytes() == 16 && f.Kind != schema.KindEnum:
		x.Roles = "ipv6"
	case address && unsigned && f.Size == 4 && f.BitSize == 0:
		x.Roles = "ipv4"
	case bare && f.Kind == schema.KindBytes && f.Size == 6:
		x.Roles = "mac"
	default:
		return x, false
	}
	return x, true
}

// addressName reports whether a field of this name may be an address.
func addressName(name string) bool {
	lower := strings.ToLower(name)
	return hasWord(name, addressWords) || strings.HasSuffix(lower, "addr") || strings.HasSuffix(lower, "_ip")
}
