package daemon

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"mapsync/syncd/similar"
	"mapsync/syncd/table"
)

// Names are the names that the arguments of commands refer to.
type Names struct {
	Maps   []string            `json:"maps"`   // in the order of the settings
	Fields map[string][]string `json:"fields"` // by map; a map that has not appeared yet has none
	Peers  []string            `json:"peers"`  // nodes other than this one that are live, expected, or were peers
	Owners []string            `json:"owners"` // peers, and other nodes with records
}

// maxNamesInError is the maximum number of names that an error lists.
const maxNamesInError = 64

// Names returns the names that the arguments of commands refer to.
func (d *Daemon) Names() Names {
	n := Names{Maps: d.mapNames(), Fields: make(map[string][]string), Peers: d.peerNames(), Owners: d.ownerNames()}
	for _, m := range d.replicas() {
		if _, s := m.current(); s != nil {
			n.Fields[m.name] = s.FieldNames()
		}
	}
	return n
}

// peerNames returns the nodes other than this one that are live, that are expected, or that were peers, sorted.
func (d *Daemon) peerNames() []string {
	names, _ := d.config.Expected()
	names = slices.Clone(names)
	for _, c := range d.replicator.Contacts() {
		names = append(names, c.Node)
	}
	for node := range d.contacts.snapshot() {
		names = append(names, node)
	}
	return d.otherNodes(names)
}

// ownerNames returns the peers, and the other nodes whose records or tombstones this node has, sorted.
func (d *Daemon) ownerNames() []string {
	names := d.peerNames()
	for _, m := range d.replicas() {
		if t, _ := m.current(); t != nil {
			t.View(func(tx *table.Tx) { tx.RecordOwners(func(o table.Owner) { names = append(names, o.Node) }) })
		}
	}
	return d.otherNodes(names)
}

// otherNodes sorts names and removes duplicates and this node. The result is not nil.
func (d *Daemon) otherNodes(names []string) []string {
	slices.Sort(names)
	names = slices.DeleteFunc(slices.Compact(names), func(name string) bool { return name == d.self.Node })
	return append([]string{}, names...)
}

// unknownName returns the text of an error about an unknown name: the names that exist follow the text are.
func unknownName(kind, name, are string, names []string) string {
	list := strings.Join(names[:min(len(names), maxNamesInError)], ", ")
	switch more := len(names) - maxNamesInError; {
	case len(names) == 0:
		list = "none"
	case more > 0:
		list += fmt.Sprintf(" and %d others", more)
	}
	return fmt.Sprintf("no such %s %q: %s: %s%s", kind, name, are, list, similar.Hint(name, names))
}

// UnknownMap returns the text of an error about a map that is not among the replicated ones.
func UnknownMap(name string, names []string) string {
	return unknownName("map", name, "these maps are replicated here", names)
}

// Names returns the names that the arguments of commands refer to.
func (c *Client) Names(ctx context.Context) (Names, error) {
	return ask[Names](ctx, c, http.MethodGet, "/names")
}
