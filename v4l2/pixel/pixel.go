// Package pixel turns the pictures that cameras deliver into RGBA, in one pass
// that reads the driver's buffer and writes the destination: the conversion is
// the copy. The other way, RGBA is turned into YUYV for devices that take pictures.
//
// It is built on libyuv and libjpeg-turbo. With the build tag purego, or
// without cgo, the Go code of this package does the same, several times slower.
package pixel

import (
	"bytes"
	"errors"
	"fmt"
)

// FourCC names a pixel format as V4L2 does.
type FourCC uint32

func fourCC(s string) FourCC {
	return FourCC(s[0]) | FourCC(s[1])<<8 | FourCC(s[2])<<16 | FourCC(s[3])<<24
}

// String returns the four characters, for example YUYV.
func (f FourCC) String() string {
	b := []byte{byte(f), byte(f >> 8), byte(f >> 16), byte(f >> 24)}
	for i, c := range b {
		if c < ' ' || c > '~' {
			b[i] = '?'
		}
	}
	for len(b) > 1 && b[len(b)-1] == ' ' {
		b = b[:len(b)-1]
	}
	return string(b)
}

// The formats that can be converted.
var (
	// 4:2:2, two pixels in four bytes.
	YUYV = fourCC("YUYV")
	UYVY = fourCC("UYVY")
	YVYU = fourCC("YVYU")
	VYUY = fourCC("VYUY")
	// A plane of luma and one of chroma pairs: 4:2:0, and 4:2:2.
	NV12 = fourCC("NV12")
	NV21 = fourCC("NV21")
	NV16 = fourCC("NV16")
	NV61 = fourCC("NV61")
	// Three planes: 4:2:0, and 4:2:2.
	YU12 = fourCC("YU12")
	YV12 = fourCC("YV12")
	P422 = fourCC("422P")
	// The same, each plane in memory of its own. Multi-planar devices have them:
	// NV12, NV21, NV16 and NV61, YU12, YV12, 422P and 422P with V first.
	NM12 = fourCC("NM12")
	NM21 = fourCC("NM21")
	NM16 = fourCC("NM16")
	NM61 = fourCC("NM61")
	YM12 = fourCC("YM12")
	YM21 = fourCC("YM21")
	YM16 = fourCC("YM16")
	YM61 = fourCC("YM61")
	// 24 bits: R first, and B first in memory.
	RGB3 = fourCC("RGB3")
	BGR3 = fourCC("BGR3")
	// 32 bits, by the order in memory.
	AB24 = fourCC("AB24") // R G B A: what everything is converted to
	XB24 = fourCC("XB24") // R G B x
	AR24 = fourCC("AR24") // B G R A
	XR24 = fourCC("XR24") // B G R x
	BGR4 = fourCC("BGR4") // B G R x
	BA24 = fourCC("BA24") // A R G B
	BX24 = fourCC("BX24") // x R G B
	RGB4 = fourCC("RGB4") // x R G B
	RA24 = fourCC("RA24") // A B G R
	RX24 = fourCC("RX24") // x B G R
	// Luma alone, of 8 bits; and of 10, 12 or 16 in two bytes, the low one first.
	GREY = fourCC("GREY")
	Y10  = fourCC("Y10 ")
	Y12  = fourCC("Y12 ")
	Y16  = fourCC("Y16 ")
	// One JPEG picture a frame.
	MJPG = fourCC("MJPG")
	JPEG = fourCC("JPEG")
)

// Matrix is how luma and chroma were made from red, green and blue.
type Matrix uint8

// The matrices of ITU-R BT.601, BT.709 and BT.2020.
const (
	BT601 Matrix = iota
	BT709
	BT2020
)

// MaxWidth is the widest picture, in pixels, that is converted.
const MaxWidth = 16384

// MaxMemories is over how many pieces of memory a picture may be spread.
const MaxMemories = 3

// Format describes the pictures of a source.
type Format struct {
	FourCC        FourCC
	Width, Height int // pixels
	// Strides are the bytes from one line to the next, one for each piece of
	// memory (Memories). Planes that share memory follow the first, their
	// strides derived from its own as V4L2 says. They mean nothing for JPEG.
	Strides [MaxMemories]int
	// Matrix and FullRange describe YUV formats. A JPEG says for itself.
	Matrix    Matrix
	FullRange bool
}

// layout is a family of formats that one routine converts.
type layout uint8

const (
	packed422  layout = iota // four bytes: two luma, two chroma
	semiplanar               // luma plane, plane of chroma pairs
	planar                   // luma, and two chroma planes
	rgb24
	rgb32
	grey
	grey16
	jpeg
)

// kind is what there is to know of a format. Offsets are bytes within a pixel
// or pair of pixels; of planar formats u and v say which plane comes first.
type kind struct {
	layout layout
	cost   int // to convert and to carry, relative; see Cost
	bytes  int // bytes a pixel in the first plane
	// YUV
	y, u, v int
	vshift  int  // chroma lines are 1<<vshift luma lines apart
	apart   bool // each plane is in memory of its own
	bits    int  // of luma in two bytes
	// RGB
	r, g, b int
}

var kinds = map[FourCC]kind{
	YUYV: {layout: packed422, cost: 2, bytes: 2, y: 0, u: 1, v: 3},
	YVYU: {layout: packed422, cost: 2, bytes: 2, y: 0, u: 3, v: 1},
	UYVY: {layout: packed422, cost: 2, bytes: 2, y: 1, u: 0, v: 2},
	VYUY: {layout: packed422, cost: 2, bytes: 2, y: 1, u: 2, v: 0},
	NV12: {layout: semiplanar, cost: 1, bytes: 1, u: 0, v: 1, vshift: 1},
	NV21: {layout: semiplanar, cost: 1, bytes: 1, u: 1, v: 0, vshift: 1},
	NV16: {layout: semiplanar, cost: 2, bytes: 1, u: 0, v: 1},
	NV61: {layout: semiplanar, cost: 2, bytes: 1, u: 1, v: 0},
	YU12: {layout: planar, cost: 1, bytes: 1, u: 0, v: 1, vshift: 1},
	YV12: {layout: planar, cost: 1, bytes: 1, u: 1, v: 0, vshift: 1},
	P422: {layout: planar, cost: 2, bytes: 1, u: 0, v: 1},
	NM12: {layout: semiplanar, cost: 1, bytes: 1, u: 0, v: 1, vshift: 1, apart: true},
	NM21: {layout: semiplanar, cost: 1, bytes: 1, u: 1, v: 0, vshift: 1, apart: true},
	NM16: {layout: semiplanar, cost: 2, bytes: 1, u: 0, v: 1, apart: true},
	NM61: {layout: semiplanar, cost: 2, bytes: 1, u: 1, v: 0, apart: true},
	YM12: {layout: planar, cost: 1, bytes: 1, u: 0, v: 1, vshift: 1, apart: true},
	YM21: {layout: planar, cost: 1, bytes: 1, u: 1, v: 0, vshift: 1, apart: true},
	YM16: {layout: planar, cost: 2, bytes: 1, u: 0, v: 1, apart: true},
	YM61: {layout: planar, cost: 2, bytes: 1, u: 1, v: 0, apart: true},
	RGB3: {layout: rgb24, cost: 3, bytes: 3, r: 0, g: 1, b: 2},
	BGR3: {layout: rgb24, cost: 3, bytes: 3, r: 2, g: 1, b: 0},
	AB24: {layout: rgb32, cost: 4, bytes: 4, r: 0, g: 1, b: 2},
	XB24: {layout: rgb32, cost: 4, bytes: 4, r: 0, g: 1, b: 2},
	AR24: {layout: rgb32, cost: 4, bytes: 4, r: 2, g: 1, b: 0},
	XR24: {layout: rgb32, cost: 4, bytes: 4, r: 2, g: 1, b: 0},
	BGR4: {layout: rgb32, cost: 4, bytes: 4, r: 2, g: 1, b: 0},
	BA24: {layout: rgb32, cost: 4, bytes: 4, r: 1, g: 2, b: 3},
	BX24: {layout: rgb32, cost: 4, bytes: 4, r: 1, g: 2, b: 3},
	RGB4: {layout: rgb32, cost: 4, bytes: 4, r: 1, g: 2, b: 3},
	RA24: {layout: rgb32, cost: 4, bytes: 4, r: 3, g: 2, b: 1},
	RX24: {layout: rgb32, cost: 4, bytes: 4, r: 3, g: 2, b: 1},
	MJPG: {layout: jpeg, cost: 10},
	JPEG: {layout: jpeg, cost: 10},
	// The cheapest of all, but it has no colour: only where nothing else is.
	GREY: {layout: grey, cost: 20, bytes: 1},
	Y10:  {layout: grey16, cost: 21, bytes: 2, bits: 10},
	Y12:  {layout: grey16, cost: 21, bytes: 2, bits: 12},
	Y16:  {layout: grey16, cost: 21, bytes: 2, bits: 16},
}

// Cost orders formats by what a picture of them costs to carry and convert,
// cheapest lowest; ok is false for a format that cannot be converted.
func Cost(f FourCC) (cost int, ok bool) {
	k, ok := kinds[f]
	return k.cost, ok
}

// Memories is how many pieces of memory a picture of format f lies in.
func Memories(f FourCC) int {
	k := kinds[f]
	if !k.apart {
		return 1
	}
	return k.planes()
}

// planes is how many planes a picture has.
func (k kind) planes() int {
	switch k.layout {
	case semiplanar:
		return 2
	case planar:
		return 3
	}
	return 1
}

// IsGrey reports whether f has no colour.
func IsGrey(f FourCC) bool { return f == GREY || kinds[f].layout == grey16 }

// ErrDamaged is returned for a frame that is not a whole picture: cut short, or
// not decodable. The next one may be good.
var ErrDamaged = errors.New("damaged frame")

// Converter converts pictures of one format. It is for one goroutine.
type Converter struct {
	format Format
	kind   kind
	planes [3]plane
	sizes  [MaxMemories]int // least bytes of an uncompressed frame, in each memory
	passed Passed
	// Of JPEGs: whether one had its end, and how many had none.
	ended   bool
	unended int
	decoder
}

// Passed is what a converter has done: each picture is one pass over its pixels,
// which reads a frame once and writes the picture once.
type Passed struct {
	Pictures      int
	Read, Written int64 // bytes
}

// Add adds what another converter has done.
func (p *Passed) Add(other Passed) {
	p.Pictures += other.Pictures
	p.Read += other.Read
	p.Written += other.Written
}

// Passed returns the sums since the converter was made.
func (c *Converter) Passed() Passed { return c.passed }

// plane is where a plane of an uncompressed frame is, in bytes.
type plane struct{ memory, offset, stride int }

// in is the plane's bytes of a frame, and whatever follows them.
func (p plane) in(src [][]byte) []byte { return src[p.memory][p.offset:] }

// NewConverter returns a converter for pictures of format f. Close it.
func NewConverter(f Format) (*Converter, error) {
	k, ok := kinds[f.FourCC]
	switch {
	case !ok:
		return nil, fmt.Errorf("cannot convert pixel format %v: not supported", f.FourCC)
	case f.Width < 1 || f.Height < 1 || f.Width > MaxWidth || f.Height > MaxWidth:
		return nil, fmt.Errorf("cannot convert pictures of %dx%d: the size is not within 1 to %d", f.Width, f.Height, MaxWidth)
	}
	c := &Converter{format: f, kind: k}
	if k.layout == jpeg {
		return c, c.open()
	}
	return c, c.lay()
}

// lay works out where the planes are.
func (c *Converter) lay() error {
	f, k := &c.format, &c.kind
	next := plane{} // where the next one would be in the same memory
	for i := range k.planes() {
		line, lines := f.Width*k.bytes, f.Height
		switch {
		case k.layout == packed422:
			line = (f.Width + 1) / 2 * 4
		case i > 0:
			lines = (f.Height + 1<<k.vshift - 1) >> k.vshift
			if line = (f.Width + 1) / 2; k.layout == semiplanar {
				line *= 2
			}
		}
		p := next
		switch {
		case i == 0 || k.apart:
			p = plane{memory: i, stride: f.Strides[i]}
		case i == 1 && k.layout == planar:
			p.stride /= 2
		}
		if p.stride < line {
			return fmt.Errorf("cannot convert %v of %dx%d: a line has %d bytes, the driver says %d", f.FourCC, f.Width, f.Height, line, p.stride)
		}
		c.planes[i] = p
		// The last line of the last plane may end before its padding.
		c.sizes[p.memory] = p.offset + p.stride*(lines-1) + line
		next = plane{p.memory, p.offset + p.stride*lines, p.stride}
	}
	return nil
}

// ToRGBA writes the picture src, a slice for each piece of memory, into dst as R,
// G, B, A bytes, A being 255. Lines of dst are stride bytes apart. It allocates
// nothing, unless a JPEG is decoded in Go. An incomplete or broken src is
// ErrDamaged, and dst then holds no picture.
func (c *Converter) ToRGBA(dst []byte, stride int, src ...[]byte) error {
	f := &c.format
	if stride < 4*f.Width || len(dst) < stride*(f.Height-1)+4*f.Width {
		return fmt.Errorf("cannot convert: the destination is smaller than %dx%d", f.Width, f.Height)
	}
	if want := Memories(f.FourCC); len(src) != want {
		return fmt.Errorf("cannot convert: %v lies in %d pieces of memory, not %d", f.FourCC, want, len(src))
	}
	for i, part := range src {
		if len(part) < c.sizes[i] {
			return fmt.Errorf("%w: %d of %d bytes", ErrDamaged, len(part), c.sizes[i])
		}
		c.passed.Read += int64(len(part))
	}
	c.passed.Pictures++
	c.passed.Written += int64(4 * f.Width * f.Height)
	if c.kind.layout == jpeg {
		return c.jpegToRGBA(dst, stride, src[0])
	}
	return c.rawToRGBA(dst, stride, src)
}

// unendedLimit is how many frames without an end marker, before the first with one,
// show that a camera writes none.
const unendedLimit = 8

var startMarker, endMarker = []byte{0xff, 0xd8}, []byte{0xff, 0xd9} // SOI and EOI of ITU-T T.81

// wholeJPEG says why src is no whole JPEG. Decoders fill what is missing of a frame
// cut short with grey and only warn, so this is looked at first. Behind the end there
// may be anything; and some cameras never write it, of whose frames nobody knows.
func (c *Converter) wholeJPEG(src []byte) error {
	switch {
	case !bytes.HasPrefix(src, startMarker):
		return fmt.Errorf("%w: not a JPEG", ErrDamaged)
	case bytes.Contains(src[len(startMarker):], endMarker):
		c.ended = true
	case c.ended || c.unended < unendedLimit:
		c.unended++
		return fmt.Errorf("%w: a JPEG without its end", ErrDamaged)
	}
	return nil
}
