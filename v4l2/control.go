package v4l2

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	go4vl "github.com/vladimirvivien/go4vl/v4l2"
	"golang.org/x/sys/unix"
)

// Control is a setting of a camera, such as its exposure.
// https://docs.kernel.org/userspace-api/media/v4l/control.html
type Control struct {
	// Name is the driver's, as v4l2-ctl(1) writes it: "exposure_time_absolute".
	Name                    string
	Minimum, Maximum, Value int

	id    uint32
	flags uint32 // V4L2_CTRL_FLAG_*
}

// settable tells whether a control has a number for a value.
func settable(kind go4vl.CtrlType) bool {
	switch kind {
	case go4vl.CtrlTypeInt, go4vl.CtrlTypeBool, go4vl.CtrlTypeMenu, go4vl.CtrlTypeIntegerMenu, go4vl.CtrlTypeBitMask:
		return true
	}
	return false
}

// controlName writes a driver's name as v4l2-ctl does: letters and digits in
// lower case, "_" for each run of anything else.
func controlName(name string) string {
	var b strings.Builder
	gap := false
	for _, r := range strings.ToLower(name) {
		if r < '0' || r > '9' && r < 'a' || r > 'z' {
			gap = b.Len() > 0
			continue
		}
		if gap {
			b.WriteByte('_')
			gap = false
		}
		b.WriteRune(r)
	}
	return b.String()
}

func (k *kernel) controls() ([]Control, error) {
	all, err := go4vl.QueryAllControls(uintptr(k.fd))
	if len(all) == 0 && err != nil {
		if errno := k.errno(err); !errors.Is(errno, unix.EINVAL) && !errors.Is(errno, unix.ENOTTY) {
			return nil, errno
		}
		return nil, nil // it has none
	}
	var list []Control
	for _, c := range all {
		if !settable(c.Type) || c.Flags&go4vl.CtrlFlagDisabled != 0 {
			continue
		}
		value, err := go4vl.GetControlValue(uintptr(k.fd), c.ID)
		if err != nil {
			continue // one that can only be written
		}
		list = append(list, Control{controlName(c.Name), int(c.Minimum), int(c.Maximum), int(value), c.ID, c.Flags})
	}
	return list, nil
}

func (k *kernel) setControl(id uint32, value int) error {
	if err := go4vl.SetControlValue(uintptr(k.fd), id, go4vl.CtrlValue(value)); err != nil {
		return k.errno(err)
	}
	return nil
}

// Controls lists the settings of the device, by name.
func (d *Device) Controls() ([]Control, error) {
	list, err := d.driver.controls()
	if err != nil {
		return nil, d.explain("ask for the controls of", err)
	}
	slices.SortFunc(list, func(a, b Control) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

// SetControls sets controls by name. What can be set is set; the error names
// what could not, and why.
func (d *Device) SetControls(values map[string]int) error {
	if len(values) == 0 {
		return nil
	}
	list, err := d.Controls()
	if err != nil {
		return err
	}
	known := map[string]Control{}
	var names []string
	for _, c := range list {
		known[c.Name] = c
		names = append(names, c.Name)
	}
	var failed []error
	var rest []Control
	for name, value := range values {
		c, ok := known[name]
		switch {
		case !ok && len(names) == 0:
			failed = append(failed, fmt.Errorf("%s has no control %s; it has none", d.camera, name))
		case !ok:
			failed = append(failed, fmt.Errorf("%s has no control %s; it has %s", d.camera, name, strings.Join(names, ", ")))
		case c.flags&go4vl.CtrlFlagReadOnly != 0:
			failed = append(failed, fmt.Errorf("control %s of %s cannot be set: it can only be read", name, d.camera))
		case value < c.Minimum || value > c.Maximum:
			failed = append(failed, fmt.Errorf("control %s of %s cannot be %d: it goes from %d to %d", name, d.camera, value, c.Minimum, c.Maximum))
		default:
			c.Value = value
			rest = append(rest, c)
		}
	}
	// By id: what switches automatics off mostly comes before what that frees.
	slices.SortFunc(rest, func(a, b Control) int { return cmp.Compare(a.id, b.id) })
	for range 2 { // and once more for what another one had to free first
		var again []Control
		var errs []error
		for _, c := range rest {
			if err := d.driver.setControl(c.id, c.Value); err != nil {
				again = append(again, c)
				errs = append(errs, d.explainControl(c, err))
			}
		}
		if rest = again; len(rest) == 0 {
			return errors.Join(failed...)
		}
		err = errors.Join(errs...)
	}
	return errors.Join(append(failed, err)...)
}

// explainControl makes clear why a control was not set to its value.
func (d *Device) explainControl(c Control, err error) error {
	gone := errors.Is(err, unix.ENODEV)
	switch {
	case !gone && c.flags&go4vl.CtrlFlagInactive != 0:
		return fmt.Errorf("control %s of %s cannot be set now: another one decides it, an automatic one most likely, which has to be switched off", c.Name, d.camera)
	case !gone && c.flags&go4vl.CtrlFlagGrabbed != 0, errors.Is(err, unix.EBUSY):
		return fmt.Errorf("control %s of %s cannot be set now: its driver does not let it change while the camera is in use", c.Name, d.camera)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ERANGE):
		// Not all in the range is a choice of a menu, or a step.
		return fmt.Errorf("control %s of %s cannot be %d: `v4l2-ctl -d %s -L` lists what it can be", c.Name, d.camera, c.Value, d.camera.Path)
	}
	return d.explain(fmt.Sprintf("set control %s to %d on", c.Name, c.Value), err)
}
