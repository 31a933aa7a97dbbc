// Package xvfb gives tests a display: an X server that draws into memory, and
// what a person would do at it.
package xvfb

/*
#cgo LDFLAGS: -lX11
#include <stdlib.h>
#include <string.h>
#include <X11/Xatom.h>
#include <X11/Xlib.h>
#include <X11/Xutil.h>

// Functions, since cgo calls no macros.
static Window root(Display *d) { return DefaultRootWindow(d); }

// What a test touches may be gone already, with the process it belonged to;
// Xlib would end the test over that.
static int ignore(Display *d, XErrorEvent *e) { return 0; }

static void prepare(void) {
	XInitThreads(); // tests run side by side
	XSetErrorHandler(ignore);
}

// A title as desktops read it: in UTF-8 (_NET_WM_NAME).
static int titled(Display *d, Window w, const char *title) {
	Atom type;
	int format, found = 0;
	unsigned long n, rest;
	unsigned char *name = NULL;
	if (XGetWindowProperty(d, w, XInternAtom(d, "_NET_WM_NAME", False), 0, 1024, False, AnyPropertyType,
			&type, &format, &n, &rest, &name) == Success && name) {
		found = !strcmp((char *)name, title);
		XFree(name);
	}
	return found;
}

static Window find(Display *d, Window in, const char *title) {
	Window r, parent, *children, found = 0;
	unsigned int n;
	if (titled(d, in, title))
		return in;
	if (XQueryTree(d, in, &r, &parent, &children, &n)) {
		for (unsigned int i = 0; i < n && !found; i++)
			found = find(d, children[i], title);
		if (children)
			XFree(children);
	}
	return found;
}

static int geometry(Display *d, Window w, unsigned int *width, unsigned int *height) {
	Window r;
	int x, y;
	unsigned int border, depth;
	return XGetGeometry(d, w, &r, &x, &y, width, height, &border, &depth);
}

// What a window manager does when it minimises a window (ICCCM 4.1.3.1) or
// brings it back.
static void state(Display *d, Window w, long state) {
	long value[] = {state, None};
	Atom wm_state = XInternAtom(d, "WM_STATE", False);
	if (state == NormalState)
		XMapWindow(d, w);
	else
		XUnmapWindow(d, w);
	XChangeProperty(d, w, wm_state, wm_state, 32, PropModeReplace, (const unsigned char *)value, 2);
	XFlush(d);
}

static void resources(Display *d, const char *text) {
	XChangeProperty(d, DefaultRootWindow(d), XA_RESOURCE_MANAGER, XA_STRING, 8, PropModeReplace,
		(const unsigned char *)text, strlen(text));
	XSync(d, False);
}

static void ask_to_close(Display *d, Window w) {
	XEvent e;
	memset(&e, 0, sizeof e);
	e.xclient.type = ClientMessage;
	e.xclient.window = w;
	e.xclient.message_type = XInternAtom(d, "WM_PROTOCOLS", False);
	e.xclient.format = 32;
	e.xclient.data.l[0] = XInternAtom(d, "WM_DELETE_WINDOW", False);
	XSendEvent(d, w, False, NoEventMask, &e);
	XFlush(d);
}

static void key(Display *d, Window w, const char *name) {
	XEvent e;
	memset(&e, 0, sizeof e);
	e.xkey.window = w;
	e.xkey.root = DefaultRootWindow(d);
	e.xkey.keycode = XKeysymToKeycode(d, XStringToKeysym(name));
	e.xkey.same_screen = True;
	e.xkey.time = CurrentTime;
	e.xkey.type = KeyPress;
	XSendEvent(d, w, False, KeyPressMask, &e);
	e.xkey.type = KeyRelease;
	XSendEvent(d, w, False, KeyReleaseMask, &e);
	XFlush(d);
}

// grab copies the screen as packed RGBA and returns 0 if it cannot.
static int grab(Display *d, unsigned char *rgba, int width, int height) {
	XImage *image = XGetImage(d, DefaultRootWindow(d), 0, 0, width, height, AllPlanes, ZPixmap);
	if (!image)
		return 0;
	for (int y = 0; y < height; y++)
		for (int x = 0; x < width; x++) {
			unsigned long p = XGetPixel(image, x, y);
			*rgba++ = p >> 16;
			*rgba++ = p >> 8;
			*rgba++ = p;
			*rgba++ = 255;
		}
	XDestroyImage(image);
	return 1;
}

static void size(Display *d, int *width, int *height) {
	*width = DisplayWidth(d, DefaultScreen(d));
	*height = DisplayHeight(d, DefaultScreen(d));
}
*/
import "C"

import (
	"bufio"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Server is a running X server. Its methods are for one goroutine.
type Server struct {
	// Name is what DISPLAY is set to.
	Name string

	t       testing.TB
	cmd     *exec.Cmd
	display *C.Display
}

// last counts the servers of this process.
var last atomic.Int32

var prepare = sync.OnceFunc(func() { C.prepare() })

// patience is how long anything at a display may take: the machine may be busy, or emulated.
const patience = 2 * time.Minute

// freeName is a display's name that nobody else takes, also after its server
// has ended: windows that wait for one would open on another test's.
func freeName() string {
	for {
		name := fmt.Sprintf(":%d", 1000+(os.Getpid()*50+int(last.Add(1)))%50000)
		if !slices.ContainsFunc(files(name), func(file string) bool { _, err := os.Lstat(file); return err == nil }) {
			return name
		}
	}
}

// files are what a server of that name makes, and leaves when it is killed.
func files(name string) []string {
	return []string{"/tmp/.X" + name[1:] + "-lock", "/tmp/.X11-unix/X" + name[1:]}
}

// Start starts a server with a screen of 1000×800, which ends with the test.
// A name that is not empty is that of an earlier server, to come back.
func Start(t testing.TB, name string) *Server {
	t.Helper()
	if _, err := exec.LookPath("Xvfb"); err != nil {
		t.Fatal("this test needs a display of its own: apt install xvfb libgl1-mesa-dri")
	}
	return StartAs(t, name, "Xvfb", "-screen", "0", "1000x800x24")
}

// StartAs is Start with another server, a program and what it is to be told.
func StartAs(t testing.TB, name, program string, args ...string) *Server {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if name == "" {
		name = freeName()
	}
	args = append([]string{name, "-displayfd", "3", "-nolisten", "tcp", "-noreset"}, args...)
	s := &Server{t: t, Name: name, cmd: exec.Command(program, args...)}
	s.cmd.ExtraFiles = []*os.File{w}
	var said strings.Builder
	s.cmd.Stderr = &said
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	t.Cleanup(s.Stop)
	if _, err := bufio.NewReader(r).ReadString('\n'); err != nil {
		s.cmd.Process.Kill()
		s.cmd.Wait() // and its files, which may be those of another, stay
		t.Fatalf("%s %s did not start: %s", program, name, said.String())
	}
	prepare()
	cname := C.CString(s.Name)
	defer C.free(unsafe.Pointer(cname))
	if s.display = C.XOpenDisplay(cname); s.display == nil {
		t.Fatalf("cannot open display %s", s.Name)
	}
	return s
}

// Stop ends the server, as a session that is closed does.
func (s *Server) Stop() {
	if s.display != nil {
		s.Thaw() // or our own farewell would wait for ever
		C.XCloseDisplay(s.display)
		s.display = nil
	}
	if s.cmd.ProcessState != nil {
		return // its name may be another's by now
	}
	s.cmd.Process.Kill()
	s.cmd.Wait()
	for _, file := range files(s.Name) {
		os.Remove(file)
	}
}

// Freeze stops the server, as a display that hangs; Thaw lets it go on.
func (s *Server) Freeze() { s.cmd.Process.Signal(unix.SIGSTOP) }

// Thaw undoes Freeze.
func (s *Server) Thaw() { s.cmd.Process.Signal(unix.SIGCONT) }

// Screen returns what the screen shows.
func (s *Server) Screen() *image.RGBA {
	s.t.Helper()
	var width, height C.int
	C.size(s.display, &width, &height)
	shot := image.NewRGBA(image.Rect(0, 0, int(width), int(height)))
	if C.grab(s.display, (*C.uchar)(&shot.Pix[0]), width, height) == 0 {
		s.t.Fatal("cannot take a screenshot")
	}
	return shot
}

// Save writes what the screen shows to a PNG file.
func (s *Server) Save(path string) {
	s.t.Helper()
	file, err := os.Create(path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer file.Close()
	if err := png.Encode(file, s.Screen()); err != nil {
		s.t.Fatal(err)
	}
}

// Window is a window of some client.
type Window struct {
	s  *Server
	id C.Window
}

// Window waits for a window of that title.
func (s *Server) Window(title string) Window {
	s.t.Helper()
	var w Window
	s.Wait(fmt.Sprintf("window %q", title), func() (found bool) {
		w, found = s.Find(title)
		return found
	})
	return w
}

// Find returns the window of that title, if there is one.
func (s *Server) Find(title string) (Window, bool) {
	ctitle := C.CString(title)
	defer C.free(unsafe.Pointer(ctitle))
	id := C.find(s.display, C.root(s.display), ctitle)
	return Window{s, id}, id != 0
}

// Wait waits until the condition holds.
func (s *Server) Wait(what string, holds func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("no %s within %s", what, patience)
		}
	}
}

// Dense makes the screen one of that many dots an inch, as desktops tell
// programs that start from then on; 96 is the ordinary.
func (s *Server) Dense(dpi int) {
	text := C.CString(fmt.Sprintf("Xft.dpi:\t%d\n", dpi))
	defer C.free(unsafe.Pointer(text))
	C.resources(s.display, text)
}

// Place moves the window, above all others, and gives it a size, in pixels.
func (w Window) Place(x, y, width, height int) {
	C.XRaiseWindow(w.s.display, w.id)
	C.XMoveResizeWindow(w.s.display, w.id, C.int(x), C.int(y), C.uint(width), C.uint(height))
	C.XFlush(w.s.display)
}

// Size is the window's, in pixels.
func (w Window) Size() image.Point {
	w.s.t.Helper()
	var width, height C.uint
	if C.geometry(w.s.display, w.id, &width, &height) == 0 {
		w.s.t.Fatal("the window is gone")
	}
	return image.Pt(int(width), int(height))
}

// Close does what the button in the title bar does.
func (w Window) Close() { C.ask_to_close(w.s.display, w.id) }

// Key presses and releases a key, named as X does ("i").
func (w Window) Key(name string) {
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	C.key(w.s.display, w.id, cname)
}

// Hide and Show unmap and map the window.
func (w Window) Hide() { C.XUnmapWindow(w.s.display, w.id); C.XFlush(w.s.display) }

// Show undoes Hide.
func (w Window) Show() { C.XMapWindow(w.s.display, w.id); C.XFlush(w.s.display) }

// Minimise does what a window manager does then, of which there is none here.
func (w Window) Minimise() { C.state(w.s.display, w.id, C.IconicState) }

// Restore undoes Minimise.
func (w Window) Restore() { C.state(w.s.display, w.id, C.NormalState) }

// Near tells whether two colours differ by a rounding at most.
func Near(a, b color.RGBA) bool {
	close := func(x, y uint8) bool { return max(x, y)-min(x, y) <= 2 }
	return close(a.R, b.R) && close(a.G, b.G) && close(a.B, b.B)
}
