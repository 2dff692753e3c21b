package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"mapsync/syncd/kmap"
	"mapsync/syncd/problem"
	"mapsync/syncd/schema"
	"mapsync/syncd/schema/suggest"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

const (
	// sampledEntries is the number of entries of this node from which roles are suggested, and passedRecords the number of records
	// among which they are searched.
	sampledEntries = 2000
	passedRecords  = 50000
	// sampledAtOnce is the number of records that are read while the table is locked.
	sampledAtOnce = 256
	// rolesInterval is the time between two samples of a map, and sufficientInterval that after a sample with enough entries.
	rolesInterval, sufficientInterval = 30 * time.Second, 10 * time.Minute
	// sufficientEntries is the number of entries after which another sample hardly finds more.
	sufficientEntries = 100
	// maxProcesses is the number of processes whose network namespaces are read.
	maxProcesses = 4096
)

// fieldRoles are the roles that fields of a map seem to need, according to the entries of this node.
type fieldRoles struct {
	list []suggest.Suggestion
	// at is the time of the sample, entries are their number, and table, schema and head are what it has read.
	at      time.Time
	entries int
	table   *table.Table
	schema  *schema.Schema
	head    uint64
}

// ThisHost returns what the values of fields are compared with. It observes the clocks of this host for some milliseconds.
func ThisHost() (*suggest.Host, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	indexes := make(map[uint64]bool, len(interfaces))
	for _, i := range interfaces {
		indexes[uint64(i.Index)] = true
	}
	jiffies, err := kmap.MeasureJiffies()
	if err != nil {
		jiffies = nil // no field can have the roles of jiffies here
	}
	return hostWith(jiffies, indexes), nil
}

func hostWith(jiffies *kmap.Jiffies, interfaces map[uint64]bool) *suggest.Host {
	h := &suggest.Host{Ktime: monotonic(), Boottime: read(unix.CLOCK_BOOTTIME), Interfaces: interfaces, Namespaces: sync.OnceValue(func() map[uint64]bool { return networkNamespaces("/proc") })}
	if jiffies != nil {
		h.Tick = time.Duration(jiffies.Tick)
		h.Jiffies = jiffies.Count + uint64((h.Ktime-jiffies.At)/jiffies.Tick)
	}
	return h
}

// networkNamespaces returns the inode numbers of the network namespaces of processes, as far as this process may read them.
func networkNamespaces(proc string) map[uint64]bool {
	found := make(map[uint64]bool)
	links, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "ns", "net"))
	for _, link := range links[:min(len(links), maxProcesses)] {
		var inode uint64
		if target, err := os.Readlink(link); err == nil {
			if _, err := fmt.Sscanf(target, "net:[%d]", &inode); err == nil {
				found[inode] = true
			}
		}
	}
	return found
}

// host returns what the values of fields are compared with.
func (d *Daemon) host() *suggest.Host { return hostWith(d.clock.jiffies, d.links.indexes()) }

// sampleFields samples each map that has changed since its last sample.
func (d *Daemon) sampleFields(now time.Time) {
	host := sync.OnceValue(d.host)
	for _, m := range d.replicas() {
		m.sampleFields(now, rolesInterval, host)
	}
}

// sampleFields updates the suggestions for the fields of the map, unless they are younger than least or nothing has changed.
func (m *replica) sampleFields(now time.Time, least time.Duration, host func() *suggest.Host) {
	t, s := m.current()
	if t == nil || s == nil {
		return
	}
	head := t.Stats().Head
	m.mu.Lock()
	last := m.roles
	m.mu.Unlock()
	if last.entries >= sufficientEntries && least == rolesInterval {
		least = sufficientInterval
	}
	same := last.table == t && last.schema == s
	if same && (last.head == head || now.Sub(last.at) < least) {
		return
	}
	sample := suggest.NewSample(s, host())
	m.addOwnEntries(t, sample)
	m.mu.Lock()
	m.roles = fieldRoles{list: warnings(sample), at: now, entries: sample.Entries(), table: t, schema: s, head: head}
	m.mu.Unlock()
}

// addOwnEntries adds entries that this node's programs have written.
func (m *replica) addOwnEntries(t *table.Table, sample *suggest.Sample) {
	cursor := t.NewCursor(0)
	defer cursor.Close()
	for passed, more := 0, true; more && passed < passedRecords && sample.Entries() < sampledEntries; passed += sampledAtOnce {
		t.View(func(tx *table.Tx) {
			var rec table.Record
			for range sampledAtOnce {
				if more = tx.Next(cursor, &rec); !more {
					return
				}
				if !rec.Delete && tx.Owner(rec.Owner).Node == m.daemon.self.Node {
					sample.Add(rec.Key, rec.Value)
				}
			}
		})
	}
}

// warnings returns the suggestions of a sample, without those for display.
func warnings(sample *suggest.Sample) (list []suggest.Suggestion) {
	for _, x := range sample.Suggestions() {
		if !x.Display {
			list = append(list, x)
		}
	}
	return list
}

// missingRoles returns why the map is not ready with strict-roles, or "". The lock is held.
func (m *replica) missingRoles() string {
	if !m.daemon.config.StrictRoles {
		return ""
	}
	var fields []string
	for _, x := range m.roles.list {
		if !x.Weak {
			fields = append(fields, x.Field)
		}
	}
	if len(fields) == 0 {
		return ""
	}
	return "fields without the right role (strict-roles): " + strings.Join(fields, ", ")
}

// FieldRole is a role that a field seems to need.
type FieldRole struct {
	suggest.Suggestion
	// Setting is the value of the setting field.
	Setting string `json:"setting"`
}

// fieldRolesStatus returns the roles that fields seem to need. The lock is held.
func (m *replica) fieldRolesStatus() (list []FieldRole) {
	if m.kernel == nil {
		return nil
	}
	for _, x := range m.roles.list {
		list = append(list, roleOf(m.name, x))
	}
	return list
}

func roleOf(name string, x suggest.Suggestion) FieldRole {
	return FieldRole{x, name + ":" + x.Field + "=" + x.Roles}
}

// text describes the field.
func (r *FieldRole) text() string {
	if r.Wrong {
		return "the field " + r.Field + " has another content than its role: " + r.Reason
	}
	return fmt.Sprintf("the field %s seems to need the role %s, because %s", r.Field, r.Roles, r.Reason)
}

// consequence states what happens without the role.
const consequence = "it arrives at peers unchanged, where it has another meaning"

// fieldRoles adds the problems of fields without the right role.
func (f *finder) fieldRoles(m *MapStatus) {
	for i := range m.FieldRoles {
		r := &m.FieldRoles[i]
		p := problem.Problem{
			ID: "field-role", Map: m.Name, Subject: r.Field, Text: r.text(),
			Remedy: fmt.Sprintf("on all nodes: field: ['%s'], or ['%s:%s=none'] if the content means the same on all nodes; syncd schema suggest shows all fields",
				r.Setting, m.Name, r.Field),
		}
		if r.Weak {
			p.Severity = problem.Notice
		}
		f.add(p)
	}
}

// checkRoles reports fields of a kernel map without the right role.
func (k *checker) checkRoles(name string, raw *ebpf.Map, s *schema.Schema) {
	host, err := ThisHost()
	if err != nil {
		k.warn("field", "%s: not checked whether fields need roles: %v", name, err)
		return
	}
	sample := suggest.NewSample(s, host)
	if err := AddKernelEntries(raw, sample); err != nil {
		k.warn("field", "%s: not checked whether fields need roles: %v", name, err)
		return
	}
	for _, x := range warnings(sample) {
		r := roleOf(name, x)
		text := fmt.Errorf("%s: %s: %s; set %s, or %s:%s=none if it means the same on all nodes", name, r.text(), consequence, r.Setting, name, r.Field)
		if x.Weak {
			k.warn("field", "%v", text)
		} else {
			k.fail("field", text)
		}
	}
}

// AddKernelEntries adds entries of a kernel map to a sample. Those of peers have the values of their nodes: the map should have been
// written by this node's programs only.
func AddKernelEntries(raw *ebpf.Map, sample *suggest.Sample) error {
	var key, value []byte
	var perCPU [][]byte
	entries := raw.Iterate()
	for sample.Entries() < sampledEntries {
		if raw.Type() == ebpf.PerCPUHash || raw.Type() == ebpf.LRUCPUHash || raw.Type() == ebpf.PerCPUArray {
			if !entries.Next(&key, &perCPU) {
				break
			}
			value = value[:0]
			for _, one := range perCPU {
				value = append(append(value, one...), make([]byte, (8-len(one)%8)%8)...)
			}
		} else if !entries.Next(&key, &value) {
			break
		}
		sample.Add(key, value)
	}
	if err := entries.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read entries: %w", err)
	}
	return nil
}
