package window

import (
	"fmt"
	"image"
	"image/color"

	"golang.org/x/image/font"
	"golang.org/x/image/font/basicfont"
	"golang.org/x/image/math/fixed"

	"tatolab.com/tatolab/gl/shader"
)

// meter measures what the overlay shows.
type meter struct {
	times [128]int64 // when the last pictures were shown, nanoseconds, a ring
	count int        // of pictures shown
	age   int64      // of the last, when it was shown; -1 if unknown
}

// shown notes a picture taken at `taken` and shown now.
func (m *meter) shown(now, taken int64) {
	m.times[m.count%len(m.times)] = now
	m.count++
	m.age = -1
	if taken > 0 && taken <= now {
		m.age = now - taken
	}
}

// rate is pictures a second, over the second before the last one at most.
func (m *meter) rate() float64 {
	const second = 1_000_000_000
	have := min(m.count, len(m.times))
	if have < 2 {
		return 0
	}
	at := func(back int) int64 { return m.times[(m.count-1-back)%len(m.times)] }
	n := 1
	for n < have-1 && at(0)-at(n) < second {
		n++
	}
	if at(0) == at(n) {
		return 0
	}
	return float64(n) * second / float64(at(0)-at(n))
}

// text describes the pictures.
func (m *meter) text(picture *shader.Texture) string {
	if picture == nil || m.count == 0 {
		return "no picture yet"
	}
	text := fmt.Sprintf("%dx%d  %.1f frames/s", picture.Width, picture.Height, m.rate())
	if m.age >= 0 {
		text += fmt.Sprintf("  %.1f ms old", float64(m.age)/1e6)
	}
	return text
}

// render draws text in white on black, with a border.
func render(text string) *image.RGBA {
	const border = 4
	face := basicfont.Face7x13
	out := image.NewRGBA(image.Rect(0, 0, 2*border+face.Advance*len(text), 2*border+face.Height))
	for i := 3; i < len(out.Pix); i += 4 {
		out.Pix[i] = 255
	}
	d := font.Drawer{Dst: out, Src: image.NewUniform(color.White), Face: face, Dot: fixed.P(border, border+face.Ascent)}
	d.DrawString(text)
	return out
}
