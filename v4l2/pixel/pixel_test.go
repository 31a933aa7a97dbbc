package pixel

import (
	"bytes"
	"errors"
	"image"
	"image/color"
	stdjpeg "image/jpeg"
	"math/rand/v2"
	"sort"
	"testing"
)

// White, black and the primaries of each matrix and range, as the
// recommendations give them (rounded to 8 bits).
func TestReferenceColours(t *testing.T) {
	type yuv struct{ y, u, v byte }
	for _, test := range []struct {
		name   string
		matrix Matrix
		full   bool
		in     yuv
		want   [3]int
	}{
		{"601 white", BT601, false, yuv{235, 128, 128}, [3]int{255, 255, 255}},
		{"601 black", BT601, false, yuv{16, 128, 128}, [3]int{0, 0, 0}},
		{"601 red", BT601, false, yuv{81, 90, 240}, [3]int{255, 0, 0}},
		{"601 green", BT601, false, yuv{145, 54, 34}, [3]int{0, 255, 0}},
		{"601 blue", BT601, false, yuv{41, 240, 110}, [3]int{0, 0, 255}},
		{"601 full red", BT601, true, yuv{76, 85, 255}, [3]int{255, 0, 0}},
		{"601 full grey", BT601, true, yuv{77, 128, 128}, [3]int{77, 77, 77}},
		{"601 full white", BT601, true, yuv{255, 128, 128}, [3]int{255, 255, 255}},
		{"709 red", BT709, false, yuv{63, 102, 240}, [3]int{255, 0, 0}},
		{"709 green", BT709, false, yuv{173, 42, 26}, [3]int{0, 255, 0}},
		{"709 blue", BT709, false, yuv{32, 240, 118}, [3]int{0, 0, 255}},
		{"709 full blue", BT709, true, yuv{18, 255, 116}, [3]int{0, 0, 255}},
		{"2020 red", BT2020, false, yuv{74, 97, 240}, [3]int{255, 0, 0}},
		{"2020 green", BT2020, false, yuv{164, 47, 25}, [3]int{0, 255, 0}},
	} {
		for _, order := range []struct {
			f              FourCC
			y0, u, y1, v   int
			planar, chroma bool
		}{{f: YUYV, y0: 0, u: 1, y1: 2, v: 3}, {f: UYVY, y0: 1, u: 0, y1: 3, v: 2}, {f: YVYU, y0: 0, u: 3, y1: 2, v: 1}, {f: VYUY, y0: 1, u: 2, y1: 3, v: 0}} {
			src := make([]byte, 64)
			for i := 0; i < len(src); i += 4 {
				src[i+order.y0], src[i+order.u], src[i+order.y1], src[i+order.v] = test.in.y, test.in.u, test.in.y, test.in.v
			}
			got := convert(t, Format{FourCC: order.f, Width: 32, Height: 1, Strides: lines(64), Matrix: test.matrix, FullRange: test.full}, src)
			for i, want := range test.want {
				if d := int(got[i]) - want; max(d, -d) > tolerance(test.matrix, test.full, i, 3) {
					t.Errorf("%s as %v: %v, want %v", test.name, order.f, got[:3], test.want)
					break
				}
			}
			if got[3] != 255 {
				t.Errorf("%s as %v: alpha %d", test.name, order.f, got[3])
			}
		}
	}
}

// tolerance is how far apart two conversions of one colour may be: inputs are
// rounded to 8 bits and libyuv's numbers to 6, and see convert.c about blue.
func tolerance(m Matrix, full bool, channel, rounding int) int {
	if m != BT601 && !full && channel == 2 {
		return 19
	}
	return rounding
}

// lines are strides of n bytes in every memory.
func lines(n int) [MaxMemories]int { return [MaxMemories]int{n, n, n} }

func convert(t *testing.T, f Format, src []byte) []byte {
	t.Helper()
	c, err := NewConverter(f)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	dst := make([]byte, 4*f.Width*f.Height)
	if err := c.ToRGBA(dst, 4*f.Width, src); err != nil {
		t.Fatal(err)
	}
	return dst
}

// The fast conversions and those in Go agree, for each format, for sizes that
// are no multiple of anything, with lines padded on both sides, and nothing
// outside the picture is written.
func TestFastAgreesWithGo(t *testing.T) {
	var formats []FourCC
	for f, k := range kinds {
		if k.layout != jpeg {
			formats = append(formats, f)
		}
	}
	sort.Slice(formats, func(i, j int) bool { return formats[i] < formats[j] })
	random := rand.New(rand.NewPCG(1, 2))
	for _, f := range formats {
		for _, size := range []image.Point{{64, 8}, {33, 7}, {2, 2}, {1, 1}, {638, 3}} {
			for _, matrix := range []Matrix{BT601, BT709, BT2020} {
				full := random.IntN(2) == 0
				stride := (size.X+1)*max(kinds[f].bytes, 2)/4*4 + 16
				format := Format{FourCC: f, Width: size.X, Height: size.Y, Strides: [...]int{stride, stride + 8, stride + 4}, Matrix: matrix, FullRange: full}
				c, err := NewConverter(format)
				if err != nil {
					t.Fatal(err)
				}
				src := make([][]byte, Memories(f))
				for m := range src {
					src[m] = make([]byte, c.sizes[m]) // exactly: an access beyond is found by the race detector or a crash
					for i := range src[m] {
						src[m][i] = byte(random.Uint32())
					}
				}
				stride = 4*size.X + 12
				fast, slow := bytes.Repeat([]byte{0xa5}, stride*size.Y), bytes.Repeat([]byte{0xa5}, stride*size.Y)
				if err := c.ToRGBA(fast, stride, src...); err != nil {
					t.Fatal(err)
				}
				c.goRawToRGBA(slow, stride, src)
				for i := range fast {
					d := int(fast[i]) - int(slow[i])
					if inside := i%stride < 4*size.X; inside && max(d, -d) > tolerance(matrix, full, i%stride%4, 4) || !inside && fast[i] != 0xa5 {
						t.Fatalf("%v %v matrix %d full %v: byte %d of line %d is %d, in Go %d", f, size, matrix, full, i%stride, i/stride, fast[i], slow[i])
					}
				}
				c.Close()
			}
		}
	}
}

// A picture whose planes lie apart is the one of the same planes in one memory.
func TestPlanesApart(t *testing.T) {
	const width, height, stride = 38, 6, 48
	random := rand.New(rand.NewPCG(3, 4))
	for apart, whole := range map[FourCC]FourCC{NM12: NV12, NM21: NV21, NM16: NV16, NM61: NV61, YM12: YU12, YM21: YV12, YM16: P422} {
		one, err := NewConverter(Format{FourCC: whole, Width: width, Height: height, Strides: lines(stride)})
		if err != nil {
			t.Fatal(err)
		}
		defer one.Close()
		src := make([]byte, one.sizes[0])
		for i := range src {
			src[i] = byte(random.Uint32())
		}
		// Each plane is copied line by line into memory with lines of its own length.
		var strides [MaxMemories]int
		var parts [][]byte
		for i := range kinds[whole].planes() {
			p := one.planes[i]
			strides[i] = p.stride + 10*(i+1)
			var part []byte
			for at, end := p.offset, one.end(i); at < end; at += p.stride {
				part = append(part, src[at:min(at+p.stride, len(src))]...)
				part = append(part, make([]byte, strides[i]-p.stride)...)
			}
			parts = append(parts, part)
		}
		other, err := NewConverter(Format{FourCC: apart, Width: width, Height: height, Strides: strides})
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		want, got := make([]byte, 4*width*height), make([]byte, 4*width*height)
		if err := errors.Join(one.ToRGBA(want, 4*width, src), other.ToRGBA(got, 4*width, parts...)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%v is not the picture of %v", apart, whole)
		}
		parts[len(parts)-1] = parts[len(parts)-1][:other.sizes[len(parts)-1]-1]
		if err := other.ToRGBA(got, 4*width, parts...); !errors.Is(err, ErrDamaged) {
			t.Errorf("%v with a plane cut short: %v", apart, err)
		}
		if err := other.ToRGBA(got, 4*width, src); err == nil || errors.Is(err, ErrDamaged) {
			t.Errorf("%v in one memory: %v", apart, err)
		}
	}
}

// end is where plane i of a frame in one memory ends.
func (c *Converter) end(i int) int {
	if i+1 < c.kind.planes() {
		return c.planes[i+1].offset
	}
	return c.sizes[0]
}

func testJPEG(t testing.TB, w, h int) []byte {
	m := image.NewRGBA(image.Rect(0, 0, w, h))
	for y := range h {
		for x := range w {
			m.SetRGBA(x, y, color.RGBA{byte(x * 255 / w), byte(y * 255 / h), 128, 255})
		}
	}
	var b bytes.Buffer
	if err := stdjpeg.Encode(&b, m, &stdjpeg.Options{Quality: 95}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// A JPEG, one without Huffman tables as cameras send them, and one with bytes
// after its end give the picture; what is broken gives ErrDamaged.
func TestJPEG(t *testing.T) {
	const w, h = 160, 96
	whole := testJPEG(t, w, h)
	start := bytes.Index(whole, []byte{0xff, 0xc4})
	length := 2 + int(whole[start+2])<<8 + int(whole[start+3])
	bare := append(bytes.Clone(whole[:start]), whole[start+length:]...)
	padded := append(bytes.Clone(whole), make([]byte, 5000)...)
	cut := whole[:len(whole)*2/3]
	wrongSize := testJPEG(t, w+16, h)
	rubbish := bytes.Repeat([]byte{0xff, 0xd8, 0xff, 0xd9}, 100)

	for _, way := range []string{"fast", "go"} {
		for name, src := range map[string][]byte{"whole": whole, "without tables": bare, "padded": padded,
			"cut": cut, "wrong size": wrongSize, "rubbish": rubbish, "empty": nil} {
			t.Run(way+" "+name, func(t *testing.T) {
				c, err := NewConverter(Format{FourCC: MJPG, Width: w, Height: h})
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				dst := make([]byte, 4*w*h)
				if way == "fast" {
					err = c.ToRGBA(dst, 4*w, src)
				} else {
					err = c.goJPEGToRGBA(dst, 4*w, src)
				}
				if name == "cut" || name == "wrong size" || name == "rubbish" || name == "empty" {
					if !errors.Is(err, ErrDamaged) {
						t.Fatalf("got %v, want ErrDamaged", err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				for y := 0; y < h; y += 7 {
					for x := 0; x < w; x += 7 {
						got, want := dst[4*(y*w+x):], [4]int{x * 255 / w, y * 255 / h, 128, 255}
						for i := range want {
							if d := int(got[i]) - want[i]; d < -8 || d > 8 {
								t.Fatalf("pixel %d,%d is %v, want about %v", x, y, got[:4], want)
							}
						}
					}
				}
			})
		}
	}
}

// A camera that never writes the end of a JPEG is seen for one; of others a frame
// without it is cut short.
func TestJPEGWithoutEnd(t *testing.T) {
	const w, h = 160, 96
	whole := testJPEG(t, w, h)
	open := whole[:len(whole)-2]
	stale := append(bytes.Clone(whole), bytes.Repeat([]byte{1}, 5000)...)
	for _, way := range []string{"fast", "go"} {
		for name, first := range map[string][]byte{"never": nil, "once": whole, "once, with remains behind": stale} {
			t.Run(way+" "+name, func(t *testing.T) {
				c, err := NewConverter(Format{FourCC: MJPG, Width: w, Height: h})
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				convert := func(src []byte) error {
					dst := make([]byte, 4*w*h)
					if way == "go" {
						return c.goJPEGToRGBA(dst, 4*w, src)
					}
					return c.ToRGBA(dst, 4*w, src)
				}
				if first != nil {
					if err := convert(first); err != nil {
						t.Fatal(err)
					}
				}
				for range unendedLimit {
					if err := convert(open); !errors.Is(err, ErrDamaged) {
						t.Fatalf("got %v, want ErrDamaged", err)
					}
				}
				if err := convert(open); errors.Is(err, ErrDamaged) != (first != nil) {
					t.Errorf("after %d without an end: %v", unendedLimit, err)
				}
			})
		}
	}
}

func TestRefusals(t *testing.T) {
	for _, f := range []Format{
		{FourCC: fourCC("H264"), Width: 640, Height: 480},
		{FourCC: YUYV, Width: 640, Height: 480, Strides: lines(640)},
		{FourCC: YUYV, Width: MaxWidth + 1, Height: 1, Strides: lines(1 << 20)},
		{FourCC: YUYV, Width: 0, Height: 1, Strides: lines(1 << 20)},
	} {
		if _, err := NewConverter(f); err == nil {
			t.Errorf("%+v was accepted", f)
		}
	}
	c, err := NewConverter(Format{FourCC: YUYV, Width: 4, Height: 2, Strides: lines(8)})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.ToRGBA(make([]byte, 32), 16, make([]byte, 15)); !errors.Is(err, ErrDamaged) {
		t.Errorf("a short frame: %v", err)
	}
	if err := c.ToRGBA(make([]byte, 31), 16, make([]byte, 16)); err == nil || errors.Is(err, ErrDamaged) {
		t.Errorf("a short destination: %v", err)
	}
}

func TestNoAllocations(t *testing.T) {
	raw := make([]byte, 640*480*4)
	picture := testJPEG(t, 640, 480)
	for f := range kinds {
		c, err := NewConverter(Format{FourCC: f, Width: 640, Height: 480, Strides: lines(640 * max(1, kinds[f].bytes))})
		if err != nil {
			t.Fatal(err)
		}
		src, dst := [][]byte{raw, raw, raw}[:Memories(f)], make([]byte, 640*480*4)
		if kinds[f].layout == jpeg {
			if _, pure := any(&c.decoder).(interface{ pure() }); pure {
				continue // the standard library allocates
			}
			src[0] = picture
		}
		if n := testing.AllocsPerRun(50, func() {
			if err := c.ToRGBA(dst, 640*4, src...); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%v: %v allocations a frame", f, n)
		}
		c.Close()
	}
}

// To YUYV and back by this package's own converter, which other tests hold to the
// standard; and the two implementations beside each other.
func TestToYUYV(t *testing.T) {
	const width, height, padding = 38, 5, 12
	const stride = 4*width + padding
	src := make([]byte, stride*height)
	for i := range src {
		x, y := i%stride/8, i/stride // pairs of pixels of one colour
		src[i] = byte(x*53 + y*31 + i%4*97)
	}
	yuyv, other := make([]byte, 2*width*height), make([]byte, 2*width*height)
	if n := testing.AllocsPerRun(50, func() { RGBAToYUYV(yuyv, src, stride, width, height) }); n != 0 {
		t.Errorf("%v allocations a picture", n)
	}
	goRGBAToYUYV(other, src, stride, width, height)
	for i := range yuyv {
		if d := int(yuyv[i]) - int(other[i]); d < -1 || d > 1 {
			t.Fatalf("byte %d is %d, in Go %d", i, yuyv[i], other[i])
		}
	}
	c, err := NewConverter(Format{FourCC: YUYV, Width: width, Height: height, Strides: lines(2 * width)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	back := make([]byte, 4*width*height)
	if err := c.ToRGBA(back, 4*width, yuyv); err != nil {
		t.Fatal(err)
	}
	for i, got := range back {
		if want := src[i/(4*width)*stride+i%(4*width)]; i%4 != 3 && (int(got)-int(want) < -4 || int(got)-int(want) > 4) {
			t.Fatalf("byte %d is %d, was %d", i, got, want)
		}
	}
}
