// Package fit places a picture in a window.
package fit

import "math"

// Scaling is how a picture of another shape than the window is shown.
type Scaling string

// The scalings of DisplayWindow.
const (
	Fit     Scaling = "fit"     // all of the picture, with bars
	Fill    Scaling = "fill"    // all of the window, the picture cut
	Stretch Scaling = "stretch" // all of both, the picture distorted
)

// Valid tells whether s is one of the three.
func (s Scaling) Valid() bool { return s == Fit || s == Fill || s == Stretch }

// Rectangle lies in a window whose origin is at a corner, in pixels. It may
// reach beyond the window.
type Rectangle struct{ X, Y, Width, Height int }

// Place returns where a picture of pictureWidth × pictureHeight goes in a
// window of width × height, centred. All are in pixels and at least 1.
func (s Scaling) Place(pictureWidth, pictureHeight, width, height int) Rectangle {
	if s == Stretch {
		return Rectangle{0, 0, width, height}
	}
	horizontal := float64(width) / float64(pictureWidth)
	vertical := float64(height) / float64(pictureHeight)
	scale := min(horizontal, vertical)
	if s == Fill {
		scale = max(horizontal, vertical)
	}
	w := max(1, int(math.Round(scale*float64(pictureWidth))))
	h := max(1, int(math.Round(scale*float64(pictureHeight))))
	return Rectangle{floorHalf(width - w), floorHalf(height - h), w, h}
}

// floorHalf rounds down, also below zero, so that what sticks out is even on
// both sides.
func floorHalf(n int) int { return n >> 1 }
