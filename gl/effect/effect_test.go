package effect

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"tatolab.com/tatolab/gl/offscreen"
	"tatolab.com/tatolab/gl/shader"
)

// inGL runs test with an off-screen context.
func inGL(t *testing.T, test func(t *testing.T, c *Canvas)) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	context, err := offscreen.Open()
	if err != nil {
		t.Fatalf("%v\nthese tests need EGL and a driver: apt install libegl1 libgl1-mesa-dri", err)
	}
	defer context.Close()
	c := NewCanvas()
	defer c.Close()
	test(t, c)
}

// gradient is a picture in which every pixel differs from its neighbours.
func gradient(width, height, stride int) []byte {
	pixels := make([]byte, stride*height)
	for y := range height {
		for x := range width {
			p := pixels[y*stride+4*x:]
			p[0], p[1], p[2], p[3] = byte(x), byte(y), byte(x+y), byte(255-x)
		}
	}
	return pixels
}

func mustCompile(t *testing.T, source string, dials ...Dial) *Program {
	t.Helper()
	p, err := Compile(source, dials)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// run draws source through p and returns what is read back, rows packed.
func run(t *testing.T, c *Canvas, p *Program, pixels []byte, stride, width, height int, values Values, elapsed float64) []byte {
	t.Helper()
	source, err := c.Upload(pixels, stride, width, height)
	if err != nil {
		t.Fatal(err)
	}
	result, err := c.Apply(p, source, values, elapsed)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]byte, 4*width*height)
	if err := c.Read(result, out, 4*width); err != nil {
		t.Fatal(err)
	}
	c.Recycle(source)
	c.Recycle(result)
	return out
}

func TestPixels(t *testing.T) {
	inGL(t, func(t *testing.T, c *Canvas) {
		type rgba = [4]byte
		const w, h, stride = 60, 37, 256
		pixels := gradient(w, h, stride)
		at := func(x, y int) rgba { return rgba(pixels[y*stride+4*x:]) }
		clamp := func(v, n int) int { return max(0, min(v, n-1)) }
		for name, test := range map[string]struct {
			source  string
			dials   []Dial
			values  Values
			elapsed float64
			want    func(x, y int) rgba
		}{
			"same": {source: "vec4 effect(vec4 source, ivec2 at) { return source; }", want: at},
			"inverted": {
				source: "vec4 effect(vec4 source, ivec2 at) { return vec4(1.0 - source.rgb, source.a); }",
				want: func(x, y int) rgba {
					p := at(x, y)
					return rgba{255 - p[0], 255 - p[1], 255 - p[2], p[3]}
				},
			},
			"mirrored by the extent": {
				source: "vec4 effect(vec4 s, ivec2 at) { return streamlib_source_at(ivec2(streamlib_extent.x - 1 - at.x, at.y)); }",
				want:   func(x, y int) rgba { return at(w-1-x, y) },
			},
			"clamped at the edges": {
				source: "vec4 effect(vec4 s, ivec2 at) { return streamlib_source_at(at + ivec2(9, -9)); }",
				want:   func(x, y int) rgba { return at(clamp(x+9, w), clamp(y-9, h)) },
			},
			"by uv": {
				source: "vec4 effect(vec4 s, ivec2 at) { return streamlib_source_uv((vec2(at) + 0.5) / vec2(streamlib_extent)); }",
				want:   at,
			},
			"dials of all types, and time": {
				source: `vec4 effect(vec4 s, ivec2 at) {
					return vec4(dials.a * streamlib_elapsed_seconds, float(dials.b) / 255.0, dials.c.y, dials.d.w) / 1.0;
				}`,
				dials:   []Dial{{"a", "float"}, {"b", "int"}, {"c", "vec2"}, {"d", "vec4"}, {"unused", "float"}},
				values:  Values{"a": {0.1}, "b": {77}, "c": {0, 0.2}, "d": {0, 0, 0, 0.6}, "unused": {1}},
				elapsed: 4,
				want:    func(x, y int) rgba { return rgba{102, 77, 51, 153} },
			},
			"ends in a comment": {source: "vec4 effect(vec4 source, ivec2 at) { return source; } // done", want: at},
		} {
			// No subtests: they run on threads of their own.
			p := mustCompile(t, test.source, test.dials...)
			out := run(t, c, p, pixels, stride, w, h, test.values, test.elapsed)
			p.Delete()
			for i := range w * h {
				x, y := i%w, i/w
				if got, want := rgba(out[4*i:]), test.want(x, y); got != want {
					t.Errorf("%s: pixel (%d,%d): %v, want %v", name, x, y, got, want)
					break
				}
			}
		}
	})
}

func TestMistakesNameTheUsersLine(t *testing.T) {
	inGL(t, func(t *testing.T, c *Canvas) {
		for name, test := range map[string]struct {
			source string
			dials  []Dial
			want   []string
		}{
			"unknown function": {
				source: "vec4 effect(vec4 source, ivec2 at) {\n\tvec4 moved = source;\n\treturn no_such_function(moved);\n}\n",
				want:   []string{"line 3: ", "no_such_function", " return no_such_function(moved);"},
			},
			"unknown dial": {
				source: "\n\nvec4 effect(vec4 source, ivec2 at) { return source * dials.speed; }",
				dials:  []Dial{{"strength", "float"}, {"other", "vec2"}},
				want:   []string{"line 3: ", "speed", "return source * dials.speed"},
			},
			"no effect":         {source: "vec4 shade(vec4 s) { return s; }", want: []string{"effect", signature}},
			"only declared":     {source: "vec4 effect(vec4 source, ivec2 at);", want: []string{"effect"}},
			"other signature":   {source: "float effect(float a) { return a; }", want: []string{"effect", signature}},
			"brace not closed":  {source: "vec4 effect(vec4 source, ivec2 at) { return source;\n", want: []string{signature}},
			"empty":             {source: "", want: []string{signature}},
			"main of their own": {source: "vec4 effect(vec4 s, ivec2 a) { return s; }\nvoid main() {}", want: []string{"main"}},
			"dial of no type":   {source: "", dials: []Dial{{"tint", "vec3"}}, want: []string{"tint", "vec3", "vec4"}},
		} {
			p, err := Compile(test.source, test.dials)
			if err == nil {
				p.Delete()
				t.Errorf("%s: it compiled", name)
				continue
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%s: %q is not in:\n%v", name, want, err)
				}
			}
			t.Logf("%s:\n%v", name, err)
		}
		// Nothing is left that hurts the next.
		p := mustCompile(t, "vec4 effect(vec4 source, ivec2 at) { return source; }")
		if err := c.Warm(p); err != nil {
			t.Fatal(err)
		}
	})
}

func TestExplainReadsOtherDrivers(t *testing.T) {
	const source = "one\ntwo\nthree"
	for log, want := range map[string]string{
		"0:12(2): error: `x' undeclared":  "line 2: error: `x' undeclared\n    two\n     ^",
		"0(13) : error C1008: undefined":  "line 3: error C1008: undefined\n    three",
		"0:12(99): error: far":            "line 2: error: far",
		"error: unresolved reference to ": "error: unresolved reference to",
	} {
		if got := explain(log, source, 10); !strings.HasPrefix(got, want) {
			t.Errorf("%q became\n%s\nwant\n%s", log, got, want)
		}
	}
}

func TestSizes(t *testing.T) {
	inGL(t, func(t *testing.T, c *Canvas) {
		invert := mustCompile(t, "vec4 effect(vec4 source, ivec2 at) { return vec4(1.0 - source.rgb, source.a); }")
		out := run(t, c, invert, []byte{1, 2, 3, 4}, 4, 1, 1, nil, 0)
		if [4]byte(out) != [4]byte{254, 253, 252, 4} {
			t.Errorf("1×1 became %v", out)
		}
		const big = 8192
		pixels := make([]byte, 4*big*big)
		copy(pixels[len(pixels)-4:], []byte{9, 8, 7, 6})
		out = run(t, c, invert, pixels, 4*big, big, big, nil, 0)
		if [4]byte(out[len(out)-4:]) != [4]byte{246, 247, 248, 6} || [4]byte(out) != [4]byte{255, 255, 255, 0} {
			t.Errorf("8192×8192 ends in %v and begins with %v", out[len(out)-4:], out[:4])
		}
		for _, size := range [][2]int{{0, 5}, {5, -1}, {c.max + 1, 1}} {
			if _, err := c.Upload(make([]byte, 4*(c.max+1)), 4*(c.max+1), size[0], size[1]); err == nil {
				t.Errorf("%v was taken", size)
			}
		}
		texture, err := c.Texture(10, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range []struct{ size, stride int }{{399, 40}, {4000, 39}, {4000, 42}, {409, 41}, {0, 40}, {400, 0}, {4000, 1 << 62}} {
			if err := c.Read(texture, make([]byte, bad.size), bad.stride); err == nil {
				t.Errorf("%d bytes with rows of %d were taken for 10×10", bad.size, bad.stride)
			}
		}
	})
}

// TestTexturesAreUsedAgain holds that a running effect allocates nothing in
// OpenGL, also when the size changes now and then.
func TestTexturesAreUsedAgain(t *testing.T) {
	inGL(t, func(t *testing.T, c *Canvas) {
		p := mustCompile(t, "vec4 effect(vec4 source, ivec2 at) { return source; }")
		seen := map[uint32]bool{}
		for i := range 100 {
			side := 16 + i/50
			a, err := c.Upload(make([]byte, 4*side*side), 4*side, side, side)
			if err != nil {
				t.Fatal(err)
			}
			b, err := c.Apply(p, a, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			seen[a.ID], seen[b.ID] = true, true
			c.Recycle(a)
			c.Recycle(b)
		}
		if len(seen) > 4 {
			t.Errorf("%d textures were made for two sizes", len(seen))
		}
		for range 100 {
			c.Recycle(must(shader.NewTexture(4, 4)))
		}
		if len(c.spare) > maxSpare {
			t.Errorf("%d spare textures are kept", len(c.spare))
		}
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// BenchmarkInvert720p is the bare cost of one effect: what the helper's and
// Python's share is compared with.
func BenchmarkInvert720p(b *testing.B) {
	runtime.LockOSThread()
	context, err := offscreen.Open()
	if err != nil {
		b.Fatal(err)
	}
	defer context.Close()
	c := NewCanvas()
	p := must(Compile("vec4 effect(vec4 source, ivec2 at) { return vec4(1.0 - source.rgb, source.a); }", nil))
	pixels, out := gradient(1280, 720, 4*1280), make([]byte, 4*1280*720)
	var upload, draw, read time.Duration
	for b.Loop() {
		t0 := time.Now()
		a := must(c.Upload(pixels, 4*1280, 1280, 720))
		t1 := time.Now()
		r := must(c.Apply(p, a, nil, 0))
		t2 := time.Now()
		if err := c.Read(r, out, 4*1280); err != nil {
			b.Fatal(err)
		}
		upload, draw, read = upload+t1.Sub(t0), draw+t2.Sub(t1), read+time.Since(t2)
		c.Recycle(a)
		c.Recycle(r)
	}
	n := float64(b.N)
	b.ReportMetric(upload.Seconds()*1e3/n, "upload-ms")
	b.ReportMetric(draw.Seconds()*1e3/n, "draw-ms")
	b.ReportMetric(read.Seconds()*1e3/n, "read-ms")
}
