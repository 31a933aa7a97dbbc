// Package virtualcamera is the node VirtualCameraSink: it writes pictures to a V4L2
// output device, which v4l2loopback shows to other programs as a camera. A device
// that is missing, busy or taken away does not end the node: it says so and goes
// on trying.
package virtualcamera

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tatolab.com/tatolab/datapath"
	"tatolab.com/tatolab/nodes/host"
	"tatolab.com/tatolab/service/control"
	"tatolab.com/tatolab/v4l2"
	"tatolab.com/tatolab/v4l2/pixel"
)

// Port is the node's one input.
const Port = "video"

// Between attempts to open the device, doubling.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 1500 * time.Millisecond
)

// config is VirtualCameraSinkConfig.
type config struct {
	DeviceID string `json:"device_id"`
}

// node belongs to the goroutine of Run.
type node struct {
	host   *host.Host
	config config

	output        *v4l2.Output // nil while there is none
	width, height int          // of the pictures it was opened for
	yuyv          []byte       // one picture, converted

	next  time.Time // when to try again
	retry time.Duration
	told  string // why nothing is shown, as the runtime was told; "" for nothing is wrong
	shows bool   // the runtime was told what is shown

	complaint string // the last one logged
}

// Main is `tatolabd virtualcamera`.
func Main([]string) int {
	return host.Main(&node{retry: firstRetry}, host.Ports{Inputs: map[string][]datapath.Format{Port: {datapath.RGBA}}})
}

// Setup checks the configuration. The device is opened by Run: that it is not
// there yet must not fail the node.
func (n *node) Setup(h *host.Host) error {
	n.host = h
	return h.Config(&n.config)
}

// Teardown has nothing to do: Run has closed the device.
func (n *node) Teardown() {}

// Run writes the newest picture whenever there is one, until ctx is done.
func (n *node) Run(ctx context.Context) error {
	defer n.close()
	input := n.host.Input(Port)
	var bag datapath.Bag
	var bare host.Bare
	for ctx.Err() == nil {
		n.host.Wait(n.attempt())
		for input.Read(&bag) {
			if what := bare.Complaint(&bag); what != "" {
				n.complain(what)
			}
			if bag.Frame == nil {
				continue
			}
			if !n.host.Paused() {
				n.show(bag.Frame)
			}
			bag.Frame.Release()
		}
	}
	return nil
}

// attempt sees to the device while there is none, and returns when to do so again,
// negative for never. It cannot be left to the next picture: the runtime cuts the
// links of a sink that does not deliver.
func (n *node) attempt() time.Duration {
	switch {
	case n.output != nil:
	case n.width == 0:
		n.look()
		return lastRetry
	case n.open():
		black(n.yuyv)
		n.write()
	}
	if n.output == nil {
		return max(0, time.Until(n.next))
	}
	return -1
}

// look tells whether there is a device before the first picture opens it.
func (n *node) look() {
	_, err := v4l2.FindOutput(n.config.DeviceID)
	if err != nil {
		n.note(err)
	} else if n.told != "" {
		n.told = ""
		n.host.Delivers("")
	}
}

// show writes a picture, to a device that is opened for its size.
func (n *node) show(f *datapath.Frame) {
	s, plane := &f.Surface, f.Surface.Planes[0]
	if s.Format != datapath.RGBA || f.Pixels == nil || s.NumPlanes != 1 || s.Width < 2 || s.Width > pixel.MaxWidth {
		n.complain(fmt.Sprintf("cannot show pictures of %s: %dx%d %v is not RGBA of 2 to %d pixels a line", f.Owner, s.Width, s.Height, s.Format, pixel.MaxWidth))
		return
	}
	if s.Height < 1 || plane.Stride < 4*s.Width || (len(f.Pixels)-plane.Offset-4*s.Width)/plane.Stride < s.Height-1 {
		n.complain(fmt.Sprintf("cannot show pictures of %s: %dx%d in lines of %d bytes do not lie within its %d bytes", f.Owner, s.Width, s.Height, plane.Stride, len(f.Pixels)))
		return
	}
	if s.Width != n.width || s.Height != n.height {
		n.close()
		n.width, n.height, n.next, n.shows = s.Width, s.Height, time.Time{}, false
	}
	if n.output == nil && !n.open() {
		return
	}
	pixel.RGBAToYUYV(n.yuyv, f.Pixels[plane.Offset:], plane.Stride, n.output.Width, n.output.Height)
	n.write()
}

// open opens the device, if it is time to, and tells whether it is open.
func (n *node) open() bool {
	if time.Now().Before(n.next) {
		return false
	}
	device, err := v4l2.FindOutput(n.config.DeviceID)
	if err == nil {
		n.output, err = v4l2.OpenOutput(device, n.width, n.height)
	}
	if err != nil {
		n.later(err)
		return false
	}
	n.yuyv = make([]byte, 2*n.output.Width*n.output.Height)
	return true
}

// write gives the picture in yuyv to the device.
func (n *node) write() {
	if err := n.output.Write(n.yuyv); err != nil {
		n.close()
		n.later(err)
		return
	}
	n.delivers()
}

// black makes a picture of YUYV black.
func black(yuyv []byte) {
	for i := range yuyv {
		yuyv[i] = 16
		if i%2 != 0 {
			yuyv[i] = 128
		}
	}
}

func (n *node) close() {
	if n.output != nil {
		n.output.Close()
		n.output = nil
	}
}

// delivers tells that all is well, once.
func (n *node) delivers() {
	if n.shows {
		return
	}
	n.shows, n.told, n.retry = true, "", firstRetry
	remark := fmt.Sprintf("%s shows %dx%d YUYV", n.output.Camera(), n.output.Width, n.output.Height)
	n.host.Log("info", remark, nil)
	n.host.Delivers(remark)
}

// later tells of an error and puts the next attempt off.
func (n *node) later(err error) {
	n.next = time.Now().Add(n.retry)
	n.retry = min(2*n.retry, lastRetry)
	n.note(err)
}

// note tells why there is no device, once for each reason.
func (n *node) note(err error) {
	const advice = "v4l2loopback makes one: `sudo modprobe v4l2loopback exclusive_caps=1 card_label=Tatolab`"
	var busy *v4l2.BusyError
	switch {
	case errors.As(err, &busy):
		n.waits("busy", fmt.Sprintf("virtual camera busy: %v: end that program, or name another device as device_id", err))
	case errors.Is(err, v4l2.ErrDenied):
		n.waits("denied", "virtual camera not permitted: "+err.Error())
	case errors.Is(err, v4l2.ErrNotFound), errors.Is(err, v4l2.ErrNotOutput):
		n.waits("missing", fmt.Sprintf("virtual camera missing: %v; %s", err, advice))
	case errors.Is(err, v4l2.ErrKeeps):
		n.waits(control.Unfit, "virtual camera failed: "+err.Error())
	case errors.Is(err, v4l2.ErrGone):
		n.waits("lost", "virtual camera lost: "+err.Error())
	default:
		n.waits("failed", "virtual camera failed: "+err.Error())
	}
}

func (n *node) waits(condition, message string) {
	if n.told != message {
		n.shows, n.told = false, message
		n.host.Waiting(condition, message)
	}
}

// complain logs what is wrong with pictures, once until something else is.
func (n *node) complain(what string) {
	if n.complaint != what {
		n.complaint = what
		n.host.Log("error", what, nil)
	}
}
