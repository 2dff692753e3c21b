package daemon

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"time"

	"mapsync/syncd/schema"
	"mapsync/syncd/schema/export"
	"mapsync/syncd/table"
)

// appendJSON appends an entry as the JSON of an Entry and a line feed, with the bytes of [encoding/json].
func (l *lister) appendJSON(dst []byte, e *listEntry, t *schema.Times) []byte {
	e = l.inForm(e)
	dst = l.appendKey(append(dst, `{"key":`...), e.key)
	if e.value != nil {
		dst = l.appendValue(append(dst, `,"value":`...), e.key, e.value, t)
	} else {
		dst = append(dst, `,"deleted":true`...)
	}
	if e.expired {
		dst = append(dst, `,"expired":true`...)
	}
	if e.owner.Node != "" {
		dst = appendString(append(dst, `,"owner":`...), e.owner.Node)
	}
	if e.owner.Incarnation != 0 {
		dst = append(strconv.AppendUint(append(dst, `,"incarnation":"`...), e.owner.Incarnation, 10), '"')
	}
	if at := changedAt(e.version); !at.IsZero() {
		dst = append(at.AppendFormat(append(dst, `,"changed":"`...), time.RFC3339Nano), '"')
	}
	dst = append(strconv.AppendUint(append(dst, `,"version":"`...), uint64(e.version), 10), '"')
	if e.pending {
		dst = append(dst, `,"pending":true`...)
	}
	return append(dst, "}\n"...)
}

// inForm returns an entry with the bytes that the form shows: in FormRaw those of the kernel map, as far as its meanings have ids there.
func (l *lister) inForm(e *listEntry) *listEntry {
	tr := translationOf(l.t)
	if l.form != FormRaw || tr == nil {
		return e
	}
	raw := *e
	raw.key, raw.value = bytes.Clone(e.key), bytes.Clone(e.value)
	tr.ToKernel(raw.key, raw.value)
	return &raw
}

// appendText appends an entry as a line for people.
func (l *lister) appendText(dst []byte, e *listEntry, t *schema.Times) []byte {
	e = l.inForm(e)
	dst = append(l.appendPlain(dst, e.key, l.printer.AppendKey), ' ')
	switch {
	case e.expired:
		dst = append(dst, "expired"...)
	case e.value == nil:
		dst = append(dst, "deleted"...)
	default:
		dst = l.appendPlain(dst, e.value, func(dst, value []byte) []byte { return l.printer.AppendValue(dst, e.key, value, t) })
	}
	dst = append(append(dst, " owner="...), e.owner.Node...)
	dst = append(dst, " changed="...)
	if at := changedAt(e.version); at.IsZero() {
		dst = append(dst, "unknown"...) // older than syncd
	} else {
		dst = at.AppendFormat(dst, time.RFC3339Nano)
	}
	if e.pending {
		dst = append(dst, " pending"...)
	}
	return append(dst, '\n')
}

// appendPlain appends a key or a value without quotes, in hex or as text writes it.
func (l *lister) appendPlain(dst, b []byte, text func(dst, b []byte) []byte) []byte {
	if l.form == FormRaw {
		return hex.AppendEncode(dst, b)
	}
	return text(dst, b)
}

// appendKey appends a key as JSON, in the form of the lister.
func (l *lister) appendKey(dst, key []byte) []byte {
	switch l.form {
	case FormRaw:
		return append(hex.AppendEncode(append(dst, '"'), key), '"')
	case FormText:
		return appendString(dst, string(l.printer.AppendKey(nil, key)))
	}
	return l.printer.AppendJSONKey(dst, key)
}

// appendValue appends a value as JSON, in the form of the lister.
func (l *lister) appendValue(dst, key, value []byte, t *schema.Times) []byte {
	switch l.form {
	case FormRaw:
		return append(hex.AppendEncode(append(dst, '"'), value), '"')
	case FormText:
		return appendString(dst, string(l.printer.AppendValue(nil, key, value, t)))
	}
	return l.printer.AppendJSONValue(dst, key, value, t)
}

// appendString appends s as a JSON string, as encoding/json does.
func appendString(dst []byte, s string) []byte {
	if export.Plain(s) {
		return append(append(append(dst, '"'), s...), '"')
	}
	b, err := json.Marshal(s)
	if err != nil {
		return append(dst, `""`...) // unreachable for a string
	}
	return append(dst, b...)
}

// changedAt returns the time of a version. It is zero for an entry that was found in a kernel map: its time is unknown.
func changedAt(v table.Version) time.Time {
	original := table.OriginalVersion(v)
	if original == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(original))
}
