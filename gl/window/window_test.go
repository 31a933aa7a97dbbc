package window

import (
	"bufio"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tatolab.com/tatolab/gl/fit"
	"tatolab.com/tatolab/gl/shader"
	"tatolab.com/tatolab/gl/xvfb"

	"golang.org/x/sys/unix"
)

// A window needs a process's main thread, so this test binary becomes the
// program under test when asOptions is set, to the Options of its window.
const asOptions = "TATOLAB_TEST_WINDOW"

func TestMain(m *testing.M) {
	if text := os.Getenv(asOptions); text != "" {
		runtime.LockOSThread()
		var o Options
		if err := json.Unmarshal([]byte(text), &o); err != nil {
			panic(err)
		}
		os.Exit(show(o))
	}
	os.Exit(m.Run())
}

const pictureWidth, pictureHeight = 320, 180

var (
	red    = color.RGBA{220, 20, 30, 255}
	green  = color.RGBA{10, 200, 40, 255}
	blue   = color.RGBA{30, 40, 210, 255}
	yellow = color.RGBA{230, 220, 10, 255}
	black  = color.RGBA{0, 0, 0, 255}
)

// quarters is a picture whose corners are red, green, blue and yellow, in
// reading order.
func quarters() []byte {
	pixels := make([]byte, 0, 4*pictureWidth*pictureHeight)
	for y := range pictureHeight {
		for x := range pictureWidth {
			c := [2][2]color.RGBA{{red, green}, {blue, yellow}}[2*y/pictureHeight][2*x/pictureWidth]
			pixels = append(pixels, c.R, c.G, c.B, 0) // transparent: windows are not
		}
	}
	return pixels
}

// show is the program under test: pictures at 30 a second until the window is
// closed or standard input ends.
func show(o Options) int {
	pixels := quarters()
	began := time.Now()
	now := func() int64 { return int64(time.Since(began)) + 1 }
	var published, taken atomic.Int64
	var w *Window
	w, err := Open(o, func() (Picture, bool) {
		n := published.Load()
		if taken.Swap(n) == n {
			return Picture{}, false
		}
		return Picture{
			Pixels: pixels, Stride: 4 * pictureWidth, Width: pictureWidth, Height: pictureHeight, Time: now() - 5e6,
			Release: func() { fmt.Println("picture", n) },
		}, true
	}, now, func(err error) { fmt.Println("error", err) })
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	go func() {
		bufio.NewReader(os.Stdin).ReadByte()
		w.Close()
	}()
	go func() {
		for range time.Tick(time.Second / 30) {
			published.Add(1)
			w.Wake()
		}
	}()
	byPerson, err := w.Run()
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	fmt.Println("closed by person:", byPerson)
	return 0
}

// program is a running program under test.
type program struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin *os.File
	lines chan string // closed at its end
}

func run(t *testing.T, display string, scaling fit.Scaling) *program {
	t.Helper()
	return runWith(t, display, Options{Title: "quarters", Width: 400, Height: 400, Scaling: scaling})
}

func runWith(t *testing.T, display string, o Options) *program {
	t.Helper()
	options, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := &program{t: t, cmd: exec.Command("/proc/self/exe"), stdin: w, lines: make(chan string, 1<<16)}
	p.cmd.Env = append(os.Environ(), asOptions+"="+string(options), "DISPLAY="+display)
	p.cmd.Stdin, p.cmd.Stderr = r, os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r.Close()
	go func() {
		defer close(p.lines)
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			p.lines <- scanner.Text()
		}
	}()
	t.Cleanup(func() {
		if t.Failed() && p.cmd.ProcessState == nil {
			// What it was doing is what one wants to know.
			t.Logf("%d pictures in the last second", p.pictures(time.Second))
			p.cmd.Process.Signal(unix.SIGQUIT)
			time.Sleep(time.Second)
		}
		p.cmd.Process.Kill()
		p.cmd.Wait()
		w.Close()
	})
	return p
}

// expect waits for a line that begins so.
func (p *program) expect(prefix string) string {
	p.t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				p.t.Fatalf("it ended before %q", prefix)
			}
			if strings.HasPrefix(line, prefix) {
				return line
			}
			if strings.HasPrefix(line, "error") {
				p.t.Fatalf("it says: %s", line)
			}
		case <-deadline:
			p.t.Fatalf("no line %q in 30 s", prefix)
		}
	}
}

// pictures counts the pictures taken during d.
func (p *program) pictures(d time.Duration) int {
	n := 0
	for deadline := time.After(d); ; {
		select {
		case line := <-p.lines:
			if strings.HasPrefix(line, "picture") {
				n++
			}
		case <-deadline:
			return n
		}
	}
}

// at is what a place in a window at (100,50) of the screen shows.
func at(shot *image.RGBA, x, y int) color.RGBA { return shot.RGBAAt(100+x, 50+y) }

func TestScalings(t *testing.T) {
	x := xvfb.Start(t, "")
	type place struct{ x, y int }
	for _, test := range []struct {
		scaling fit.Scaling
		want    map[place]color.RGBA
	}{
		// In 600×600 a picture of 16:9 is 600×338, from 131 to 469.
		{fit.Fit, map[place]color.RGBA{
			{2, 2}: black, {300, 128}: black, {2, 134}: red, {297, 297}: red, {303, 297}: green, {597, 134}: green,
			{2, 465}: blue, {297, 303}: blue, {303, 303}: yellow, {597, 465}: yellow, {300, 472}: black, {597, 597}: black,
		}},
		// And covering it 1067×600: its sides are cut, no bar is seen.
		{fit.Fill, map[place]color.RGBA{
			{2, 2}: red, {297, 297}: red, {303, 2}: green, {597, 297}: green,
			{2, 303}: blue, {297, 597}: blue, {303, 303}: yellow, {597, 597}: yellow,
		}},
		{fit.Stretch, map[place]color.RGBA{
			{2, 2}: red, {297, 297}: red, {303, 2}: green, {597, 297}: green,
			{2, 303}: blue, {297, 597}: blue, {303, 303}: yellow, {597, 597}: yellow,
		}},
	} {
		p := run(t, x.Name, test.scaling)
		p.expect("picture")
		window := x.Window("quarters")
		window.Place(100, 50, 600, 600)
		var wrong string
		x.Wait(fmt.Sprintf("%s picture", test.scaling), func() bool {
			shot, ok := x.Screen(), true
			for where, want := range test.want {
				if got := at(shot, where.x, where.y); !xvfb.Near(got, want) {
					wrong, ok = fmt.Sprintf("%v at %v, want %v", got, where, want), false
				}
			}
			if !ok && testing.Verbose() {
				t.Log(test.scaling, wrong)
			}
			return ok
		})
		save(t, x, string(test.scaling))
		if test.scaling == fit.Stretch {
			// Tell it from fill: a window of the picture's own shape turned.
			window.Place(100, 50, 300, 640)
			x.Wait("stretched picture", func() bool {
				shot := x.Screen()
				return xvfb.Near(at(shot, 2, 2), red) && xvfb.Near(at(shot, 297, 637), yellow) && xvfb.Near(at(shot, 2, 637), blue)
			})
		}
		p.stdin.Close()
		if line := p.expect("closed by person"); line != "closed by person: false" {
			t.Errorf("ended by its program: %s", line)
		}
		if err := p.cmd.Wait(); err != nil {
			t.Errorf("it ended with %v", err)
		}
	}
}

// save keeps a screenshot for a person to look at, where TATOLAB_SCREENSHOTS
// names a folder.
func save(t *testing.T, x *xvfb.Server, name string) {
	if folder := os.Getenv("TATOLAB_SCREENSHOTS"); folder != "" {
		x.Save(filepath.Join(folder, name+".png"))
	}
}

// overlay returns what of the overlay can be seen in a window at (100,50): the
// bounds of its white text, empty without.
func overlay(shot *image.RGBA) image.Rectangle {
	white := color.RGBA{255, 255, 255, 255}
	var text image.Rectangle
	for px := range 800 {
		for py := range 100 {
			if xvfb.Near(at(shot, px, py), white) {
				text = text.Union(image.Rect(px, py, px+1, py+1))
			}
		}
	}
	return text
}

func TestOverlayAndClosing(t *testing.T) {
	x := xvfb.Start(t, "")
	p := run(t, x.Name, fit.Fit)
	p.expect("picture")
	window := x.Window("quarters")
	window.Place(100, 50, 600, 600)
	x.Wait("picture", func() bool { return xvfb.Near(at(x.Screen(), 297, 297), red) })
	if !overlay(x.Screen()).Empty() {
		t.Error("the overlay is there before its key")
	}
	window.Key("i")
	x.Wait("overlay", func() bool { return !overlay(x.Screen()).Empty() })
	p.pictures(time.Second)
	save(t, x, "overlay")
	window.Key("i")
	x.Wait("end of the overlay", func() bool { return overlay(x.Screen()).Empty() })
	window.Close()
	if line := p.expect("closed by person"); line != "closed by person: true" {
		t.Error(line)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}

// On a screen with twice as many dots an inch, sizes are twice as many pixels,
// the picture is drawn with all of them, and the text is as large to the eye.
func TestDenseScreen(t *testing.T) {
	heights := map[int]int{}
	for _, dpi := range []int{96, 192} {
		x := xvfb.Start(t, "")
		x.Dense(dpi)
		p := runWith(t, x.Name, Options{Title: "quarters", Width: 400, Height: 200, Scaling: fit.Stretch})
		p.expect("picture")
		p.expect("picture") // so that the first has been shown, and the overlay has figures
		window := x.Window("quarters")
		if got, want := window.Size(), image.Pt(400*dpi/96, 200*dpi/96); got != want {
			t.Errorf("with %d dots an inch a window of 400×200 has %v pixels, want %v", dpi, got, want)
		}
		window.Place(100, 50, 800, 400)
		window.Key("i")
		x.Wait("picture and overlay", func() bool {
			shot := x.Screen()
			return !overlay(shot).Empty() && xvfb.Near(at(shot, 398, 198), red) && xvfb.Near(at(shot, 402, 202), yellow) && xvfb.Near(at(shot, 797, 397), yellow)
		})
		heights[dpi] = overlay(x.Screen()).Dy()
		save(t, x, fmt.Sprintf("dense-%d", dpi))
	}
	if heights[192] != 2*heights[96] {
		t.Errorf("text is %d pixels high with 192 dots an inch, %d with 96", heights[192], heights[96])
	}
}

func TestTitleAndSmallestSize(t *testing.T) {
	x := xvfb.Start(t, "")
	p := runWith(t, x.Name, Options{Title: "Überwachung 監視 🎥", Width: 1, Height: 1, Scaling: fit.Fit})
	p.expect("picture")
	window := x.Window("Überwachung 監視 🎥")
	if got := window.Size(); got != image.Pt(1, 1) {
		t.Errorf("a window of 1×1 has %v pixels", got)
	}
	window.Place(100, 50, 600, 600)
	x.Wait("picture", func() bool { return xvfb.Near(at(x.Screen(), 297, 297), red) })
}

// Sizes change while pictures are drawn, the smallest and odd ones among them.
func TestResizingWhileDrawing(t *testing.T) {
	x := xvfb.Start(t, "")
	p := run(t, x.Name, fit.Fill)
	p.expect("picture")
	window := x.Window("quarters")
	window.Key("i") // the overlay may be larger than the window
	for i := range 300 {
		window.Place(100, 50, 1+i*37%601, 1+i*53%499)
		if i%20 == 0 {
			p.expect("picture")
		}
	}
	window.Key("i")
	window.Place(100, 50, 600, 600)
	x.Wait("picture", func() bool {
		shot := x.Screen()
		return overlay(shot).Empty() && xvfb.Near(at(shot, 297, 297), red) && xvfb.Near(at(shot, 303, 303), yellow) && xvfb.Near(at(shot, 597, 597), yellow)
	})
	p.stdin.Close()
	p.expect("closed by person: false")
}

func TestAHiddenWindowComesBack(t *testing.T) {
	x := xvfb.Start(t, "")
	p := run(t, x.Name, fit.Fit)
	p.expect("picture")
	window := x.Window("quarters")
	window.Place(100, 50, 600, 600)
	window.Hide()
	p.pictures(500 * time.Millisecond)
	window.Show()
	x.Wait("picture", func() bool { return xvfb.Near(at(x.Screen(), 297, 297), red) })
	if n := p.pictures(time.Second); n == 0 {
		t.Error("no picture is taken any more")
	}
}

// A window that is minimised takes nothing: its pictures are drawn by nobody.
func TestAMinimisedWindowRests(t *testing.T) {
	x := xvfb.Start(t, "")
	p := run(t, x.Name, fit.Fit)
	p.expect("picture")
	window := x.Window("quarters")
	window.Place(100, 50, 600, 600)
	x.Wait("picture", func() bool { return xvfb.Near(at(x.Screen(), 297, 297), red) })
	window.Minimise()
	x.Wait("end of the pictures", func() bool { return p.pictures(time.Second) == 0 })
	window.Restore()
	p.expect("picture")
	x.Wait("picture", func() bool { return xvfb.Near(at(x.Screen(), 297, 297), red) })
}

func TestTheEndOfTheDisplayIsNamed(t *testing.T) {
	x := xvfb.Start(t, "")
	p := run(t, x.Name, fit.Fit)
	p.expect("picture")
	x.Stop()
	deadline := time.AfterFunc(30*time.Second, func() { p.cmd.Process.Kill() })
	defer deadline.Stop()
	for range p.lines {
	}
	p.cmd.Wait()
	if code := p.cmd.ProcessState.ExitCode(); code != 5 {
		t.Errorf("it ended with %v", p.cmd.ProcessState)
	}
}

func TestNoDisplay(t *testing.T) {
	p := run(t, ":999", fit.Fit)
	line, ok := <-p.lines
	if !ok || !strings.Contains(line, `cannot open a window on ":999": no display`) {
		t.Errorf("it says %q", line)
	}
}

// A server without clients starts afresh when one goes, and the look for the
// display is a client that goes.
func TestAServerThatStartsAfresh(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	server := exec.Command("Xvfb", "-displayfd", "3", "-screen", "0", "640x480x24", "-nolisten", "tcp", "-reset")
	server.ExtraFiles = []*os.File{w}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	defer server.Wait()
	defer server.Process.Signal(unix.SIGTERM) // so that it takes its files away
	var number int
	if _, err := fmt.Fscanln(r, &number); err != nil {
		t.Fatal("Xvfb did not start:", err)
	}
	for range 10 {
		p := run(t, fmt.Sprintf(":%d", number), fit.Fit)
		p.expect("picture")
		p.stdin.Close()
		p.expect("closed by person: false")
		p.cmd.Wait()
	}
}

func TestMeter(t *testing.T) {
	var m meter
	if m.text(nil) != "no picture yet" {
		t.Error(m.text(nil))
	}
	const second = 1_000_000_000
	for i := range 300 {
		m.shown(int64(i)*second/30+1, int64(i)*second/30+1-4_200_000)
	}
	if got, want := m.text(&shader.Texture{Width: 1280, Height: 720}), "1280x720  30.0 frames/s  4.2 ms old"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	m.shown(20*second, 0)
	if got := m.text(&shader.Texture{Width: 1, Height: 1}); strings.Contains(got, "old") {
		t.Errorf("a picture without a time: %q", got)
	}
}
