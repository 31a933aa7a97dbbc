package pattern

import (
	"image"
	"testing"
)

func TestCounter(t *testing.T) {
	for _, size := range []image.Point{{64, 8}, {65, 9}, {320, 180}, {1280, 720}, {3840, 2160}} {
		w, h := size.X, size.Y
		pixels := make([]byte, 4*w*h)
		Bars(pixels, 4*w, w, h)
		draw := func(n uint32, only func(image.Rectangle) bool) {
			Squares(w, h, n, func(r image.Rectangle, white bool) {
				if !r.In(image.Rect(0, 0, w, h)) {
					t.Fatalf("%v: square %v is outside", size, r)
				}
				for y := r.Min.Y; only(r) && y < r.Max.Y; y++ {
					for x := r.Min.X; x < r.Max.X; x++ {
						for c := range 3 {
							pixels[4*(y*w+x)+c] = 0
							if white {
								pixels[4*(y*w+x)+c] = 255
							}
						}
					}
				}
			})
		}
		all := func(image.Rectangle) bool { return true }
		for _, n := range []uint32{0, 1, 0xdeadbeef, 1<<32 - 1} {
			draw(n, all)
			if got, ok := Counter(pixels, 4*w, w, h); got != n || !ok {
				t.Errorf("%v: %x reads as %x, %v", size, n, got, ok)
			}
		}
		// From one frame to the next one square of each counter changes.
		for _, n := range []uint32{0, 1, 1023, 1<<31 - 1} {
			var a, b []bool
			Squares(w, h, n, func(_ image.Rectangle, white bool) { a = append(a, white) })
			Squares(w, h, n+1, func(_ image.Rectangle, white bool) { b = append(b, white) })
			different := 0
			for i := range a {
				if a[i] != b[i] {
					different++
				}
			}
			if different != 2 {
				t.Errorf("from %d to the next frame %d squares change", n, different)
			}
		}
		draw(7, func(r image.Rectangle) bool { return r.Min.Y == 0 })
		if _, ok := Counter(pixels, 4*w, w, h); ok {
			t.Errorf("%v: a frame torn in two is taken for one", size)
		}
	}
	if _, ok := Counter(nil, 0, 10, 10); ok {
		t.Error("a picture too small for a counter has one")
	}
}

func TestMoved(t *testing.T) {
	for _, test := range []struct{ seconds, motion, want float64 }{
		{100, 0, 0}, {1.5, 2, 0}, {2, 2, 0}, {3, 2, 1}, {4, 2, 2}, {5.5, 2, 2}, {7, 2, 3}, {8, 2, 4},
	} {
		if got := Moved(test.seconds, test.motion); got != test.want {
			t.Errorf("after %v s with motion %v it has moved for %v s, want %v", test.seconds, test.motion, got, test.want)
		}
	}
	for moved := 0.0; moved < 5; moved += 0.01 {
		at := BoxAt(640, 480, moved)
		if r := (image.Rectangle{at, at.Add(Box(640, 480))}); !r.In(image.Rect(0, 0, 640, 480)) || at.X%2+at.Y%2 != 0 {
			t.Fatalf("after %v s the box is at %v", moved, r)
		}
	}
}
