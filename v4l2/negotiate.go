package v4l2

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"tatolab.com/tatolab/v4l2/pixel"
)

// Request is what somebody wants of a camera.
type Request struct {
	// MaxWidth and MaxHeight bound the picture, in pixels.
	MaxWidth, MaxHeight int
	// FPS is the frame rate, in frames a second; 0: a usual one.
	FPS float64
	// Formats, if there are any, are the only ones to choose from.
	Formats []pixel.FourCC
}

// takes tells whether a format is one to choose from: it can be converted too.
func (r Request) takes(f pixel.FourCC) bool {
	_, convertible := pixel.Cost(f)
	return convertible && (len(r.Formats) == 0 || slices.Contains(r.Formats, f))
}

func anyFormat(pixel.FourCC) bool { return true }

// Where no rate was asked for, cameras are set to the usual one, and film's is
// good enough not to give up size for it.
const (
	usualRate  = 30
	fluentRate = 24
)

// sameRate is how much of the rate asked for counts as all of it: 29.97 for 30.
const sameRate = 0.99

// Offer is one thing a camera can be set to.
type Offer struct {
	Format        pixel.FourCC
	Width, Height int
	// Intervals are the shortest and longest times between frames; empty if
	// the driver does not tell.
	Intervals []Fraction
	// proposed: the driver lists no sizes, this one is ours.
	proposed bool
}

// choice is an offer and the interval to ask for; 0/0 leaves it to the driver.
type choice struct {
	Offer
	interval Fraction
}

// choose orders what can be had, best first. The rate asked for comes first (a
// rate that is not reached counts by how near it comes), then the size, then
// the cost of the format. A rate that is not known is taken to be right.
func choose(offers []Offer, want Request) ([]choice, error) {
	rate, enough := want.FPS, want.FPS
	if rate == 0 {
		rate, enough = usualRate, fluentRate
	}
	type ranked struct {
		choice
		reached float64 // part of the rate asked for, at most 1
		cost    int
	}
	var list []ranked
	for _, o := range offers {
		if !want.takes(o.Format) || o.Width > want.MaxWidth || o.Height > want.MaxHeight {
			continue
		}
		cost, _ := pixel.Cost(o.Format)
		r := ranked{choice{o, nearest(o.Intervals, rate)}, 1, cost}
		if len(o.Intervals) > 0 {
			if r.reached = r.interval.Rate() / enough; r.reached >= sameRate {
				r.reached = 1
			}
		}
		list = append(list, r)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("nothing it offers fits %dx%d and can be converted; it offers %s", want.MaxWidth, want.MaxHeight, summary(offers))
	}
	slices.SortStableFunc(list, func(a, b ranked) int {
		return cmp.Or(
			cmp.Compare(b.reached, a.reached),
			cmp.Compare(b.Width*b.Height, a.Width*a.Height),
			cmp.Compare(a.cost, b.cost))
	})
	out := make([]choice, len(list))
	for i := range list {
		out[i] = list[i].choice
	}
	return out, nil
}

// nearest picks the interval nearest to a rate by ratio, any that is too high
// before one too low.
func nearest(offered []Fraction, fps float64) Fraction {
	var best Fraction
	distance := math.Inf(1)
	for _, f := range offered {
		d := f.Rate() / fps
		if d < sameRate {
			d = 1e6 / d
		}
		if f.Num > 0 && d < distance {
			best, distance = f, d
		}
	}
	return best
}

// summary names formats and sizes for a message, a few of them.
func summary(offers []Offer) string {
	const most = 8
	var names []string
	for _, o := range offers {
		if len(names) == most {
			names = append(names, "…")
			break
		}
		names = append(names, fmt.Sprintf("%v %dx%d", o.Format, o.Width, o.Height))
	}
	if len(names) == 0 {
		return "nothing"
	}
	return strings.Join(names, ", ")
}

// fit is the largest size of a range within bounds, ok false if there is none.
func (s sizes) fit(maxWidth, maxHeight int) (width, height int, ok bool) {
	largest := func(least, greatest, step, bound int) int {
		if bound = min(bound, greatest); bound < least {
			return 0
		}
		return least + (bound-least)/step*step
	}
	width = largest(s.minWidth, s.maxWidth, s.stepWidth, maxWidth)
	height = largest(s.minHeight, s.maxHeight, s.stepHeight, maxHeight)
	return width, height, width > 0 && height > 0
}

// offers lists what d can be set to. Of a range of sizes the largest within
// bounds counts, and the smallest of all if none fits, so that a refusal can
// name it. A driver that lists no sizes gets the bounds as a proposal. Only formats
// that are wanted are asked for: each has a list of sizes, which all have a list of
// rates, and every entry of those is a call of the driver.
func offers(d driver, bound Request, wanted func(pixel.FourCC) bool) ([]Offer, error) {
	formats, err := d.formats()
	if err != nil {
		return nil, fmt.Errorf("cannot list its formats: %w", err)
	}
	var out []Offer
	for _, f := range formats {
		if !wanted(f) {
			continue
		}
		listed, err := d.sizes(f)
		if err != nil || len(listed) == 0 {
			out = append(out, Offer{Format: f, Width: bound.MaxWidth, Height: bound.MaxHeight, proposed: true})
			continue
		}
		for _, s := range listed {
			width, height, ok := s.fit(bound.MaxWidth, bound.MaxHeight)
			if !ok {
				width, height = s.minWidth, s.minHeight
			}
			o := Offer{Format: f, Width: width, Height: height}
			if ok {
				// No list of rates is not an error: not every driver has one.
				listed, _ := d.rates(f, width, height)
				for _, r := range listed {
					o.Intervals = append(o.Intervals, r.within(cmp.Or(bound.FPS, usualRate))...)
				}
			}
			out = append(out, o)
		}
	}
	return out, nil
}

// within lists the ends of a range of intervals, and the rate wanted if it lies
// between them.
func (r rates) within(fps float64) []Fraction {
	if r.shortest == r.longest {
		return []Fraction{r.shortest}
	}
	list := []Fraction{r.shortest, r.longest}
	if fps < r.shortest.Rate() && fps > r.longest.Rate() {
		const precision = 1000 // 29.97 is 1000/29970
		list = append(list, Fraction{precision, uint32(math.Round(fps * precision))})
	}
	return list
}
