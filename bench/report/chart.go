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
	// bounds are horizontal lines.
	bounds []bound
	// most, if above 0, is the highest possible value: the y axis ends there at the latest.
	most float64
	// step is the distance of the ticks of a linear y axis; 0: it follows from the values.
	step float64

	grid vg.Length // width of the grid, about; set by drawOn
}

// bound is a horizontal line with a label.
type bound struct {
	at    float64
	label string
}

// series is a line, or the bars of one colour.
type series struct {
	name   string
	x, y   []float64 // x is unused by bars
	colour int
	dashed bool
	// low and high, if set, are the ends of a range around each bar.
	low, high []float64
}

// of returns the series with a name, a new one with a colour of its own if there is none.
func (c *chart) of(name string) *series {
	i := slices.IndexFunc(c.series, func(s series) bool { return s.name == name })
	if i < 0 {
		i = len(c.series)
		c.series = append(c.series, series{name: name, colour: i})
	}
	return &c.series[i]
}

const (
	chartWidth  = 560 * vg.Length(1) // points
	chartHeight = 260 * vg.Length(1)
	smallFont   = 8 * vg.Length(1)
	legendFont  = 10 * vg.Length(1)
)

// write writes the chart into a folder.
func (c *chart) write(dir string) error {
	canvas := vgsvg.New(chartWidth, chartHeight)
	if err := c.drawOn(draw.New(canvas)); err != nil {
		return fmt.Errorf("draw %s: %w", c.file, err)
	}
	var out bytes.Buffer
	if _, err := canvas.WriteTo(&out); err != nil {
		return fmt.Errorf("draw %s: %w", c.file, err)
	}
	if err := os.WriteFile(dir+"/"+c.file, out.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write chart: %w", err)
	}
	return nil
}

// drawOn draws the chart, with the legend to the right of the grid.
func (c *chart) drawOn(canvas draw.Canvas) error {
	p, legend := plot.New(), plot.NewLegend()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = c.title, c.x, c.y
	p.Title.Padding = vg.Points(6)
	p.X.Tick.Label.Font.Size, p.Y.Tick.Label.Font.Size = smallFont, smallFont
	p.Add(plotter.NewGrid())
	width := c.placeLegend(&legend)
	c.grid = chartWidth - width - vg.Points(60)
	add := c.addLines
	if c.names != nil {
		add = c.addBars
	}
	if err := add(p, &legend); err != nil {
		return err
	}
	c.addBounds(p, &legend)
	c.setAxes(p)
	p.Draw(draw.Crop(canvas, 0, -width, 0, 0))
	legend.Draw(draw.Crop(canvas, canvas.Max.X-canvas.Min.X-width, 0, 0, -vg.Points(24)))
	return nil
}

// placeLegend places the legend at the upper left end of its canvas, and returns the width of the samples and names. Viewers
// may have a wider font than the one that the library measures.
func (c *chart) placeLegend(l *plot.Legend) (width vg.Length) {
	l.Top, l.Left, l.Padding = true, true, vg.Points(3)
	l.TextStyle.Font.Size, l.XOffs = legendFont, vg.Points(8)
	if len(c.series) > 1 || c.names == nil {
		for _, s := range c.series {
			width = max(width, l.TextStyle.Width(s.name))
		}
	}
	for _, b := range c.bounds {
		width = max(width, l.TextStyle.Width(b.label))
	}
	if width == 0 {
		return 0
	}
	return 1.35*width + l.ThumbnailWidth + vg.Points(16)
}

func (c *chart) addLines(p *plot.Plot, legend *plot.Legend) error {
	for _, s := range c.series {
		points := make(plotter.XYs, len(s.x))
		for n := range s.x {
			points[n] = plotter.XY{X: s.x[n], Y: s.y[n]}
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return err
		}
		line.Color, line.Width = plotutil.Color(s.colour), vg.Points(1.2) //nolint:misspell // the library's name
		dots.Color, dots.Shape = line.Color, plotutil.Shape(s.colour)     //nolint:misspell // the library's name
		if s.dashed {
			line.Dashes = plotutil.Dashes(1)
		}
		p.Add(line, dots)
		legend.Add(s.name, line, dots)
	}
	return nil
}

// addBars draws each bar as a thick line from the lower end of the axis, because the library's bars start at 0.
func (c *chart) addBars(p *plot.Plot, legend *plot.Legend) error {
	low := 0.0
	if c.logY {
		low = c.lowest()
	}
	width := min(vg.Points(30), c.grid*0.6/vg.Length(len(c.names)*len(c.series)))
	for i, s := range c.series {
		at := func(n int) float64 {
			return float64(n) + (float64(i)-float64(len(c.series)-1)/2)*0.7/float64(len(c.series))
		}
		for n, v := range s.y {
			bar, err := plotter.NewLine(plotter.XYs{{X: at(n), Y: low}, {X: at(n), Y: max(v, low)}})
			if err != nil {
				return err
			}
			bar.Color, bar.Width = plotutil.Color(s.colour), width //nolint:misspell // the library's name
			p.Add(bar)
			if n == 0 && len(c.series) > 1 {
				sample := *bar
				sample.Width = vg.Points(6)
				legend.Add(s.name, &sample)
			}
		}
		if err := addRanges(p, &s, at); err != nil {
			return err
		}
	}
	p.NominalX(c.names...)
	p.X.Tick.Label.Font.Size = smallFont
	p.X.Min, p.X.Max = -0.6, float64(len(c.names))-0.4
	return nil
}

// addRanges draws the range of each bar of a series.
func addRanges(p *plot.Plot, s *series, at func(n int) float64) error {
	if s.low == nil {
		return nil
	}
	var ranges struct {
		plotter.XYs
		plotter.YErrors
	}
	for n, v := range s.y {
		ranges.XYs = append(ranges.XYs, plotter.XY{X: at(n), Y: v})
		ranges.YErrors = append(ranges.YErrors, struct{ Low, High float64 }{v - s.low[n], s.high[n] - v})
	}
	bars, err := plotter.NewYErrorBars(ranges)
	if err != nil {
		return err
	}
	bars.CapWidth = vg.Points(5)
	p.Add(bars)
	return nil
}

func (c *chart) addBounds(p *plot.Plot, legend *plot.Legend) {
	for i, b := range c.bounds {
		f := plotter.NewFunction(func(float64) float64 { return b.at })
		f.Color, f.Width, f.Dashes = plotutil.Color(3+i), vg.Points(1), plotutil.Dashes(1) //nolint:misspell // the library's name
		p.Add(f)
		legend.Add(b.label, f)
	}
}

// lowest returns the power of ten below all values.
func (c *chart) lowest() float64 {
	low := math.Inf(1)
	for _, s := range c.series {
		low = min(low, slices.Min(s.y))
	}
	return math.Pow(10, math.Floor(math.Log10(low)))
}

// highest returns the highest value that the chart shows.
func (c *chart) highest() (high float64) {
	for _, s := range c.series {
		for _, v := range slices.Concat(s.y, s.high) {
			high = max(high, v)
		}
	}
	for _, b := range c.bounds {
		high = max(high, b.at)
	}
	return high
}
