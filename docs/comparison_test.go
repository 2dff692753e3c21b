package docs

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// comparisonRow is a row of comparison.md: the cells "mapsync" and "ratio" as they follow from the sources.
type comparisonRow struct {
	figure    string    // first cell
	mapsync   string    // format of the values
	ratio     string    // format of as many of the first values, each divided by published
	published float64   // 0: the row has no ratio
	values    []float64 // from the data of the report or from a README
}

// TestComparisonHasMeasuredFigures checks that the figures in comparison.md are those of the last runs: the data of the
// report and the outputs in the READMEs. Rows without a digit in the column "mapsync" need no source.
func TestComparisonHasMeasuredFigures(t *testing.T) {
	t.Parallel()
	rows := readComparison(t)
	known := make(map[string]bool)
	for _, want := range slices.Concat(loxilbRows(t), turnRows(t), bundlingRows(t), counterRows(t), jitterRows(t)) {
		known[want.figure] = true
		got, ok := rows[want.figure]
		if !ok {
			t.Errorf("row %q: got none, want one", want.figure)
			continue
		}
		if text := fmt.Sprintf(want.mapsync, arguments(want.values)...); got[2] != text {
			t.Errorf("row %q, mapsync: got %q, want %q", want.figure, got[2], text)
		}
		if text := want.ratios(); got[3] != text {
			t.Errorf("row %q, ratio: got %q, want %q", want.figure, got[3], text)
		}
	}
	for figure, cells := range rows {
		if !known[figure] && strings.ContainsFunc(cells[2]+cells[3], unicode.IsDigit) {
			t.Errorf("row %q: got figures without a source, want one in the test", figure)
		}
	}
}

func (r *comparisonRow) ratios() string {
	if r.published == 0 {
		return "–"
	}
	var list []float64
	for _, v := range r.values[:strings.Count(r.ratio, "%")] {
		list = append(list, v/r.published)
	}
	return fmt.Sprintf(r.ratio, arguments(list)...)
}

// readComparison returns the cells of each row of the page, by the first cell.
func readComparison(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("comparison.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := make(map[string][]string)
	section := ""
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "## "); ok {
			section = strings.TrimSuffix(strings.Fields(name)[0], ":")
		}
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| figure |") || strings.HasPrefix(line, "| --- |") {
			continue
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if len(cells) != 5 {
			t.Fatalf("row %q: got %d cells, want 5", line, len(cells))
		}
		key := section + ": " + cells[0]
		if rows[key] != nil {
			t.Fatalf("row %q: got two, want one", key)
		}
		rows[key] = cells
	}
	return rows
}

// grouped prints a number with separators (%d), or as a number (%f).
type grouped float64

// Format implements fmt.Formatter.
func (g grouped) Format(f fmt.State, verb rune) {
	if verb != 'd' {
		_, _ = fmt.Fprintf(f, fmt.FormatString(f, verb), float64(g))
		return
	}
	digits := fmt.Sprintf("%.0f", float64(g))
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	_, _ = fmt.Fprint(f, digits)
}

func arguments(values []float64) (list []any) {
	for _, v := range values {
		list = append(list, grouped(v))
	}
	return list
}
