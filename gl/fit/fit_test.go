package fit

import "testing"

func TestPlace(t *testing.T) {
	for _, test := range []struct {
		scaling        Scaling
		pw, ph, ww, wh int
		want           Rectangle
	}{
		{Fit, 1280, 720, 1280, 720, Rectangle{0, 0, 1280, 720}},
		{Fit, 1280, 720, 800, 800, Rectangle{0, 175, 800, 450}},
		{Fit, 480, 640, 800, 600, Rectangle{175, 0, 450, 600}},
		{Fill, 1280, 720, 800, 800, Rectangle{-311, 0, 1422, 800}},
		{Fill, 480, 640, 800, 600, Rectangle{0, -234, 800, 1067}},
		{Stretch, 480, 640, 801, 603, Rectangle{0, 0, 801, 603}},
		{Fit, 1, 1, 800, 600, Rectangle{100, 0, 600, 600}},
		{Fit, 10000, 1, 100, 100, Rectangle{0, 49, 100, 1}},
	} {
		if got := test.scaling.Place(test.pw, test.ph, test.ww, test.wh); got != test.want {
			t.Errorf("%s of %d×%d in %d×%d: %v, want %v", test.scaling, test.pw, test.ph, test.ww, test.wh, got, test.want)
		}
	}
	if Scaling("cover").Valid() || !Fill.Valid() {
		t.Error("Valid")
	}
}
