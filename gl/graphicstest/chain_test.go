package graphicstest

import (
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/gl/xvfb"
	"tatolab.com/tatolab/internal/testbed"
)

// chain is a stream of two effects in nodes of their own; the second one logs
// what tatolab-gl did meanwhile for every thirty of its pictures.
var chain = map[string]string{
	"stream.py": `from tatolab.stream import StreamBuilder, TestPatternSource, stream
from nodes.again import Again
from nodes.invert import Invert
from nodes.meter import Meter


@stream
def graphics(stream_builder: StreamBuilder) -> None:
    camera = stream_builder.add(TestPatternSource, name="camera", config={"width": 640, "height": 360, "fps": 30})
    once = stream_builder.add(Invert, name="once")
    twice = stream_builder.add(Again, name="twice")
    meter = stream_builder.add(Meter, name="meter")
    plain = stream_builder.add(Meter, name="plain")
    stream_builder.connect(camera.output("video"), once.input("video"))
    stream_builder.connect(once.output("inverted"), twice.input("video"))
    stream_builder.connect(twice.output("inverted"), meter.input("video"))
    stream_builder.connect(camera.output("video"), plain.input("video"))
    stream_builder.expose(twice.output("inverted"))
`,
	"nodes/__init__.py": "", "nodes/invert.py": invert, "nodes/meter.py": meter,
	"nodes/again.py": strings.NewReplacer("class Invert", "class Again", "import GlslPixelEffect", "import log, GlslPixelEffect",
		"        if frame is not None:", `        if frame is not None:
            self.pictures = getattr(self, "pictures", 0) + 1
            if self.pictures % 30 == 0:
                n = ctx.gpu_limited_access.gl.request("statistics", "count")["statistics"]
                log.info(f"moved {n['uploads']} {n['draws']} {n['readbacks']}")`).Replace(invert),
	"pyproject.toml": "[project]\nname = \"graphics\"\nversion = \"0\"\n",
}

// Pictures stay in OpenGL between the nodes of a stream: one upload and one
// read-back for two effects, in one process, whose death costs pictures only.
func TestEffectsOfTwoNodesShareTheirPictures(t *testing.T) {
	t.Parallel()
	r := start(t, ":none", chain)
	moved := regexp.MustCompile(`moved (\d+) (\d+) (\d+)`)
	// counts are what was moved and drawn for pictures of the present tatolab-gl.
	counts := func(after int) (uploads, draws, readbacks, lines int) {
		r.eventually(func() string {
			if lines = len(moved.FindAllString(r.Must(r.dir, "logs", "graphics"), -1)); lines < after+3 {
				return "the second effect has not drawn enough"
			}
			return ""
		})
		all := moved.FindAllStringSubmatch(r.Must(r.dir, "logs", "graphics"), -1)
		number := func(line, at int) int { n, _ := strconv.Atoi(all[line][at]); return n }
		last := len(all) - 1
		return number(last, 1) - number(last-1, 1), number(last, 2) - number(last-1, 2), number(last, 3) - number(last-1, 3), len(all)
	}
	check := func(after int) int {
		t.Helper()
		uploads, draws, readbacks, lines := counts(after)
		// What the first one has drawn and the second one skipped is uploaded,
		// drawn once, and never read back.
		if draws != uploads+30 && draws != uploads+29 && draws != uploads+31 || readbacks < 29 || readbacks > 31 {
			t.Errorf("for 30 pictures of two effects: %d uploads, %d draws, %d read-backs", uploads, draws, readbacks)
		}
		return lines
	}
	lines := check(0)
	drawers := r.drawers("graphics")
	if len(drawers) != 1 {
		t.Fatalf("the stream has %d processes that draw", len(drawers))
	}
	picture := filepath.Join(t.TempDir(), "twice.png")
	looks := func() {
		t.Helper()
		r.Must(r.dir, "snapshot", "graphics/twice/inverted", "-o", picture)
		f, err := os.Open(picture)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		decoded, err := png.Decode(f)
		if err != nil {
			t.Fatal(err)
		}
		if at := decoded.Bounds().Size(); at != image.Pt(640, 360) {
			t.Fatalf("the picture is %v", at)
		}
		for i, want := range bars {
			x, y := 640*(2*i+1)/14, 120
			if r, g, b, _ := decoded.At(x, y).RGBA(); !xvfb.Near(rgb(r, g, b), want) {
				t.Errorf("inverted twice, bar %d is %v, want %v", i, rgb(r, g, b), want)
			}
		}
	}
	looks()

	plain := r.node("plain").PID
	unix.Kill(drawers[0], unix.SIGKILL)
	check(lines + 1) // the line after the death compares two processes
	if now := r.drawers("graphics"); len(now) != 1 || now[0] == drawers[0] {
		t.Errorf("after the death of %v these draw: %v", drawers, now)
	}
	looks()
	for _, name := range []string{"once", "twice", "meter", "plain"} {
		if n := r.node(name); n.Restarts != 0 {
			t.Errorf("%s was started again, for the death of tatolab-gl: %s", name, n.Reason)
		}
	}
	log := r.Must(r.dir, "logs", "graphics")
	if told := strings.Count(log, "tatolab-gl died"); told != 1 {
		t.Errorf("its death is told %d times:\n%s", told, log)
	}
	if r.node("plain").PID != plain {
		t.Error("a reader of the camera was started again")
	}

	r.Must(r.dir, "stop", "graphics")
	testbed.Eventually(t, 20*time.Second, func() string { return strings.Join(r.Processes("graphics"), "\n") })
}

func rgb(r, g, b uint32) color.RGBA {
	return color.RGBA{uint8(r >> 8), uint8(g >> 8), uint8(b >> 8), 255}
}
