package fakecamera

import (
	"bytes"
	"image"
	"image/color"
	"image/jpeg"

	"tatolab.com/tatolab/nodes/testpattern/pattern"
)

// content makes the frames of one format: the test pattern, composed of parts
// that were encoded before.
type content struct {
	fourcc              string // of the pictures whose planes lie together
	width, height, line int    // line: bytes of the first plane
	planes              []plane
	memories            []memory
	size                int

	bars, box, black, white []byte
	motion                  float64
	jpegs                   map[uint32][]byte
}

// plane is where a plane is in a frame, and how pairs of pixels lie in it.
type plane struct {
	offset, stride int
	pair           int // bytes of two pixels
	vshift         int // its lines are 1<<vshift lines of the picture apart
}

// memory is a piece of memory that the program maps by itself: where it is in a
// frame, how long it is, how many bytes are before the picture, and its lines.
type memory struct{ offset, size, dataOffset, stride int }

const pageSize = 4096

func pages(n int) int { return (n + pageSize - 1) &^ (pageSize - 1) }

// jpegFrames is after how many frames a JPEG stream repeats: each is encoded
// once, since that takes long.
const jpegFrames = 32

// layouts are the bytes of two pixels in the first plane.
var layouts = map[string]int{
	"YUYV": 4, "UYVY": 4, "YVYU": 4, "VYUY": 4, "NV12": 2, "NV21": 2, "NV16": 2, "YU12": 2, "YV12": 2,
	"RGB3": 6, "BGR3": 6, "XR24": 8, "AB24": 8, "RGB4": 8, "GREY": 2, "MJPG": 0,
}

// together are the formats whose planes lie apart, and what they are when not.
var together = map[string]string{"NM12": "NV12", "NM21": "NV21", "NM16": "NV16", "YM12": "YU12", "YM21": "YV12"}

func encodable(fourcc string) bool {
	_, apart := together[fourcc]
	_, ok := layouts[fourcc]
	return ok || apart
}

// newLayout says how the frames of a camera lie in memory; newContent draws their
// parts too.
func newLayout(camera *Camera, fourcc string, width, height int) *content {
	base, apart := together[fourcc]
	if !apart {
		base = fourcc
	}
	c := &content{fourcc: base, width: width, height: height}
	dataOffset := 0
	if camera.Multiplanar {
		dataOffset = camera.DataOffset
	}
	if base == "MJPG" {
		c.size = dataOffset + width*height
		c.memories = []memory{{size: c.size, dataOffset: dataOffset}}
		return c
	}
	c.line = width/2*layouts[base] + camera.Padding
	add := func(stride, pair, vshift int) {
		if apart && len(c.planes) > 0 {
			stride += 2 * camera.Padding
		}
		if apart || len(c.planes) == 0 {
			c.memories = append(c.memories, memory{pages(c.size), dataOffset, dataOffset, stride})
			c.size = pages(c.size) + dataOffset
		}
		c.planes = append(c.planes, plane{c.size, stride, pair, vshift})
		length := stride * (height >> vshift)
		c.size += length
		c.memories[len(c.memories)-1].size += length
	}
	add(c.line, layouts[base], 0)
	switch base {
	case "NV12", "NV21":
		add(c.line, 2, 1)
	case "NV16":
		add(c.line, 2, 0)
	case "YU12", "YV12":
		add(c.line/2, 1, 1)
		add(c.line/2, 1, 1)
	}
	return c
}

func newContent(camera *Camera, fourcc string, width, height int) *content {
	c := newLayout(camera, fourcc, width, height)
	c.motion = camera.Motion
	if fourcc == "MJPG" {
		c.jpegs = map[uint32][]byte{}
		return c
	}
	rgba := make([]byte, 4*width*height)
	fill := func(v byte) []byte {
		for i := range rgba {
			rgba[i] = v
		}
		return c.encode(rgba)
	}
	pattern.Bars(rgba, 4*width, width, height)
	c.bars = c.encode(rgba)
	pattern.Stripes(rgba, 4*width, pattern.Box(width, height))
	c.box = c.encode(rgba)
	c.black, c.white = fill(0), fill(255)
	return c
}

// frame writes frame n, which stands for so many seconds, and returns its
// length.
func (c *content) frame(dst []byte, n uint32, seconds float64) int {
	if c.fourcc == "MJPG" {
		n %= jpegFrames
		if c.jpegs[n] == nil {
			c.jpegs[n] = c.encodeJPEG(n)
		}
		offset := c.memories[0].dataOffset
		return offset + copy(dst[offset:], c.jpegs[n])
	}
	copy(dst, c.bars)
	if c.motion > 0 {
		at := pattern.BoxAt(c.width, c.height, pattern.Moved(seconds, c.motion))
		c.copyRect(dst, at, c.box, image.Rectangle{Max: pattern.Box(c.width, c.height)})
	}
	pattern.Squares(c.width, c.height, n, func(r image.Rectangle, white bool) {
		from := c.black
		if white {
			from = c.white
		}
		c.copyRect(dst, r.Min, from, r)
	})
	return c.size
}

// copyRect copies a rectangle of even corners in all planes.
func (c *content) copyRect(dst []byte, to image.Point, src []byte, r image.Rectangle) {
	for _, p := range c.planes {
		for y := 0; y < r.Dy(); y += 1 << p.vshift {
			d := dst[p.offset+(to.Y+y)>>p.vshift*p.stride+to.X/2*p.pair:]
			s := src[p.offset+(r.Min.Y+y)>>p.vshift*p.stride:]
			copy(d[:r.Dx()/2*p.pair], s[r.Min.X/2*p.pair:])
		}
	}
}

// encode makes a frame of RGBA: BT.601 in limited range where it is YUV, in full
// range where it is grey.
func (c *content) encode(rgba []byte) []byte {
	out := make([]byte, c.size)
	yuv := func(x, y int) (byte, byte, byte) {
		p := rgba[4*(y*c.width+x):]
		r, g, b := int(p[0]), int(p[1]), int(p[2])
		return byte((66*r+129*g+25*b+128)>>8 + 16), byte((-38*r-74*g+112*b+128)>>8 + 128), byte((112*r-94*g-18*b+128)>>8 + 128)
	}
	for y := range c.height {
		for x := 0; x < c.width; x += 2 {
			line := out[c.planes[0].offset+y*c.line+x/2*layouts[c.fourcc]:]
			y0, u, v := yuv(x, y)
			y1, _, _ := yuv(x+1, y)
			chroma := func(i int) []byte {
				p := c.planes[i]
				return out[p.offset+y>>p.vshift*p.stride+x/2*p.pair:]
			}
			switch c.fourcc {
			case "YUYV":
				copy(line, []byte{y0, u, y1, v})
			case "YVYU":
				copy(line, []byte{y0, v, y1, u})
			case "UYVY":
				copy(line, []byte{u, y0, v, y1})
			case "VYUY":
				copy(line, []byte{v, y0, u, y1})
			case "NV12", "NV16":
				copy(line, []byte{y0, y1})
				copy(chroma(1), []byte{u, v})
			case "NV21":
				copy(line, []byte{y0, y1})
				copy(chroma(1), []byte{v, u})
			case "YU12":
				copy(line, []byte{y0, y1})
				chroma(1)[0], chroma(2)[0] = u, v
			case "YV12":
				copy(line, []byte{y0, y1})
				chroma(1)[0], chroma(2)[0] = v, u
			case "GREY":
				copy(line, []byte{full(y0), full(y1)})
			default:
				for i := range 2 {
					p := rgba[4*(y*c.width+x+i):]
					switch c.fourcc {
					case "RGB3":
						copy(line[3*i:], p[:3])
					case "BGR3":
						copy(line[3*i:], []byte{p[2], p[1], p[0]})
					case "XR24":
						copy(line[4*i:], []byte{p[2], p[1], p[0], 0})
					case "AB24":
						copy(line[4*i:], []byte{p[0], p[1], p[2], 255})
					case "RGB4":
						copy(line[4*i:], []byte{0, p[0], p[1], p[2]})
					}
				}
			}
		}
	}
	return out
}

// full makes luma of limited range such of full range.
func full(y byte) byte { return byte(min(255, (max(0, int(y)-16)*255+109)/219)) }

// encodeJPEG makes JPEG frame n, as cameras do without Huffman tables.
func (c *content) encodeJPEG(n uint32) []byte {
	picture := image.NewRGBA(image.Rect(0, 0, c.width, c.height))
	pattern.Bars(picture.Pix, picture.Stride, c.width, c.height)
	pattern.Squares(c.width, c.height, n, func(r image.Rectangle, white bool) {
		colour := color.RGBA{A: 255}
		if white {
			colour = color.RGBA{255, 255, 255, 255}
		}
		for y := r.Min.Y; y < r.Max.Y; y++ {
			for x := r.Min.X; x < r.Max.X; x++ {
				picture.SetRGBA(x, y, colour)
			}
		}
	})
	var b bytes.Buffer
	if err := jpeg.Encode(&b, picture, &jpeg.Options{Quality: 90}); err != nil {
		panic(err) // writing to memory
	}
	data := b.Bytes()
	tables := bytes.Index(data, []byte{0xff, 0xc4})
	return append(data[:tables:tables], data[tables+2+int(data[tables+2])<<8+int(data[tables+3]):]...)
}
