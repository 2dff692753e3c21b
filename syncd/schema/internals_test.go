package schema

// Internals that the external tests of this package use.

type CodecLinks = codecLinks

var (
	CodecTimes = codecTimes
	DrawSchema = drawSchema
	DrawStruct = drawStruct
	LegalName  = legalName
)

const (
	Forever = forever
	Layouts = layouts
)

// Mark is Message.mark.
func (m *Message) Mark(mask []byte, base int, want func(*Field) bool) { m.mark(mask, base, want) }
