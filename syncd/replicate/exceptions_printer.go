package replicate

import (
	"encoding/hex"
	"slices"
	"strings"
	"sync"

	"mapsync/syncd/schema"
	"mapsync/syncd/schema/export"
)

// wirePrinter formats encoded keys as text.
//
// It exists because exceptions are stored in the encoding of the sender: a key that this node
// cannot hold has no form in its own layout. The zero value prints all keys in hex.
type wirePrinter struct {
	// printer formats a decoded key. It is nil if and only if decoder is nil.
	printer *export.Printer
	// decoder decodes keys of the sender; nil: keys are printed in hex.
	decoder *schema.Decoder
	// size is the size of a decoded key in bytes.
	size int
}

// newWirePrinter returns a printer of the keys of a sender with the given schema. It returns the
// zero value if no decoder can be made for the schema.
func newWirePrinter(sender *schema.Schema) wirePrinter {
	// The names of the peer's interfaces need not exist on this node.
	links := &interfaceNames{}
	// The sender's schema describes both sides, so every key of the sender fits.
	d, err := schema.NewDecoder(sender, sender, links)
	if err != nil {
		return wirePrinter{}
	}
	return wirePrinter{printer: export.NewPrinter(sender, links), decoder: d, size: sender.Key.Size}
}

// key returns a key as text, or in hex if it cannot be decoded. It is safe for concurrent use. The
// hex form is truncated to 64 bytes of the key.
func (p *wirePrinter) key(encoded []byte) string {
	if p.decoder != nil {
		if key := make([]byte, p.size); p.decoder.Key(key, encoded) == nil {
			return string(p.printer.AppendKey(nil, key))
		}
	}
	return "key " + hex.EncodeToString(encoded[:min(len(encoded), 64)])
}

// interfaceNames assigns an index to each interface name that it is asked for. A key can then be
// printed although its interface does not exist on this node.
type interfaceNames struct {
	// mu guards names.
	mu sync.Mutex
	// names has at most maxInterfaceNames names. The index of a name is its place plus 1.
	names []string
}

// maxInterfaceNames bounds the names in an interfaceNames.
const maxInterfaceNames = 4096

// Name returns the name with an index. It is safe for concurrent use.
func (l *interfaceNames) Name(index uint32) (string, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if index == 0 || int(index) > len(l.names) {
		return "", false
	}
	return l.names[index-1], true
}

// Reference returns l: meanings are names, too.
func (l *interfaceNames) Reference(string) schema.Links { return l }

// Index returns the index of a name, which it assigns if the name is new. It returns false if there
// are maxInterfaceNames names. It is safe for concurrent use. It keeps a copy of the name. Indexes
// have no meaning outside of l.
func (l *interfaceNames) Index(name string) (uint32, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.names, name); i >= 0 {
		return uint32(i + 1), true
	}
	if len(l.names) == maxInterfaceNames {
		return 0, false
	}
	l.names = append(l.names, strings.Clone(name))
	return uint32(len(l.names)), true
}
