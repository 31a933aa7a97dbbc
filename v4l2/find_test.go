package v4l2

import (
	"errors"
	"strings"
	"testing"
)

func TestFind(t *testing.T) {
	a := Camera{Path: "/dev/video0", Card: "Logi", Driver: "uvcvideo", Bus: "usb-1", Names: []string{"usb-Logi_A-video-index0"}}
	b := Camera{Path: "/dev/video2", Card: "Logi", Driver: "uvcvideo", Bus: "usb-2", Names: []string{"usb-Logi_B-video-index0"}}
	csi := Camera{Path: "/dev/video4", Card: "sensor", Driver: "csi", Bus: "platform"}
	csi2 := Camera{Path: "/dev/video6", Card: "sensor", Driver: "csi", Bus: "platform-2"}
	closed := Camera{Path: "/dev/video8", Err: denied("/dev/video8")}
	all := []Camera{a, b, csi}
	const path0, unnumbered = "/dev/video0", "usb-Twin-video-index0"
	single := Camera{Path: path0, Card: "Twin", Driver: "uvcvideo", Bus: "usb-1", Names: []string{unnumbered}}
	twinB := Camera{Path: "/dev/video2", Card: "Twin", Driver: "uvcvideo", Bus: "usb-2", Names: []string{unnumbered}}
	twinA, err := find([]Camera{single, twinB}, path0, nil)
	if err == nil { // and it is remembered while the twin is away
		twinA, err = find([]Camera{single}, path0, &twinA)
	}
	if err != nil {
		t.Fatal(err)
	}
	moved := func(c Camera, path, bus string) Camera { c.Path, c.Bus = path, bus; return c }

	for _, test := range []struct {
		name   string
		list   []Camera
		device string
		before *Camera
		want   string // path, or part of the error
		is     error
	}{
		{"the first", all, "", nil, "/dev/video0", nil},
		{"the first that may be opened", []Camera{closed, csi}, "", nil, "/dev/video4", nil},
		{"none may be opened", []Camera{closed}, "", nil, "usermod", ErrDenied},
		{"none", nil, "", nil, "there is no capture device", ErrNotFound},
		{"a path", all, "/dev/video2", nil, "/dev/video2", nil},
		{"a path of no camera", all, "/dev/video1", nil, "/dev/video1; there are /dev/video0 (Logi), ", ErrNotFound},
		{"a stable name", all, "usb-Logi_B-video-index0", nil, "/dev/video2", nil},
		{"the path of one", all, "/dev/v4l/by-id/usb-Logi_B-video-index0", nil, "/dev/video2", nil},
		{"a card", all, "sensor", nil, "/dev/video4", nil},
		{"a card, in other letters", all, "Sensor", nil, "/dev/video4", nil},
		{"a card of two", all, "Logi", nil, "2 cameras are called Logi", nil},
		{"the same again", all, "", &b, "/dev/video2", nil},
		{"the same elsewhere, by name", []Camera{moved(b, "/dev/video0", "usb-9"), csi}, "/dev/video2", &b, "/dev/video0", nil},
		{"its number is another's", []Camera{moved(a, "/dev/video2", "usb-2")}, "/dev/video2", &b, "not found: /dev/video2 (Logi)", ErrNotFound},
		{"without a name, elsewhere", []Camera{a, moved(csi, "/dev/video9", "platform-9")}, "", &csi, "/dev/video9", nil},
		{"two alike, one at its place", []Camera{csi2, moved(csi, "/dev/video9", "platform")}, "", &csi, "/dev/video9", nil},
		{"two alike, none at its place", []Camera{csi2, moved(csi, "/dev/video9", "platform-9")}, "", &csi, "2 cameras are called", nil},
		// Two webcams without serial numbers: the name is that of either.
		{"its twin has its name", []Camera{twinB}, path0, &twinA, "not found: /dev/video0 (Twin)", ErrNotFound},
		{"its twin has its name, it is back", []Camera{moved(twinA, "/dev/video7", "usb-1"), twinB}, path0, &twinA, "/dev/video7", nil},
		{"one without a twin moves", []Camera{moved(single, "/dev/video7", "usb-9")}, path0, &single, "/dev/video7", nil},
		{"it came back forbidden", []Camera{closed}, "/dev/video8", nil, "usermod", ErrDenied},
	} {
		c, err := find(test.list, test.device, test.before)
		switch {
		case strings.HasPrefix(test.want, "/dev/") && test.is == nil:
			if err != nil || c.Path != test.want {
				t.Errorf("%s: %s, %v, want %s", test.name, c.Path, err, test.want)
			}
		case err == nil || !strings.Contains(err.Error(), test.want) || test.is != nil && !errors.Is(err, test.is):
			t.Errorf("%s: %s, %v, want it to say %s", test.name, c.Path, err, test.want)
		}
	}
}

func TestHoldersAreSeen(t *testing.T) {
	if who := (&BusyError{Path: "/dev/video0", Card: "C"}).Error(); !strings.Contains(who, "another user's process") {
		t.Error(who)
	}
	who := (&BusyError{Path: "/dev/video0", Card: "C", Holders: []Holder{{42, "cheese"}, {43, "ffmpeg"}}}).Error()
	if who != "/dev/video0 (C) is held by cheese (pid 42), ffmpeg (pid 43)" {
		t.Error(who)
	}
}
