package pixel

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	stdjpeg "image/jpeg"
	"io"
	"slices"
	"sync"
)

// The conversions in Go. They are the only ones of a purego build, and what
// the tests compare the others with.

// coefficients turn YUV into RGB, in units of 1/65536.
type coefficients struct{ luma, offset, rv, gu, gv, bu int32 }

// coefficientsOf derives the numbers from the matrix's weights of red and blue
// (ITU-R BT.601-7 2.5, BT.709-6 3, BT.2020-2 table 4).
func coefficientsOf(m Matrix, full bool) coefficients {
	kr, kb := 0.299, 0.114
	switch m {
	case BT709:
		kr, kb = 0.2126, 0.0722
	case BT2020:
		kr, kb = 0.2627, 0.0593
	}
	luma, chroma, offset := 255.0/219, 255.0/224, int32(16)
	if full {
		luma, chroma, offset = 1, 1, 0
	}
	kg := 1 - kr - kb
	fixed := func(x float64) int32 { return int32(x*65536 + 0.5) }
	return coefficients{
		luma: fixed(luma), offset: offset,
		rv: fixed(2 * (1 - kr) * chroma),
		gu: fixed(2 * (1 - kb) * kb / kg * chroma),
		gv: fixed(2 * (1 - kr) * kr / kg * chroma),
		bu: fixed(2 * (1 - kb) * chroma),
	}
}

func clamp(x int32) byte {
	switch x >>= 16; {
	case x < 0:
		return 0
	case x > 255:
		return 255
	}
	return byte(x)
}

// yuvLine converts width pixels whose luma bytes are yStep apart and whose
// chroma bytes, one for two pixels, are cStep apart.
func (k *coefficients) yuvLine(dst, y []byte, yStep int, u, v []byte, cStep, width int) {
	for x := 0; x < width; x += 2 {
		cb, cr := int32(u[x/2*cStep])-128, int32(v[x/2*cStep])-128
		r, g, b := k.rv*cr+1<<15, 1<<15-k.gu*cb-k.gv*cr, k.bu*cb+1<<15
		for i := x; i < min(x+2, width); i++ {
			l := k.luma * (int32(y[i*yStep]) - k.offset)
			d := dst[4*i : 4*i+4 : 4*i+4]
			d[0], d[1], d[2], d[3] = clamp(l+r), clamp(l+g), clamp(l+b), 255
		}
	}
}

// goRawToRGBA converts an uncompressed frame. Lengths have been checked.
func (c *Converter) goRawToRGBA(dst []byte, stride int, src [][]byte) {
	f, k := &c.format, &c.kind
	yuv := coefficientsOf(f.Matrix, f.FullRange)
	chroma := func(i, row int) []byte {
		p := &c.planes[i]
		return p.in(src)[(row>>k.vshift)*p.stride:]
	}
	for row := range f.Height {
		out := dst[row*stride:]
		line := c.planes[0].in(src)[row*c.planes[0].stride:]
		switch k.layout {
		case packed422:
			yuv.yuvLine(out, line[k.y:], 2, line[k.u:], line[k.v:], 4, f.Width)
		case semiplanar:
			uv := chroma(1, row)
			yuv.yuvLine(out, line, 1, uv[k.u:], uv[k.v:], 2, f.Width)
		case planar:
			yuv.yuvLine(out, line, 1, chroma(1+k.u, row), chroma(1+k.v, row), 1, f.Width)
		case rgb24, rgb32:
			for x := range f.Width {
				s, d := line[x*k.bytes:x*k.bytes+k.bytes], out[4*x:4*x+4:4*x+4]
				d[0], d[1], d[2], d[3] = s[k.r], s[k.g], s[k.b], 255
			}
		case grey, grey16:
			for x := range f.Width {
				y := int32(line[x*k.bytes])
				if k.layout == grey16 {
					y = min(255, (y|int32(line[2*x+1])<<8)>>(k.bits-8))
				}
				l := clamp(yuv.luma*(y-yuv.offset) + 1<<15)
				d := out[4*x : 4*x+4 : 4*x+4]
				d[0], d[1], d[2], d[3] = l, l, l, 255
			}
		}
	}
}

// goJPEGToRGBA decodes a JPEG frame with the standard library.
func (c *Converter) goJPEGToRGBA(dst []byte, stride int, src []byte) error {
	if err := c.wholeJPEG(src); err != nil {
		return err
	}
	picture, err := stdjpeg.Decode(io.MultiReader(bytes.NewReader(withHuffmanTables(src)), bytes.NewReader(endMarker)))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if size := picture.Bounds().Size(); size != image.Pt(c.format.Width, c.format.Height) {
		return fmt.Errorf("%w: a JPEG of %dx%d in a stream of %dx%d", ErrDamaged, size.X, size.Y, c.format.Width, c.format.Height)
	}
	for y := range c.format.Height {
		for x := range c.format.Width {
			d := dst[y*stride+4*x:][:4:4]
			p := color.RGBAModel.Convert(picture.At(x, y)).(color.RGBA)
			d[0], d[1], d[2], d[3] = p.R, p.G, p.B, 255
		}
	}
	return nil
}

// withHuffmanTables adds the tables of ITU-T T.81 annex K.3 to a JPEG without
// any: cameras leave them out of Motion JPEG, and image/jpeg wants them.
func withHuffmanTables(src []byte) []byte {
	for i := 2; i+4 <= len(src) && src[i] == 0xff; {
		marker, length := src[i+1], int(src[i+2])<<8|int(src[i+3])
		switch marker {
		case 0xc4: // DHT: it has its own
			return src
		case 0xda: // SOS: the picture begins
			return slices.Concat(src[:i], huffmanTables(), src[i:])
		}
		i += 2 + length
	}
	return src
}

// huffmanTables are the DHT segment of annex K.3. The standard library's
// encoder writes exactly these, so they are taken from a picture of its making.
var huffmanTables = sync.OnceValue(func() []byte {
	var b bytes.Buffer
	if err := stdjpeg.Encode(&b, image.NewYCbCr(image.Rect(0, 0, 8, 8), image.YCbCrSubsampleRatio420), nil); err != nil {
		panic(err) // writing to memory
	}
	data := b.Bytes()
	start := bytes.Index(data, []byte{0xff, 0xc4})
	return data[start : start+2+int(data[start+2])<<8+int(data[start+3])]
})
