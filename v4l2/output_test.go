package v4l2

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// Which output a name finds, and what is said of one that is in use or none.
func TestFindOutput(t *testing.T) {
	free := Camera{Path: "/dev/video7", Card: "Tatolab", Names: []string{"usb-x"}}
	webcam := Camera{Path: "/dev/video0", Card: "Webcam"}
	closed := Camera{Path: "/dev/video8", Err: ErrDenied}
	for _, c := range []struct {
		list   []Camera
		device string
		path   string
		err    error
	}{
		{[]Camera{closed, free}, "", free.Path, nil},
		{[]Camera{free}, "/dev/video7", free.Path, nil},
		{[]Camera{free}, "usb-x", free.Path, nil},
		{[]Camera{free}, "tatolab", free.Path, nil},
		{[]Camera{closed}, "/dev/video8", "", ErrDenied},
		{nil, "", "", ErrNotFound},
		{[]Camera{free}, "/dev/video9", "", ErrNotFound},
		{[]Camera{free}, "Webcam", "", ErrNotOutput},
	} {
		got, err := findOutput(c.list, []Camera{webcam}, c.device)
		if !errors.Is(err, c.err) || err == nil && got.Path != c.path {
			t.Errorf("%q in %v: %v, %v; want %s, %v", c.device, c.list, got, err, c.path, c.err)
		}
	}
}

// A device that takes no format is not kept open.
func TestOpenOutputFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "video0")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	count := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	before := count()
	if o, err := OpenOutput(Camera{Path: path}, 64, 64); err == nil {
		o.Close()
		t.Error("a file is an output device")
	}
	if after := count(); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}
