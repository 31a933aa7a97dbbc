// Package testpattern is the node TestPatternSource: colour bars with a frame
// counter, and something that moves if that is wanted. It needs no camera.
package testpattern

import (
	"cmp"
	"context"
	"fmt"
	"image"
	"time"

	"tatolab.com/tatolab/datapath"
	"tatolab.com/tatolab/nodes/host"
	"tatolab.com/tatolab/nodes/testpattern/pattern"
)

// Port is the node's one output.
const Port = "video"

// config is TestPatternSourceConfig.
type config struct {
	Width  int     `json:"width"`
	Height int     `json:"height"`
	FPS    float64 `json:"fps"`
	// Motion is how long, in seconds, the box stands still and then moves.
	Motion float64 `json:"motion"`
}

var defaults = config{Width: 1280, Height: 720, FPS: 30}

func (c config) check() error {
	const largest = 8192 // pixels
	return cmp.Or(
		host.Between("width", float64(c.Width), pattern.MinWidth, largest),
		host.Between("height", float64(c.Height), pattern.MinHeight, largest),
		host.Between("fps", c.FPS, 0.001, 1000),
		host.Between("motion", c.Motion, 0, 1e6),
	)
}

// node draws each frame by copying what was drawn in Setup.
type node struct {
	host   *host.Host
	config config
	video  *host.Video
	bars   []byte
	box    []byte
	// of the frame being drawn
	frame   uint32
	seconds float64

	changed chan struct{}
}

// Main is `tatolabd testpattern`.
func Main(args []string) int {
	n := &node{changed: make(chan struct{}, 1)}
	return host.Main(n, host.Ports{
		Outputs: map[string][]datapath.Format{Port: {datapath.RGBA}},
		Changed: func() {
			select {
			case n.changed <- struct{}{}:
			default:
			}
		},
	})
}

func (n *node) Setup(h *host.Host) error {
	n.host = h
	n.config = defaults
	if err := h.Config(&n.config); err != nil {
		return err
	}
	if err := n.config.check(); err != nil {
		return err
	}
	n.video = host.NewVideo(h.Output(Port))
	n.prepare()
	h.Delivers(fmt.Sprintf("%dx%d %g/s", n.config.Width, n.config.Height, n.config.FPS))
	return nil
}

// prepare draws what does not change.
func (n *node) prepare() {
	w, h := n.config.Width, n.config.Height
	n.bars = make([]byte, 4*w*h)
	pattern.Bars(n.bars, 4*w, w, h)
	if n.config.Motion > 0 {
		box := pattern.Box(w, h)
		n.box = make([]byte, 4*box.X*box.Y)
		pattern.Stripes(n.box, 4*box.X, box)
	}
}

func (n *node) Teardown() {}

// Run publishes a frame when its time comes, counted from the beginning: time
// goes on while nobody reads, and the counter with it.
func (n *node) Run(ctx context.Context) error {
	interval := time.Duration(float64(time.Second) / n.config.FPS)
	picture := host.Picture{Width: n.config.Width, Height: n.config.Height, FPS: n.config.FPS, Colour: datapath.SRGB}
	begin := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if !n.host.Active(Port) {
			select {
			case <-ctx.Done():
				return nil
			case <-n.changed:
			}
			continue
		}
		// A late wake-up loses frames, as a camera's would; it does not
		// make up for them in a burst.
		number := time.Since(begin)/interval + 1
		timer.Reset(time.Until(begin.Add(number * interval)))
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		n.frame, n.seconds = uint32(number), float64(number)/n.config.FPS
		picture.TimestampNS = datapath.Now()
		if err := n.video.Publish(picture, n.draw); err != nil {
			return err
		}
	}
}

// draw makes the picture of n.frame.
func (n *node) draw(pixels []byte) error {
	w, h := n.config.Width, n.config.Height
	copy(pixels, n.bars)
	if n.box != nil {
		size := pattern.Box(w, h)
		at := pattern.BoxAt(w, h, pattern.Moved(n.seconds, n.config.Motion))
		for y := range size.Y {
			copy(pixels[4*((at.Y+y)*w+at.X):], n.box[4*y*size.X:4*(y+1)*size.X])
		}
	}
	pattern.Squares(w, h, n.frame, func(r image.Rectangle, white bool) {
		var c byte
		if white {
			c = 255
		}
		for y := r.Min.Y; y < r.Max.Y; y++ {
			line := pixels[4*(y*w+r.Min.X) : 4*(y*w+r.Max.X)]
			for i := 0; i < len(line); i += 4 {
				line[i], line[i+1], line[i+2], line[i+3] = c, c, c, 255
			}
		}
	})
	return nil
}
