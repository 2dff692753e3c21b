// Package handbook parses the pages of docs/ for the tests that compare them with the code.
package handbook

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// Page is a Markdown page, split at its headings.
type Page struct {
	// Sections are in page order. The first section has no title and contains the text before the
	// first heading.
	Sections []Section
}

// Section is a heading with the content up to the next heading of any level.
type Section struct {
	// Title is the heading's text, and Level its number of hashes.
	Title string
	Level int
	// Prose is the running text with lists and tables. Code contains the lines of code blocks without
	// their indentation. Indented contains those of them that are in no fenced block.
	Prose    string
	Code     []string
	Indented []string
	// Blocks are the fenced code blocks.
	Blocks []Block
}

// Block is a fenced code block.
type Block struct {
	// Language is the first word after the opening fence, and Attributes are the words after it. Web
	// pages show neither.
	Language   string
	Attributes []string
	// Line is the number of the opening fence's line in the file, from 1.
	Line int
	// Text contains the lines of the block, each with its line end.
	Text string
}

// Read reads and parses a page. It returns an error only if it cannot read the file.
func Read(path string) (*Page, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read page: %w", err)
	}
	return parse(string(data)), nil
}

func parse(text string) *Page {
	p := &Page{Sections: make([]Section, 1)}
	fenced, n := false, 0
	for line := range strings.Lines(text) {
		n++
		s := &p.Sections[len(p.Sections)-1]
		line = strings.TrimRight(line, "\n")
		hashes := len(line) - len(strings.TrimLeft(line, "#"))
		info, fence := strings.CutPrefix(line, "```")
		switch code, indented := strings.CutPrefix(line, "    "); {
		case fence:
			if fenced = !fenced; fenced {
				s.Blocks = append(s.Blocks, newBlock(info, n))
			}
		case fenced:
			s.Code = append(s.Code, line)
			s.Blocks[len(s.Blocks)-1].Text += line + "\n"
		case indented:
			s.Code, s.Indented = append(s.Code, code), append(s.Indented, code)
		case hashes > 0:
			p.Sections = append(p.Sections, Section{Title: strings.TrimSpace(line[hashes:]), Level: hashes})
		default:
			s.Prose += line + "\n"
		}
	}
	return p
}

func newBlock(info string, line int) Block {
	b := Block{Line: line}
	if words := strings.Fields(info); len(words) > 0 {
		b.Language, b.Attributes = words[0], words[1:]
	}
	return b
}

// Anchor returns the anchor of the section, which follows the # in a link.
func (s *Section) Anchor() string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, s.Title)
}

// Find returns the section with the given anchor, or nil.
func (p *Page) Find(anchor string) *Section {
	i := slices.IndexFunc(p.Sections, func(s Section) bool { return s.Title != "" && s.Anchor() == anchor })
	if i < 0 {
		return nil
	}
	return &p.Sections[i]
}

var (
	codeSpan = regexp.MustCompile("`([^`]+)`")
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	quoted   = regexp.MustCompile(`"([^"]+)"`)
	blank    = regexp.MustCompile(`\s+`)
)

// Spans returns the code spans of a text.
func Spans(prose string) []string { return all(codeSpan, prose) }

// Links returns the targets of the links in a text.
func Links(prose string) []string { return all(link, codeSpan.ReplaceAllString(prose, "")) }

// Quotes returns the double-quoted strings of a text, except those in code spans.
func Quotes(prose string) []string { return all(quoted, codeSpan.ReplaceAllString(prose, "")) }

func all(re *regexp.Regexp, text string) (list []string) {
	for _, m := range re.FindAllStringSubmatch(text, -1) {
		list = append(list, blank.ReplaceAllString(m[1], " "))
	}
	return list
}

// Items returns the list items of a text, each on one line.
func Items(prose string) (items []string) {
	open := false
	for line := range strings.Lines(prose) {
		switch item, begins := strings.CutPrefix(line, "- "); {
		case begins:
			items, open = append(items, strings.TrimSpace(item)), true
		case open && strings.HasPrefix(line, "  "):
			items[len(items)-1] += " " + strings.TrimSpace(line)
		default:
			open = false
		}
	}
	return items
}
