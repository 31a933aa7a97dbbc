package v4l2

import (
	"slices"
	"strings"
	"testing"

	go4vl "github.com/vladimirvivien/go4vl/v4l2"
	"golang.org/x/sys/unix"
)

// panel is a driver with controls; manual exposure is only to be had once the
// automatic one is off.
type panel struct {
	driver
	values map[uint32]int
}

func (p *panel) controls() ([]Control, error) {
	return []Control{
		{"exposure_time_absolute", 3, 2047, p.values[2], 2, go4vl.CtrlFlagInactive},
		{"auto_exposure", 0, 3, p.values[9], 9, 0},
		{"brightness", 0, 255, p.values[1], 1, 0},
		{"privacy", 0, 1, 0, 4, go4vl.CtrlFlagReadOnly},
		{"rotate", 0, 270, 0, 5, go4vl.CtrlFlagGrabbed},
		{"power_line_frequency", 0, 3, 0, 3, 0},
	}, nil
}

func (p *panel) setControl(id uint32, value int) error {
	if id == 2 && p.values[9] != 1 {
		return unix.EACCES
	}
	if id == 5 {
		return unix.EBUSY
	}
	if id == 3 && value == 2 {
		return unix.EINVAL
	}
	p.values[id] = value
	return nil
}

func TestSetControls(t *testing.T) {
	p := &panel{values: map[uint32]int{9: 3}}
	d := &Device{camera: Camera{Path: "/dev/video0", Card: "Cam"}, driver: p}
	// The higher id frees the lower one: a second round sets it.
	if err := d.SetControls(map[string]int{"exposure_time_absolute": 100, "auto_exposure": 1, "brightness": 7}); err != nil {
		t.Fatal(err)
	}
	if p.values[2] != 100 || p.values[9] != 1 || p.values[1] != 7 {
		t.Errorf("set to %v", p.values)
	}
	err := d.SetControls(map[string]int{"privacy": 1, "rotate": 90, "power_line_frequency": 2, "contrast": 1, "brightness": 256, "auto_exposure": 3, "exposure_time_absolute": 5})
	for _, want := range []string{
		"has no control contrast; it has auto_exposure, brightness, exposure_time_absolute, power_line_frequency, privacy, rotate",
		"control brightness of", "goes from 0 to 255",
		"control privacy of", "can only be read", "control rotate of /dev/video0 (Cam) cannot be set now: its driver", "power_line_frequency of /dev/video0 (Cam) cannot be 2: `v4l2-ctl -d /dev/video0 -L`",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	if p.values[9] != 3 {
		t.Error("what could be set was not")
	}
	// An automatic control has it, and stays on.
	if err := d.SetControls(map[string]int{"exposure_time_absolute": 5}); err == nil || !strings.Contains(err.Error(), "exposure_time_absolute of /dev/video0 (Cam) cannot be set now: another one decides it") {
		t.Error(err)
	}
}

func TestControlName(t *testing.T) {
	var got []string
	for _, name := range []string{"Brightness", "Exposure Time, Absolute", "White Balance, Automatic", "(Weird) name "} {
		got = append(got, controlName(name))
	}
	if want := []string{"brightness", "exposure_time_absolute", "white_balance_automatic", "weird_name"}; !slices.Equal(got, want) {
		t.Errorf("names %q, want %q", got, want)
	}
}
