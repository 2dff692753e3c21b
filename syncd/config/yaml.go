package config

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Bounds of a settings file. The settings of MaxMaps maps are below them. The lexer needs up to 300 bytes of memory for
// each byte of a file, and the time of the parser grows with the square of the depth and of the keys of a mapping.
const (
	maxFileSize = 256 << 10 // bytes
	maxTokens   = 64 << 10
	maxDepth    = 16   // of nested lists and mappings; settings need 5
	maxKeys     = 1024 // of a mapping
)

// An error has an excerpt of a file whose lines are at most maxExcerptLine bytes long: its time grows with the square
// of that length. The text of an error has at most maxErrorText bytes.
const maxExcerptLine, maxErrorText = 1000, 4096

// Parse sets c from a YAML document. Unknown keys, duplicate keys and refused tokens are errors, and so is a document
// beyond the bounds. The error of a small document therefore needs little memory.
func (c *Config) Parse(data []byte) error { return parseYAML(data, c) }

// parseYAML is Parse for any settings.
func parseYAML(data []byte, into any) (err error) {
	// The library panics on some invalid documents.
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("parse YAML: the document cannot be read (%v)", p)
		}
	}()
	if len(data) > maxFileSize {
		return fmt.Errorf("file is larger than %d bytes: remove comments, and name inner maps by a range, REF[FIRST-LAST]", maxFileSize)
	}
	tokens := lexer.Tokenize(string(data))
	if err := checkTokens(tokens); err != nil {
		return fmt.Errorf("parse YAML: %w", err)
	}
	file, err := parser.Parse(tokens, 0)
	if err != nil {
		return parseError(data, err)
	}
	if len(file.Docs) == 0 || setsNothing(file.Docs[0].Body) {
		return nil
	}
	if err := yaml.NodeToValue(file.Docs[0].Body, into, yaml.Strict()); err != nil {
		return parseError(data, err)
	}
	return nil
}

// parseError returns an error of the library about data with a bounded text.
func parseError(data []byte, err error) error {
	long := false
	for line := range bytes.Lines(data) {
		long = long || len(line) > maxExcerptLine
	}
	var located yaml.Error
	text := ""
	if long && errors.As(err, &located) {
		text = located.FormatError(false, false)
	} else {
		text = err.Error()
	}
	if len(text) > maxErrorText {
		text = text[:maxErrorText] + "..."
	}
	return errors.New("parse YAML: " + text)
}

// setsNothing reports whether a document has no settings. The decoder would set every field to zero for it.
func setsNothing(body ast.Node) bool {
	return body == nil || body.Type() == ast.NullType || body.Type() == ast.CommentType
}

// refusedTokens are the parts of YAML that a settings file must not have, each with the remedy. An alias may stand for
// any number of values. Tags nest without indentation.
var refusedTokens = map[token.Type]string{
	token.AliasType:     "an alias: write the value itself, and a text that begins with * in quotes",
	token.AnchorType:    "an anchor: remove it, and write a text that begins with & in quotes",
	token.MergeKeyType:  "a merge key: write the keys of the other mapping here",
	token.TagType:       "a tag: remove it, and write a text that begins with ! in quotes",
	token.DirectiveType: "a directive: remove it, and write a text that begins with % in quotes",
}

// checkTokens returns an error if a document has refused tokens, is beyond the bounds, or is followed by another
// document, which the decoder would ignore. The parser is recursive, so that this check must precede it.
func checkTokens(tokens token.Tokens) error {
	var open nesting
	var begun, ended bool
	for i, t := range tokens {
		line := t.Position.Line
		if what, refused := refusedTokens[t.Type]; refused {
			return fmt.Errorf("line %d has %s", line, what)
		}
		switch {
		case i >= maxTokens:
			return fmt.Errorf("line %d: the file has more than %d words and signs: name inner maps by a range, REF[FIRST-LAST]", line, maxTokens)
		case t.Type == token.CommentType:
		case ended, begun && t.Type == token.DocumentHeaderType:
			return fmt.Errorf("line %d begins a second document: write one", line)
		default:
			begun, ended = true, t.Type == token.DocumentEndType
		}
		keys := open.add(tokens, i)
		if len(open) > maxDepth {
			return fmt.Errorf("line %d: lists and mappings are nested deeper than %d levels: remove brackets or indentation", line, maxDepth)
		}
		if keys > maxKeys {
			return fmt.Errorf("line %d: a mapping has more than %d keys: keep those that are settings", line, maxKeys)
		}
	}
	return nil
}

// nesting lists the lists and mappings around a token, the outermost first. The parser nests at most twice as deep,
// because the items of a list may have the column of its key.
type nesting []level

type level struct {
	column int // of its keys or items; 0: a bracket
	keys   int
}

// add updates the nesting with token i. It returns the number of keys so far of the mapping to which the token belongs.
func (n *nesting) add(tokens token.Tokens, i int) (keys int) {
	t := tokens[i]
	switch t.Type {
	case token.SequenceStartType, token.MappingStartType:
		*n = append(*n, level{})
	case token.CollectEntryType:
		n.closeColumns(1)
	case token.SequenceEndType, token.MappingEndType:
		n.closeColumns(1)
		*n = (*n)[:max(len(*n)-1, 0)]
	case token.SequenceEntryType:
		n.open(t.Position.Column)
	case token.MappingKeyType:
		return n.openKey(t.Position.Column)
	case token.MappingValueType:
		return n.openKey(tokens[max(i-1, 0)].Position.Column)
	}
	return 0
}

// open begins a list or mapping with this column, or continues it. It ends those that are further to the right.
func (n *nesting) open(column int) {
	n.closeColumns(column + 1)
	if last := len(*n) - 1; last < 0 || (*n)[last].column < column {
		*n = append(*n, level{column: column})
	}
}

func (n *nesting) openKey(column int) (keys int) {
	n.open(column)
	l := &(*n)[len(*n)-1]
	l.keys++
	return l.keys
}

// closeColumns ends the lists and mappings with at least this column, up to the innermost bracket.
func (n *nesting) closeColumns(column int) {
	for last := len(*n) - 1; last >= 0 && (*n)[last].column >= column; last-- {
		*n = (*n)[:last]
	}
}
