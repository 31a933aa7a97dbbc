// Package pattern draws the test picture: colour bars, a frame counter that can
// be read back from the pixels, and a box that can move. The test pattern node
// shows it, and the scripted camera of the test bed does too.
//
// The counter stands twice, in the first and in the last lines, as 32 squares
// side by side, white for 1, the highest bit first. So a reader of the picture
// can tell which frame it is, and that it is one frame and not parts of two. It
// is in Gray code, so that only one square changes from one frame to the next:
// it must not look like motion.
package pattern

import "image"

// counterBits is the length of the counter.
const counterBits = 32

// Sizes are rounded to pairs of pixels and lines, so that every part of the
// picture can be drawn in formats that share chroma between two.
func even(n int) int { return max(2, n/2*2) }

// MinWidth and MinHeight are the smallest picture that holds the counters.
const (
	MinWidth  = 2 * counterBits
	MinHeight = 8
)

// side of a square of the counter.
func side(width, height int) int { return min(even(width/64), even(height/4)) }

// Squares calls draw for each square of both counters showing n.
func Squares(width, height int, n uint32, draw func(r image.Rectangle, white bool)) {
	s := side(width, height)
	n ^= n >> 1 // Gray code
	for i := range counterBits {
		white := n>>(counterBits-1-i)&1 == 1
		draw(image.Rect(i*s, 0, (i+1)*s, s), white)
		draw(image.Rect(i*s, height/2*2-s, (i+1)*s, height/2*2), white)
	}
}

// Counter reads the counter from RGBA pixels; ok is false if the two differ,
// or are not black and white: no whole frame of this pattern.
func Counter(pixels []byte, stride, width, height int) (n uint32, ok bool) {
	if width < MinWidth || height < MinHeight {
		return 0, false
	}
	s := side(width, height)
	read := func(y int) (n uint32, ok bool) {
		for i := range counterBits {
			p := pixels[(y+s/2)*stride+4*(i*s+s/2):]
			sum := int(p[0]) + int(p[1]) + int(p[2])
			if sum > 3*64 && sum < 3*192 {
				return 0, false
			}
			n <<= 1
			if sum >= 3*128 {
				n |= 1
			}
		}
		for shift := 1; shift < counterBits; shift *= 2 { // from Gray code
			n ^= n >> shift
		}
		return n, true
	}
	top, ok1 := read(0)
	bottom, ok2 := read(height/2*2 - s)
	return top, ok1 && ok2 && top == bottom
}

// Bars draws the picture without counter and box: bars in the colours and order
// of SMPTE EG 1 at 75 %, a castellation in reverse order, and a grey scale.
func Bars(pixels []byte, stride, width, height int) {
	const level = 191 // 75 %
	bars := [7][3]byte{
		{level, level, level}, {level, level, 0}, {0, level, level}, {0, level, 0},
		{level, 0, level}, {level, 0, 0}, {0, 0, level},
	}
	for y := range height {
		for x := range width {
			bar := x * 7 / width
			c := bars[bar]
			switch {
			case y >= height*3/4:
				grey := byte(x * 255 / max(1, width-1))
				c = [3]byte{grey, grey, grey}
			case y >= height*2/3:
				if c = bars[6-bar]; bar%2 == 1 {
					c = [3]byte{19, 19, 19}
				}
			}
			copy(pixels[y*stride+4*x:], []byte{c[0], c[1], c[2], 255})
		}
	}
}

// Box is the size of the box: a quarter of the width, two thirds of the height.
func Box(width, height int) image.Point {
	return image.Pt(even(width/4), even(height*2/3))
}

// Stripes draws the box: black and white stripes, so that wherever it moves
// most of its area changes. pixels is of the box alone.
func Stripes(pixels []byte, stride int, box image.Point) {
	stripe := even(box.X / 8)
	for y := range box.Y {
		for x := range box.X {
			var c byte
			if x/stripe%2 == 0 {
				c = 255
			}
			copy(pixels[y*stride+4*x:], []byte{c, c, c, 255})
		}
	}
}

// BoxAt is where the box stands after it has moved for so many seconds: it
// crosses the picture once a second, there and back.
func BoxAt(width, height int, moved float64) image.Point {
	box := Box(width, height)
	t := moved - float64(int(moved/2)*2) // within a period of 2 s
	if t > 1 {
		t = 2 - t
	}
	return image.Pt(int(t*float64(width-box.X))/2*2, (height-box.Y)/4*2)
}

// Moved is for how long the box has moved at a time: still for motion seconds,
// moving for as many, and so on. Without motion it never does.
func Moved(seconds, motion float64) float64 {
	if motion <= 0 {
		return 0
	}
	periods := int(seconds / (2 * motion))
	return float64(periods)*motion + max(0, seconds-float64(periods)*2*motion-motion)
}
