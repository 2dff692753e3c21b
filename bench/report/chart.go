package main

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// chart is a figure of the report.
type chart struct {
	file  string // name without folder, .svg
	title string
	x, y  string // axes with their units
	// names are the labels of the x axis of a chart with bars; nil: a chart with lines.
	names  []string
	series []series
	// logX and logY select logarithmic axes. Values of a logarithmic axis are above 0.
	logX, logY bool
	// bound, if above 0, is a horizontal line with a label.
	bound      float64
	boundLabel string
	// top, if above 0, is the highest value of the y axis, and the legend is on the right.
	top float64
}

// legendSpace separates a name from its sample: viewers may have a wider font than the one that the library measures.
const legendSpace = "\u00a0\u00a0\u00a0\u00a0\u00a0\u00a0\u00a0"

// series is a line, or the bars of one colour.
type series struct {
	name string
	x, y []float64 // x is unused by bars
}

// of returns the series with a name, a new one if there is none.
func (c *chart) of(name string) *series {
	i := slices.IndexFunc(c.series, func(s series) bool { return s.name == name })
	if i < 0 {
		c.series = append(c.series, series{name: name})
		i = len(c.series) - 1
	}
	return &c.series[i]
}

const (
	chartWidth  = 510 * vg.Length(1) // points
	chartHeight = 255 * vg.Length(1)
)

// write writes the chart into a folder.
func (c *chart) write(dir string) error {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = c.title, c.x, c.y
	p.Title.Padding = vg.Points(6)
	p.Legend.Top, p.Legend.Left = true, c.top == 0
	p.Legend.Padding, p.Legend.XOffs = vg.Points(3), vg.Points(-8)
	if c.top == 0 {
		p.Legend.XOffs = vg.Points(8)
	}
	p.Add(plotter.NewGrid())
	if !c.logY {
		p.Y.Min = 0
	}
	add := c.addLines
	if c.names != nil {
		add = c.addBars
	}
	if err := add(p); err != nil {
		return fmt.Errorf("draw %s: %w", c.file, err)
	}
	c.addBound(p)
	if c.logX {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, powers{2}
	}
	if c.logY {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	}
	switch {
	case c.top > 0:
		p.Y.Max = c.top
	case !c.logY: // room for the legend
		p.Y.Max *= 1.35
	}
	canvas := vgsvg.New(chartWidth, chartHeight)
	p.Draw(draw.New(canvas))
	var out bytes.Buffer
	if _, err := canvas.WriteTo(&out); err != nil {
		return fmt.Errorf("draw %s: %w", c.file, err)
	}
	if err := os.WriteFile(dir+"/"+c.file, out.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write chart: %w", err)
	}
	return nil
}

func (c *chart) addLines(p *plot.Plot) error {
	for i, s := range c.series {
		points := make(plotter.XYs, len(s.x))
		for n := range s.x {
			points[n] = plotter.XY{X: s.x[n], Y: s.y[n]}
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return err
		}
		line.Color, line.Width = plotutil.Color(i), vg.Points(1.2) //nolint:misspell // the library's name
		line.Dashes = plotutil.Dashes(i / 4)
		dots.Color, dots.Shape = plotutil.Color(i), plotutil.Shape(i) //nolint:misspell // the library's name
		p.Add(line, dots)
		p.Legend.Add(s.name+legendSpace, line, dots)
	}
	return nil
}

// addBars draws each bar as a thick line from the lower end of the axis, because the library's bars start at 0.
func (c *chart) addBars(p *plot.Plot) error {
	low := 0.0
	if c.logY {
		low = c.lowest()
		p.Y.Min = low
	}
	width := chartWidth * 0.6 / vg.Length(len(c.names)*len(c.series))
	for i, s := range c.series {
		var sample *plotter.Line
		for n, v := range s.y {
			x := float64(n) + (float64(i)-float64(len(c.series)-1)/2)*0.7/float64(len(c.series))
			bar, err := plotter.NewLine(plotter.XYs{{X: x, Y: low}, {X: x, Y: max(v, low)}})
			if err != nil {
				return err
			}
			bar.Color, bar.Width = plotutil.Color(i), min(width, vg.Points(30)) //nolint:misspell // the library's name
			p.Add(bar)
			sample = bar
		}
		if len(c.series) > 1 {
			thin := *sample
			thin.Width = vg.Points(6)
			p.Legend.Add(s.name, &thin)
		}
	}
	p.NominalX(c.names...)
	p.X.Tick.Label.Font.Size = vg.Points(8)
	p.X.Min, p.X.Max = -0.6, float64(len(c.names))-0.4
	return nil
}

// lowest returns the power of ten below all values.
func (c *chart) lowest() float64 {
	low := math.Inf(1)
	for _, s := range c.series {
		low = min(low, slices.Min(s.y))
	}
	return math.Pow(10, math.Floor(math.Log10(low)))
}

func (c *chart) addBound(p *plot.Plot) {
	if c.bound <= 0 {
		return
	}
	f := plotter.NewFunction(func(float64) float64 { return c.bound })
	f.Color, f.Width, f.Dashes = plotutil.Color(3), vg.Points(1), plotutil.Dashes(1) //nolint:misspell // the library's name
	p.Add(f)
	p.Legend.Add(c.boundLabel, f)
	p.Y.Max = max(p.Y.Max, c.bound)
}

// powers marks the powers of a base.
type powers struct{ base float64 }

// Ticks implements plot.Ticker.
func (t powers) Ticks(low, high float64) (ticks []plot.Tick) {
	for v := 1.0; v <= high*1.001; v *= t.base {
		if v >= low*0.999 {
			ticks = append(ticks, plot.Tick{Value: v, Label: fmt.Sprintf("%.0f", v)})
		}
	}
	return ticks
}
