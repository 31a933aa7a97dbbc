// Package window shows pictures in a window of the desktop, by GLFW and
// OpenGL. Of a process there is one window.
package window

/*
#cgo LDFLAGS: -lX11
#cgo pkg-config: egl
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <EGL/egl.h>
#include <X11/Xlib.h>

// Xlib ends the process when the connection breaks, with a message of its own
// at best. GLFW and the driver hold the connection too, so there is no going
// on; but who reads the log is to know what happened.
static int display_lost(Display *d) {
	dprintf(2, "display lost: the connection to %s broke\n", DisplayString(d));
	_exit(5);
}

// A server whose last client goes starts afresh, and takes nobody meanwhile: the
// connection that showed it to be there is kept until GLFW has its own.
static Display *held;

static void let_go(void) {
	if (held)
		XCloseDisplay(held);
	held = NULL;
}

static int can_open(const char *name) {
	XSetIOErrorHandler(display_lost);
	Display *d = XOpenDisplay(name);
	let_go();
	held = d;
	return held != NULL;
}

// imports tells whether windows of that display can have a context of EGL that
// takes memory of other processes. GLFW, asked for one that cannot be had, may
// end the process.
static int imports(void *native) {
	static const EGLint wanted[] = {EGL_SURFACE_TYPE, EGL_WINDOW_BIT, EGL_RENDERABLE_TYPE, EGL_OPENGL_BIT, EGL_NONE};
	EGLDisplay display = eglGetDisplay((EGLNativeDisplayType)native);
	EGLConfig config;
	EGLint found = 0;
	if (display == EGL_NO_DISPLAY || !eglInitialize(display, NULL, NULL))
		return 0;
	const char *extensions = eglQueryString(display, EGL_EXTENSIONS);
	if (!extensions || !strstr(extensions, "EGL_EXT_image_dma_buf_import") || !eglChooseConfig(display, wanted, &config, 1, &found))
		found = 0;
	eglTerminate(display);
	return found;
}
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/go-gl/gl/v3.3-core/gl"
	"github.com/go-gl/glfw/v3.3/glfw"

	"tatolab.com/tatolab/gl/dmabuf"
	"tatolab.com/tatolab/gl/fit"
	"tatolab.com/tatolab/gl/shader"
)

// Reachable tells whether the X server of that name ("" means DISPLAY) lets us
// in. It is for the process's main thread, before Open.
func Reachable(name string) bool {
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	return C.can_open(cname) != 0
}

// Options are how a window begins.
type Options struct {
	Title         string
	Width, Height int // in the window system's units
	Scaling       fit.Scaling
}

// Picture is one to show: eight-bit RGBA, top row first.
type Picture struct {
	// Texture holds it, of the drawing thread's context; if that is nil, Pixels
	// do.
	Texture       *shader.Texture
	Pixels        []byte
	Stride        int // bytes from a row to the next
	Width, Height int
	// Time is when the picture was taken, CLOCK_MONOTONIC in nanoseconds, 0
	// if nobody knows.
	Time int64
	// Release is called when neither is needed any more.
	Release func()
}

// Window is an open window.
type Window struct {
	window  *glfw.Window
	imports bool
	scaling fit.Scaling
	next    func() (Picture, bool)
	now     func() int64
	report  func(error)

	wake    chan struct{}
	dirty   atomic.Bool // is to be drawn although there is no new picture
	overlay atomic.Bool
	hidden  atomic.Bool
	pixels  atomic.Uint64 // size of the framebuffer: width << 32 | height
	density atomic.Uint32 // pixels a unit, at least 1
	closing chan struct{}
	close   sync.Once
}

// ErrNoDisplay is Open's when no X server answers: one may come.
var ErrNoDisplay = errors.New("no display")

// Open opens a window. It is to be called on the process's main thread, which
// Run then needs as well, and once. next returns the newest picture if it was
// not returned before, and is called on the drawing thread; now is the clock
// of Picture.Time; report is told what goes wrong while drawing.
func Open(o Options, next func() (Picture, bool), now func() int64, report func(error)) (*Window, error) {
	// GLFW's Init says nothing when it cannot open the display, and the
	// next call panics.
	if !Reachable("") {
		return nil, fmt.Errorf("cannot open a window on %q: %w", os.Getenv("DISPLAY"), ErrNoDisplay)
	}
	defer C.let_go()
	if err := glfw.Init(); err != nil {
		return nil, fmt.Errorf("cannot open a window: %w", err)
	}
	w := &Window{
		scaling: o.Scaling, next: next, now: now, report: report,
		wake: make(chan struct{}, 1), closing: make(chan struct{}),
	}
	// Where nothing is to be had of it, EGL is left alone: GLX has been with
	// every X server for longer.
	api := glfw.NativeContextAPI
	if os.Getenv(dmabuf.Variable) != dmabuf.None && C.imports(unsafe.Pointer(glfw.GetX11Display())) != 0 {
		api, w.imports = glfw.EGLContextAPI, true
	}
	var err error
	for _, version := range [][2]int{{3, 3}, {3, 1}} {
		glfw.DefaultWindowHints()
		glfw.WindowHint(glfw.ContextCreationAPI, api)
		glfw.WindowHint(glfw.ContextVersionMajor, version[0])
		glfw.WindowHint(glfw.ContextVersionMinor, version[1])
		if version[1] == 3 {
			glfw.WindowHint(glfw.OpenGLProfile, glfw.OpenGLCoreProfile)
		}
		// A size in units, on X as elsewhere.
		glfw.WindowHint(glfw.ScaleToMonitor, glfw.True)
		// By which desktops know whose window it is.
		glfw.WindowHintString(glfw.X11ClassName, "tatolab")
		// A new window is not to take the keyboard from whoever types.
		glfw.WindowHint(glfw.FocusOnShow, glfw.False)
		if w.window, err = glfw.CreateWindow(o.Width, o.Height, o.Title, nil, nil); err == nil {
			break
		}
	}
	if err != nil {
		glfw.Terminate()
		return nil, fmt.Errorf("cannot open a window with OpenGL 3.1 on display %s: %w", os.Getenv("DISPLAY"), err)
	}
	w.setSize(w.window.GetFramebufferSize())
	w.setDensity(w.window.GetContentScale())
	w.window.SetFramebufferSizeCallback(func(_ *glfw.Window, width, height int) {
		w.setSize(width, height)
		w.redraw()
	})
	w.window.SetContentScaleCallback(func(_ *glfw.Window, x, y float32) {
		w.setDensity(x, y)
		w.redraw()
	})
	w.window.SetRefreshCallback(func(*glfw.Window) { w.redraw() })
	w.window.SetIconifyCallback(func(_ *glfw.Window, iconified bool) {
		w.hidden.Store(iconified)
		w.redraw()
	})
	w.window.SetKeyCallback(func(_ *glfw.Window, key glfw.Key, _ int, action glfw.Action, _ glfw.ModifierKey) {
		if key == glfw.KeyI && action == glfw.Press {
			w.overlay.Store(!w.overlay.Load())
			w.redraw()
		}
	})
	return w, nil
}

func (w *Window) setSize(width, height int) {
	w.pixels.Store(uint64(width)<<32 | uint64(uint32(height)))
}

func (w *Window) setDensity(x, y float32) {
	w.density.Store(uint32(max(1, min(8, x+0.5, y+0.5))))
}

// Imports tells whether textures of another process's memory (dmabuf.Import) may
// be made on the drawing thread.
func (w *Window) Imports() bool { return w.imports }

// Wake says that next may have a picture. It never blocks.
func (w *Window) Wake() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *Window) redraw() {
	w.dirty.Store(true)
	w.Wake()
}

// Close makes Run return, from any goroutine.
func (w *Window) Close() {
	w.close.Do(func() { close(w.closing) })
	glfw.PostEmptyEvent()
}

// drawEnd is how long Run waits at its end for a drawing thread that may be
// blocked in the window system.
const drawEnd = 500 * time.Millisecond

// Run shows pictures until the window is closed: true if by the person before
// it, false by Close. The error says why nothing can be drawn. The window is gone
// then, and the process should end.
func (w *Window) Run() (closedByPerson bool, err error) {
	drawn := make(chan error, 1)
	go func() { drawn <- w.draw() }()
	for {
		select {
		case <-w.closing:
		default:
			if !w.window.ShouldClose() {
				// The time-out only bounds how late a Close is seen whose event
				// came before the wait began.
				glfw.WaitEventsTimeout(0.5)
				continue
			}
			closedByPerson = true
			w.close.Do(func() { close(w.closing) })
		}
		break
	}
	w.window.Hide()
	select {
	case err = <-drawn:
		glfw.Terminate()
	case <-time.After(drawEnd):
		// It is blocked in the driver, which Terminate would hang on too. The
		// end of the process does the rest.
	}
	return closedByPerson, err
}

// fragment samples a picture whose first row is the top one, where OpenGL's is
// the bottom one.
const fragment = `
uniform sampler2D picture;
in vec2 corner;
out vec4 color;
void main() { color = vec4(texture(picture, vec2(corner.x, 1.0 - corner.y)).rgb, 1.0); }
`

// draw is the drawing thread. Without it there is no window: it closes it.
func (w *Window) draw() error {
	defer w.Close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	w.window.MakeContextCurrent()
	defer glfw.DetachCurrentContext()
	glfw.SwapInterval(1)
	if err := gl.InitWithProcAddrFunc(glfw.GetProcAddress); err != nil {
		return fmt.Errorf("cannot draw: %w", err)
	}
	program, err := shader.New(fragment)
	if err != nil {
		return fmt.Errorf("cannot draw: %w", err)
	}
	c := canvas{program: program, max: shader.MaxExtent()}
	gl.GenFramebuffers(1, &c.reading)
	var meter meter
	w.redraw()
	for {
		select {
		case <-w.closing:
			return nil
		case <-w.wake:
		}
		if w.hidden.Load() {
			continue
		}
		picture, fresh := w.next()
		if fresh {
			err := c.load(picture)
			picture.Release()
			if err != nil {
				w.report(err)
				continue
			}
		}
		if !fresh && !w.dirty.Swap(false) {
			continue
		}
		size := w.pixels.Load()
		width, height := int(size>>32), int(uint32(size))
		if width == 0 || height == 0 {
			continue
		}
		c.paint(w.scaling, width, height)
		if w.overlay.Load() {
			c.label(meter.text(c.picture), int(w.density.Load()), height)
		}
		if err := shader.Check(); err != nil {
			w.report(fmt.Errorf("cannot draw: %w", err))
		}
		w.window.SwapBuffers()
		if fresh {
			meter.shown(w.now(), picture.Time)
		}
	}
}

// canvas is what the drawing thread keeps in OpenGL.
type canvas struct {
	program *shader.Program
	max     int
	picture *shader.Texture
	text    *shader.Texture
	reading uint32 // a framebuffer to read from
}

// load makes p the picture. It is uploaded, or copied: what is drawn again and
// again, as a window is moved, may be what somebody else draws to next.
func (c *canvas) load(p Picture) error {
	if p.Width < 1 || p.Height < 1 || p.Width > c.max || p.Height > c.max {
		return fmt.Errorf("cannot show a picture of %d×%d: OpenGL takes 1×1 to %d×%d", p.Width, p.Height, c.max, c.max)
	}
	if err := replace(&c.picture, p.Width, p.Height); err != nil {
		return err
	}
	if p.Texture == nil {
		return c.picture.Upload(p.Pixels, p.Stride)
	}
	gl.BindFramebuffer(gl.READ_FRAMEBUFFER, c.reading)
	defer gl.BindFramebuffer(gl.READ_FRAMEBUFFER, 0)
	gl.FramebufferTexture2D(gl.READ_FRAMEBUFFER, gl.COLOR_ATTACHMENT0, gl.TEXTURE_2D, p.Texture.ID, 0)
	gl.BindTexture(gl.TEXTURE_2D, c.picture.ID)
	gl.CopyTexSubImage2D(gl.TEXTURE_2D, 0, 0, 0, 0, 0, int32(p.Width), int32(p.Height))
	gl.FramebufferTexture2D(gl.READ_FRAMEBUFFER, gl.COLOR_ATTACHMENT0, gl.TEXTURE_2D, 0, 0)
	gl.Finish() // before it is released
	return shader.Check()
}

// replace makes sure that *t has that size.
func replace(t **shader.Texture, width, height int) error {
	if *t != nil && (*t).Width == width && (*t).Height == height {
		return nil
	}
	if *t != nil {
		(*t).Delete()
		*t = nil
	}
	made, err := shader.NewTexture(width, height)
	if err != nil {
		return err
	}
	*t = made
	return nil
}

// paint draws the picture, if there is one, over a black window of that size.
func (c *canvas) paint(scaling fit.Scaling, width, height int) {
	gl.Viewport(0, 0, int32(width), int32(height))
	gl.ClearColor(0, 0, 0, 1)
	gl.Clear(gl.COLOR_BUFFER_BIT)
	if c.picture != nil {
		c.blit(c.picture, scaling.Place(c.picture.Width, c.picture.Height, width, height))
	}
}

func (c *canvas) blit(t *shader.Texture, at fit.Rectangle) {
	gl.Viewport(int32(at.X), int32(at.Y), int32(at.Width), int32(at.Height))
	gl.BindTexture(gl.TEXTURE_2D, t.ID)
	c.program.Use()
	c.program.Draw()
}

// label draws text at the upper left corner, scale pixels for one of the font.
func (c *canvas) label(text string, scale, height int) {
	pixels := render(text)
	size := pixels.Bounds().Size()
	if replace(&c.text, size.X, size.Y) != nil || c.text.Upload(pixels.Pix, pixels.Stride) != nil {
		return
	}
	// Letters of whole pixels stay sharp when each becomes several.
	gl.BindTexture(gl.TEXTURE_2D, c.text.ID)
	gl.TexParameteri(gl.TEXTURE_2D, gl.TEXTURE_MAG_FILTER, gl.NEAREST)
	c.blit(c.text, fit.Rectangle{X: 0, Y: height - scale*size.Y, Width: scale * size.X, Height: scale * size.Y})
}
