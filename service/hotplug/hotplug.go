// Package hotplug tells when video devices come and go. It looks at names in
// /dev alone, and opens no device: drivers can hang.
package hotplug

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/v4l2/watch"
)

// settle is how long to wait after an event for those that belong to it: udev
// gives a new device its group and its stable names, and a webcam has two devices.
const settle = 200 * time.Millisecond

var device = regexp.MustCompile(`^video[0-9]+$`)

// what there is to tell of a device without opening it. A change of any of it may make
// it another one, or one that can be opened now.
type what struct {
	rdev     uint64
	inode    uint64
	mode     uint32
	uid, gid uint32
}

// Watch calls tell with the paths of the devices in dir that have come, or may be opened
// by others than before, and of those that have gone, until ctx is done.
func Watch(ctx context.Context, dir string, tell func(come, gone []string)) error {
	w, err := watch.New(dir)
	if err != nil {
		return err
	}
	defer w.Close()
	before := look(dir)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.Ended:
			return w.Err()
		case <-w.Changed:
		}
		select {
		case <-time.After(settle):
		case <-ctx.Done():
			return nil
		}
		now := look(dir)
		var come, gone []string
		for _, name := range slices.Sorted(maps.Keys(now)) {
			if now[name] != before[name] {
				come = append(come, filepath.Join(dir, name))
			}
		}
		for _, name := range slices.Sorted(maps.Keys(before)) {
			if _, still := now[name]; !still {
				gone = append(gone, filepath.Join(dir, name))
			}
		}
		if before = now; len(come)+len(gone) > 0 {
			tell(come, gone)
		}
	}
}

// look lists the devices there are, by name.
func look(dir string) map[string]what {
	found := map[string]what{}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		var s unix.Stat_t
		if device.MatchString(e.Name()) && unix.Stat(filepath.Join(dir, e.Name()), &s) == nil {
			found[e.Name()] = what{s.Rdev, s.Ino, s.Mode, s.Uid, s.Gid}
		}
	}
	return found
}
