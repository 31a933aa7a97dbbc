// Package displaywindow is the built-in node DisplayWindow: the program
// tatolab-window. docs/pictures.md says why it is as it is.
package displaywindow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"tatolab.com/tatolab/datapath"
	"tatolab.com/tatolab/gl/display"
	"tatolab.com/tatolab/gl/fit"
	"tatolab.com/tatolab/gl/window"
	"tatolab.com/tatolab/nodes/host"
)

const (
	// lookAgain is how often a display is looked for while there is none.
	lookAgain = time.Second
	// maxSide bounds a window's configured sides, in units.
	maxSide = 16384
)

// Main runs the node and returns the exit status. The caller has locked its
// goroutine to the process's main thread, which the window system needs.
func Main() int {
	return host.Main(&node{}, host.Ports{Inputs: map[string][]datapath.Format{"video": {datapath.RGBA}}, Later: true})
}

// config is DisplayWindowConfig of tatolab.stream.
type config struct {
	Title   string      `json:"title"`
	Width   int         `json:"width"`
	Height  int         `json:"height"`
	Scaling fit.Scaling `json:"scaling"`
}

var defaults = config{Width: 1280, Height: 720, Scaling: fit.Fit}

func (c config) check() error {
	if !c.Scaling.Valid() {
		return fmt.Errorf("scaling is %q, none of fit, fill, stretch", c.Scaling)
	}
	return cmp.Or(
		host.Between("width", float64(c.Width), 1, maxSide),
		host.Between("height", float64(c.Height), 1, maxSide),
	)
}

type node struct {
	host    *host.Host
	config  config
	started display.Environment

	mu     sync.Mutex
	newest *datapath.Frame // read, not yet shown; nil without
	taken  int64           // its timestamp
	window *window.Window  // nil before it opens

	graphics *graphics // of the drawing thread

	complaint string // the last one logged
}

// Setup reads the configuration. The display may come later, so nothing here
// needs one.
func (n *node) Setup(h *host.Host) error {
	n.host = h
	n.graphics = &graphics{host: h}
	n.started = display.Own()
	n.config = defaults
	n.config.Title = h.Spec.Stream
	if err := h.Config(&n.config); err != nil {
		return err
	}
	return n.config.check()
}

// Run waits for a display and shows the window until it is closed.
func (n *node) Run(ctx context.Context) error {
	reading := make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer close(reading)
		n.read(ctx)
	}()
	defer func() {
		cancel()
		n.host.Waiter.Wake()
		<-reading
	}()
	w, err := n.open(ctx)
	if w == nil {
		return err
	}
	n.mu.Lock()
	n.window = w
	n.mu.Unlock()
	n.host.Delivers("on display " + os.Getenv("DISPLAY"))
	// Who cannot share memory has a picture read back by the node that made it,
	// once for all its readers.
	if w.Imports() {
		n.host.Join(datapath.Resident)
	} else {
		n.host.Join()
	}
	unwatch := context.AfterFunc(ctx, w.Close)
	defer unwatch()
	closed, err := w.Run()
	if closed {
		n.host.Log("info", fmt.Sprintf("window closed; `tatolab start %s` opens it again", n.host.Spec.Stream), nil)
	}
	return err
}

// open opens the window once there is a display; nil when the node is to stop.
func (n *node) open(ctx context.Context) (*window.Window, error) {
	c := n.config
	for n.awaitDisplay(ctx) {
		w, err := window.Open(
			window.Options{Title: c.Title, Width: c.Width, Height: c.Height, Scaling: c.Scaling},
			n.take, datapath.Now, func(err error) { n.complain(err.Error()) },
		)
		// A display may close between the look for it and the use of it: an X
		// server starts afresh when its last client goes.
		if !errors.Is(err, window.ErrNoDisplay) {
			return w, err
		}
	}
	return nil, nil
}

// awaitDisplay returns true once a display is there, false when the node is to
// stop.
func (n *node) awaitDisplay(ctx context.Context) bool {
	said := ""
	for {
		err := display.Find(ctx, n.started, window.Reachable)
		if ctx.Err() != nil {
			return false
		}
		if err == nil {
			return true
		}
		if why := "waits for a display: " + err.Error(); why != said {
			n.host.Waiting("display", why)
			said = why
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(lookAgain):
		}
	}
}

// read keeps the newest picture for the drawing thread, whether there is a
// window or not: a window that is slow, hidden or not there yet shows the
// newest when it can.
func (n *node) read(ctx context.Context) {
	input := n.host.Input("video")
	var bag datapath.Bag
	var bare host.Bare
	for ctx.Err() == nil {
		n.host.Wait(-1)
		for input.Read(&bag) {
			if what := bare.Complaint(&bag); what != "" {
				n.complain(what)
			}
			if bag.Frame != nil {
				n.keep(bag.Frame, bag.Timestamp)
			}
		}
	}
	n.keep(nil, 0)
}

// keep replaces the newest picture by frame, if the node can show it.
func (n *node) keep(frame *datapath.Frame, taken int64) {
	if frame != nil && (n.host.Paused() || !n.usable(frame)) {
		frame.Release()
		return
	}
	n.mu.Lock()
	old, w := n.newest, n.window
	n.newest, n.taken = frame, taken
	n.mu.Unlock()
	if old != nil {
		old.Release()
	}
	if w != nil && frame != nil {
		w.Wake()
	}
}

func (n *node) usable(frame *datapath.Frame) bool {
	if frame.Surface.Format == datapath.Resident {
		return true
	}
	if s := frame.Surface; s.Format != datapath.RGBA || frame.Pixels == nil || s.NumPlanes != 1 {
		n.complain(fmt.Sprintf("cannot show pictures of %s: their format is %q, a window shows %q", frame.Owner, s.Format, datapath.RGBA))
		return false
	}
	return true
}

// take gives the newest picture to the drawing thread.
func (n *node) take() (window.Picture, bool) {
	n.mu.Lock()
	frame, taken := n.newest, n.taken
	n.newest = nil
	n.mu.Unlock()
	if frame == nil {
		return window.Picture{}, false
	}
	p := window.Picture{Width: frame.Surface.Width, Height: frame.Surface.Height, Time: taken, Release: frame.Release}
	if frame.Surface.Format == datapath.Resident {
		if err := n.graphics.find(&p, frame.Pixels); err != nil {
			frame.Release()
			if !errors.Is(err, errLost) {
				n.complain(fmt.Sprintf("cannot show pictures of %s: %v", frame.Owner, err))
			}
			return window.Picture{}, false
		}
		return p, true
	}
	plane := frame.Surface.Planes[0]
	p.Pixels, p.Stride = frame.Pixels[plane.Offset:], plane.Stride
	return p, true
}

// complain logs what is wrong, once until something else is.
func (n *node) complain(what string) {
	n.mu.Lock()
	again := n.complaint == what
	n.complaint = what
	n.mu.Unlock()
	if !again {
		n.host.Log("error", what, nil)
	}
}

// Teardown: Run has let go of everything; the window ends with the process.
func (n *node) Teardown() {}
