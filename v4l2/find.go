package v4l2

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Where udev puts devices and their stable names.
const (
	deviceFolder = "/dev"
	byIDFolder   = "/dev/v4l/by-id"
)

// Camera is a capture device as it is found, not yet opened.
type Camera struct {
	Path   string // /dev/video0
	Card   string // the name its driver gives it
	Driver string
	Bus    string // where it is plugged in
	// Names are its links in /dev/v4l/by-id, which hold the serial number
	// if the camera has one. None for cameras that are not on USB.
	Names []string
	// Err says why nothing more is known: permission is missing, or the
	// device is of a kind that is not supported.
	Err error

	// twins: there was another of this card and driver. Without serial numbers
	// udev gives both one name, which goes from one to the other.
	twins bool
}

// String names the camera in messages.
func (c Camera) String() string {
	if c.Card == "" {
		return c.Path
	}
	return fmt.Sprintf("%s (%s)", c.Path, c.Card)
}

// ID is what to write as device_id, so that it names this camera wherever it
// is plugged in.
func (c Camera) ID() string {
	if len(c.Names) > 0 {
		return c.Names[0]
	}
	return c.Path
}

// Cameras lists the capture devices there are, by number. What is not one, such
// as the metadata node that most webcams have, is left out; a device that
// cannot be looked into is listed with its error.
func Cameras() ([]Camera, error) { return devices(examine) }

// devices lists the video devices that examine takes, by number.
func devices(examine func(path string) (Camera, bool)) ([]Camera, error) {
	entries, err := os.ReadDir(deviceFolder)
	if err != nil {
		return nil, fmt.Errorf("cannot look for cameras: %w", err)
	}
	var numbers []int
	for _, e := range entries {
		if digits, ok := strings.CutPrefix(e.Name(), "video"); ok {
			if n, err := strconv.Atoi(digits); err == nil {
				numbers = append(numbers, n)
			}
		}
	}
	slices.Sort(numbers)
	names := stableNames()
	var list []Camera
	for _, n := range numbers {
		path := filepath.Join(deviceFolder, "video"+strconv.Itoa(n))
		if c, ok := examine(path); ok {
			c.Names = names[path]
			list = append(list, c)
		}
	}
	return list, nil
}

// stableNames maps devices to their links in /dev/v4l/by-id. Where there is no
// such folder, there are no such names.
func stableNames() map[string][]string {
	names := map[string][]string{}
	entries, _ := os.ReadDir(byIDFolder)
	for _, e := range entries {
		if target, err := os.Readlink(filepath.Join(byIDFolder, e.Name())); err == nil {
			if !filepath.IsAbs(target) {
				target = filepath.Join(byIDFolder, target)
			}
			names[target] = append(names[target], e.Name())
		}
	}
	return names
}

// examine asks the device what it is; ok is false for what is no camera, or is
// gone again.
func examine(path string) (c Camera, ok bool) {
	c, capability, ok := ask(path)
	if ok && c.Err == nil && !capability.captures() {
		return Camera{}, false
	}
	return c, ok
}

// ask asks a device what it is, whatever that may be.
func ask(path string) (c Camera, is capability, ok bool) {
	k, is, err := openKernel(path)
	switch {
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return Camera{Path: path, Err: denied(path)}, is, true
	case errors.Is(err, unix.EBUSY):
		return Camera{Path: path, Err: &BusyError{Path: path, Holders: Holders(path)}}, is, true
	case err != nil:
		return Camera{}, is, false
	}
	k.close()
	return Camera{Path: path, Card: is.card, Driver: is.driver, Bus: is.bus}, is, true
}

// Find looks for the camera that device names: a path, a name in
// /dev/v4l/by-id, or the name of the card. Empty means the first there is.
//
// With before, the camera that was in use under that name until now, it finds
// that one and no other, wherever it is now: by its stable name, else by card
// and driver; if there were two of these, where it was plugged in before. So a
// camera that is unplugged and comes back as another /dev/video is found, and
// another that took its number, or its name, is not mistaken for it.
func Find(device string, before *Camera) (Camera, error) {
	list, err := Cameras()
	if err != nil {
		return Camera{}, err
	}
	return find(list, device, before)
}

func find(list []Camera, device string, before *Camera) (Camera, error) {
	found, what := []Camera(nil), device
	switch {
	case before != nil:
		what = before.String()
		found = again(list, *before)
	case device == "":
		for _, c := range list {
			if c.Err == nil {
				return among(list, c), nil
			}
		}
		if len(list) == 0 {
			return Camera{}, fmt.Errorf("%w: %s", ErrNotFound, there(list))
		}
		found = list[:1] // for its error
	default:
		found = named(list, device)
	}
	switch len(found) {
	case 0:
		return Camera{}, fmt.Errorf("%w: %s; %s", ErrNotFound, what, there(list))
	case 1:
		c := among(list, found[0])
		c.twins = c.twins || before != nil && before.twins
		return c, c.Err
	}
	return Camera{}, fmt.Errorf("%d cameras are called %s: name one by what `tatolab cameras` lists for it; %s", len(found), what, there(list))
}

// among is c, knowing whether it has a twin.
func among(list []Camera, c Camera) Camera {
	c.twins = slices.ContainsFunc(list, func(other Camera) bool { return other.Path != c.Path && other.like(c) })
	return c
}

// like tells whether two cameras are of one card and driver.
func (c Camera) like(other Camera) bool { return c.Card == other.Card && c.Driver == other.Driver }

// named lists the cameras that answer to a name.
func named(list []Camera, device string) []Camera {
	name, isID := strings.CutPrefix(device, byIDFolder+"/")
	path := filepath.Clean(device)
	if filepath.IsAbs(device) && !isID {
		// Any other link, such as one a udev rule makes.
		if target, err := filepath.EvalSymlinks(device); err == nil {
			path = target
		}
	}
	for _, same := range []func(Camera) bool{
		func(c Camera) bool { return c.Path == path },
		func(c Camera) bool { return slices.Contains(c.Names, name) },
		func(c Camera) bool { return c.Card == device },
		func(c Camera) bool { return strings.EqualFold(c.Card, device) },
	} {
		var found []Camera
		for _, c := range list {
			if same(c) {
				found = append(found, c)
			}
		}
		if len(found) > 0 {
			return found
		}
	}
	return nil
}

// again lists the cameras that may be the one there was before.
func again(list []Camera, before Camera) []Camera {
	var found, samePlace []Camera
	for _, c := range list {
		if before.twins && c.Bus != before.Bus {
			continue
		}
		if len(before.Names) > 0 {
			if slices.ContainsFunc(c.Names, func(n string) bool { return slices.Contains(before.Names, n) }) {
				return []Camera{c}
			}
			continue
		}
		if c.like(before) {
			found = append(found, c)
			if c.Bus == before.Bus {
				samePlace = append(samePlace, c)
			}
		}
	}
	if len(samePlace) > 0 {
		return samePlace
	}
	return found
}

// there says what cameras there are.
func there(list []Camera) string {
	if len(list) == 0 {
		return "there is no capture device"
	}
	names := make([]string, len(list))
	for i, c := range list {
		names[i] = c.String()
	}
	return "there are " + strings.Join(names, ", ")
}

// Holder is a process that has a device open.
type Holder struct {
	PID     int
	Command string
}

func (h Holder) String() string { return fmt.Sprintf("%s (pid %d)", h.Command, h.PID) }

// Holders lists the other processes that have a device open, as far as this
// user may see.
func Holders(path string) []Holder {
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	var list []Holder
	for _, link := range links {
		pid, _ := strconv.Atoi(strings.Split(link, "/")[2])
		if pid == os.Getpid() || len(list) > 0 && list[len(list)-1].PID == pid {
			continue
		}
		if target, err := os.Readlink(link); err == nil && target == path {
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			list = append(list, Holder{pid, cmp.Or(strings.TrimSpace(string(name)), "a process")})
		}
	}
	slices.SortFunc(list, func(a, b Holder) int { return cmp.Compare(a.PID, b.PID) })
	return list
}
