package main

import (
	"math"
	"strconv"

	"gonum.org/v1/plot"
)

// setAxes sets the ends and ticks of both axes so that no value touches the upper end.
func (c *chart) setAxes(p *plot.Plot) {
	if c.logX {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, powers{2}
	}
	if c.logY {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, powers{10}
		p.Y.Min, p.Y.Max = c.lowest(), 1.5*c.highest()
		return
	}
	end, step := linearAxis(c.highest(), c.most, c.step)
	p.Y.Min, p.Y.Max, p.Y.Tick.Marker = 0, end, steps{step}
}

// linearAxis returns the end of an axis from 0 and the distance of its ticks: 1, 2 or 5 of a power of ten, unless step is
// given. The end is at most the given one, if that is above 0.
func linearAxis(highest, most, step float64) (end, tick float64) {
	if highest <= 0 {
		return 1, 0.2
	}
	if tick = step; tick == 0 {
		rough := highest / 5
		power := math.Pow(10, math.Floor(math.Log10(rough)))
		for _, factor := range []float64{1, 2, 5, 10} {
			if tick = factor * power; tick >= rough {
				break
			}
		}
	}
	end = tick * math.Ceil(1.03*highest/tick)
	if most > 0 {
		end = min(end, most)
	}
	return end, tick
}

// steps marks the multiples of a distance.
type steps struct{ distance float64 }

// Ticks implements plot.Ticker.
func (t steps) Ticks(low, high float64) (ticks []plot.Tick) {
	for n := math.Ceil(low/t.distance - 0.001); n*t.distance <= high*1.001; n++ {
		ticks = append(ticks, plot.Tick{Value: n * t.distance, Label: tickLabel(n * t.distance)})
	}
	return ticks
}

// powers marks the powers of a base.
type powers struct{ base float64 }

// Ticks implements plot.Ticker.
func (t powers) Ticks(low, high float64) (ticks []plot.Tick) {
	first := math.Ceil(math.Log(low)/math.Log(t.base) - 0.001)
	for v := math.Pow(t.base, first); v <= high*1.001; v *= t.base {
		ticks = append(ticks, plot.Tick{Value: v, Label: tickLabel(v)})
	}
	return ticks
}

// tickLabel formats a value: whole ones with separators, others with up to three decimals.
func tickLabel(v float64) string {
	if rounded := math.Round(v); math.Abs(v-rounded) < 1e-9*max(1, v) {
		return number(rounded)
	}
	return strconv.FormatFloat(math.Round(1000*v)/1000, 'f', -1, 64)
}
