// Package fakecamera runs an unmodified program, and whatever it starts, with V4L2
// cameras that do not exist. The program gets a seccomp filter whose
// notifications (openat, ioctls of type V, poll and a few more) are answered
// here: a device is a memfd, its driver a script. So the hard cases can be
// played: unplugged, busy, silent, lying about its format.
//
// It needs Linux 5.14 and a program of the same user. Under it /dev holds the
// scripted devices and nothing else when it is listed; opening other files
// there works as ever.
//
// A Go test uses Start; the command fakecamera runs anything with a script in
// JSON.
package fakecamera

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Script is the cameras there are from the beginning, and what happens later.
type Script struct {
	Cameras []Camera `json:"cameras"`
	Events  []Event  `json:"events,omitempty"`
}

// Event is something that happens, so many seconds after the program's start.
type Event struct {
	At     float64 `json:"at"`
	Unplug string  `json:"unplug,omitempty"` // path of the camera that goes
	Plug   *Camera `json:"plug,omitempty"`   // camera that comes
	// Connect is the path of a receiver that receives Signal from now on.
	Connect string `json:"connect,omitempty"`
	Signal  Signal `json:"signal,omitzero"`
}

// Camera is a scripted device. Those of its fields that say how it misbehaves
// are all off by default.
type Camera struct {
	Path   string `json:"path"`            // /dev/videoN
	ByID   string `json:"by_id,omitempty"` // its link in /dev/v4l/by-id
	Card   string `json:"card"`
	Driver string `json:"driver,omitempty"` // default uvcvideo
	Bus    string `json:"bus,omitempty"`    // default usb-fake-N
	// Metadata makes it the second node of a webcam: no pictures, though the
	// device as a whole has some.
	Metadata bool `json:"metadata,omitempty"`
	// Output makes it a device that takes pictures, by write(2). Where they go,
	// nobody sees: State tells how much it was.
	Output bool `json:"output,omitempty"`
	// Multiplanar gives it the multi-planar interface. Only then can it have
	// formats whose planes lie apart.
	Multiplanar bool     `json:"multiplanar,omitempty"`
	Formats     []Format `json:"formats,omitempty"`
	// Signal makes it a receiver, of HDMI for example: pictures have the size
	// that it was set to receive, and come while that is what is connected.
	Signal   *Signal `json:"signal,omitempty"`
	NoEvents bool    `json:"no_events,omitempty"` // and it does not tell when that changes
	// Motion makes a box stand still and move, so many seconds each.
	Motion float64 `json:"motion,omitempty"`

	Grant         *Grant  `json:"grant,omitempty"`           // granted whatever is asked for
	NoRateControl bool    `json:"no_rate_control,omitempty"` // no VIDIOC_S_PARM
	Padding       int     `json:"padding,omitempty"`         // bytes after each line; twice as many after one of chroma that lies apart
	DataOffset    int     `json:"data_offset,omitempty"`     // bytes before the picture in each piece of memory, if it is multi-planar
	Colorspace    uint32  `json:"colorspace,omitempty"`      // V4L2_COLORSPACE_*
	Clock         Clock   `json:"clock,omitempty"`
	LoseEvery     int     `json:"lose_every,omitempty"`     // each Nth frame is missing
	ErrorEvery    int     `json:"error_every,omitempty"`    // each Nth has the ERROR flag and half a picture
	TruncateEvery int     `json:"truncate_every,omitempty"` // each Nth is cut in the middle, without a flag
	Endless       bool    `json:"endless,omitempty"`        // JPEGs lack their end marker
	EmptyEvery    int     `json:"empty_every,omitempty"`    // each Nth has no bytes
	IOErrorEvery  int     `json:"io_error_every,omitempty"` // each Nth DQBUF fails with EIO
	StopAfter     int     `json:"stop_after,omitempty"`     // frames after STREAMON, then silence
	WorksOnce     bool    `json:"works_once,omitempty"`     // no frames after the first STREAMON of each opening
	Silent        bool    `json:"silent,omitempty"`         // no frames at all
	AlwaysReady   bool    `json:"always_ready,omitempty"`   // poll says ready when nothing is
	SlowStart     float64 `json:"slow_start,omitempty"`     // seconds from STREAMON to the first frame
	UnplugAfter   int     `json:"unplug_after,omitempty"`   // frames, once
	Busy          bool    `json:"busy,omitempty"`           // somebody else streams from it: this program, in fact
	Denied        bool    `json:"denied,omitempty"`         // EACCES
	BuffersAtMost int     `json:"buffers_at_most,omitempty"`
	NoBandwidth   bool    `json:"no_bandwidth,omitempty"` // STREAMON fails with ENOSPC
	// Hang names an ioctl that does not return until the camera is unplugged
	// or replaced, or Hang is no more: DQBUF, STREAMON, STREAMOFF, QBUF, S_FMT, QUERYCAP.
	Hang string `json:"hang,omitempty"`
}

// Clock is what the timestamps of frames are made from.
type Clock string

// Clocks.
const (
	Monotonic Clock = ""         // as they should be
	Realtime  Clock = "realtime" // the wall clock, said to be monotonic
	Unknown   Clock = "unknown"  // no flag, microseconds since the stream began
	Frozen    Clock = "frozen"   // always the same
	Ahead     Clock = "ahead"    // ten seconds in the future
)

// Format is a pixel format a camera offers.
type Format struct {
	FourCC string `json:"fourcc"`
	// Sizes are listed one by one.
	Sizes []Size `json:"sizes,omitempty"`
	// Range is one entry of a stepwise range instead.
	Range *Range `json:"range,omitempty"`
}

// Size is in pixels; without Rates the driver lists none.
type Size struct {
	Width  int       `json:"width"`
	Height int       `json:"height"`
	Rates  []float64 `json:"rates,omitempty"` // frames a second
}

// Range is every size from Min to Max in steps of Step, in pixels.
type Range struct {
	Min, Max, Step Size
	Rates          []float64
}

// Grant is what S_FMT answers.
type Grant struct {
	FourCC string  `json:"fourcc"`
	Width  int     `json:"width"`
	Height int     `json:"height"`
	Rate   float64 `json:"rate,omitempty"` // frames a second; 0: what was asked for
}

// Signal is what is connected to a receiver; the zero value is nothing.
type Signal struct {
	Width  int     `json:"width"`
	Height int     `json:"height"`
	Rate   float64 `json:"rate"` // frames a second
	// Unstable and TooFast are signals that it cannot be set to.
	Unstable bool `json:"unstable,omitempty"`
	TooFast  bool `json:"too_fast,omitempty"`
}

// Webcam is a well-behaved camera of one format.
func Webcam(path, fourcc string, width, height int, rates ...float64) Camera {
	return Camera{Path: path, Card: "Fake Webcam", Formats: []Format{{FourCC: fourcc, Sizes: []Size{{width, height, rates}}}}}
}

// Parse reads a script from JSON.
func Parse(data []byte) (Script, error) {
	var s Script
	d := json.NewDecoder(strings.NewReader(string(data)))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return s, fmt.Errorf("cannot read the script: %w", err)
	}
	return s, nil
}

// check reports what cannot be played.
func (c Camera) check() error {
	if number(c.Path) < 0 {
		return fmt.Errorf("camera %q: its path is not /dev/videoN", c.Path)
	}
	if len(c.Formats) == 0 && c.Grant == nil && !c.Metadata {
		return fmt.Errorf("camera %s has no formats", c.Path)
	}
	for _, f := range c.Formats {
		if !encodable(f.FourCC) && (c.Grant == nil || !encodable(c.Grant.FourCC)) {
			return fmt.Errorf("camera %s: no pictures can be made in %q", c.Path, f.FourCC)
		}
		if _, apart := together[f.FourCC]; apart && !c.Multiplanar {
			return fmt.Errorf("camera %s: only a multi-planar one has pictures in %q", c.Path, f.FourCC)
		}
		for _, s := range f.Sizes {
			if s.Width%2 != 0 || s.Height%2 != 0 || s.Width < 64 || s.Height < 8 {
				return fmt.Errorf("camera %s: sizes are even and at least 64x8, not %dx%d", c.Path, s.Width, s.Height)
			}
		}
	}
	return nil
}
