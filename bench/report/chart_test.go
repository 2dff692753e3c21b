package main

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/recorder"
)

// TestAxisFitsData checks the end and the ticks of linear axes.
func TestAxisFitsData(t *testing.T) {
	for _, c := range []struct{ highest, most, step, end, tick float64 }{
		{3.56, 100, 0, 4, 1},
		{95.7, 100, 0, 100, 20},
		{4990, 0, 0, 6000, 1000}, // not 5000: the bar would touch the frame
		{2.075, 0, 0.2, 2.2, 0.2},
		{0, 100, 0, 1, 0.2},
	} {
		end, tick := linearAxis(c.highest, c.most, c.step)
		if math.Abs(end-c.end) > 1e-9 || math.Abs(tick-c.tick) > 1e-9 {
			t.Errorf("axis for values up to %v: got end %v, ticks %v, want %v, %v", c.highest, end, tick, c.end, c.tick)
		}
	}
}

// TestTicks checks the labels of ticks: one format, and one at each power.
func TestTicks(t *testing.T) {
	for _, c := range []struct {
		name      string
		ticker    plot.Ticker
		low, high float64
		want      string
	}{
		{"powers of ten", powers{10}, 1, 14_910, "1 10 100 1,000 10,000"},
		{"powers below 1", powers{10}, 0.1, 15, "0.1 1 10"},
		{"large powers", powers{10}, 1000, 2.9e6, "1,000 10,000 100,000 1,000,000"},
		{"steps", steps{0.2}, 0, 1.2, "0 0.2 0.4 0.6 0.8 1 1.2"},
		{"large steps", steps{1000}, 0, 2000, "0 1,000 2,000"},
	} {
		var labels []string
		for _, tick := range c.ticker.Ticks(c.low, c.high) {
			labels = append(labels, tick.Label)
		}
		if got := strings.Join(labels, " "); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// TestLogAxisExceedsBars checks that the highest bar of a logarithmic axis does not touch the frame.
func TestLogAxisExceedsBars(t *testing.T) {
	c := chart{logY: true, names: []string{"a"}, series: []series{{y: []float64{9940}}}}
	p := plot.New()
	if c.setAxes(p); p.Y.Min != 1000 || p.Y.Max < 10_000 {
		t.Errorf("axis for 9940: got %v to %v, want 1000 to more than 10000", p.Y.Min, p.Y.Max)
	}
}

// TestLegendIsBesideGrid checks that the names are to the right of the part of the canvas that has the grid.
func TestLegendIsBesideGrid(t *testing.T) {
	c := chart{names: []string{"1", "10"}, bounds: []bound{{0.95, "goal"}}, series: []series{
		{name: "first", y: []float64{1, 2}, low: []float64{0.5, 1}, high: []float64{2, 3}}, {name: "second", y: []float64{1, 2}, colour: 1},
	}}
	var canvas recorder.Canvas
	if err := c.drawOn(draw.NewCanvas(&canvas, chartWidth, chartHeight)); err != nil {
		t.Fatal(err)
	}
	legend := plot.NewLegend()
	left, found := chartWidth-c.placeLegend(&legend), 0
	for _, action := range canvas.Actions {
		text, ok := action.(*recorder.FillString)
		if !ok || text.String != "first" && text.String != "second" && text.String != "goal" {
			continue
		}
		if found++; text.Point.X <= left {
			t.Errorf("name %s: got position %v, want one to the right of %v", text.String, text.Point.X, left)
		}
	}
	if found != 3 {
		t.Errorf("names in the legend: got %d, want 3", found)
	}
}

// TestCommittedReportFollowsFromData checks that the page and the charts in docs/report are those of its data.
func TestCommittedReportFollowsFromData(t *testing.T) {
	const committed = "../../docs/report"
	out := t.TempDir()
	if err := run(committed, out, false); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		got, err := os.ReadFile(filepath.Join(committed, file.Name()))
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(filepath.Join(out, file.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("docs/report/%s: got another text, want that of: go -C bench run ./report -from ../docs/report -to ../docs/report", file.Name())
		}
	}
}
