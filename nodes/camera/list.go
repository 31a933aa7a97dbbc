package camera

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/v4l2"
)

// list prints the cameras there are as a JSON array of api.Camera. The runtime
// asks a process for it, since drivers can hang.
func list() int {
	found, err := v4l2.Cameras()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	out := []api.Camera{}
	for _, c := range found {
		entry := api.Camera{ID: c.ID(), Path: c.Path, Card: c.Card, Driver: c.Driver, Bus: c.Bus, Formats: []api.CameraFormat{}}
		if holders := v4l2.Holders(c.Path); len(holders) > 0 {
			entry.Holder = cmp.Or(ownNode(holders[0].PID), fmt.Sprintf("pid %d (%s)", holders[0].PID, holders[0].Command))
		}
		if err := c.Err; err != nil {
			entry.Error = err.Error()
		} else if entry.Formats, err = formats(c); err != nil {
			entry.Error = err.Error()
		}
		out = append(out, entry)
	}
	encoder := json.NewEncoder(os.Stdout)
	if err := encoder.Encode(out); err != nil {
		return 1
	}
	return 0
}

// formats groups what a camera offers by pixel format.
func formats(c v4l2.Camera) ([]api.CameraFormat, error) {
	device, err := v4l2.Open(c)
	if err != nil {
		return []api.CameraFormat{}, err
	}
	defer device.Close()
	offers, err := device.Offers()
	list := []api.CameraFormat{}
	for _, o := range offers {
		name := o.Format.String()
		i := slices.IndexFunc(list, func(f api.CameraFormat) bool { return f.FourCC == name })
		if i < 0 {
			i = len(list)
			list = append(list, api.CameraFormat{FourCC: name})
		}
		size := api.CameraSize{Width: o.Width, Height: o.Height, Rates: []float64{}}
		for _, f := range o.Intervals {
			size.Rates = append(size.Rates, f.Rate())
		}
		list[i].Sizes = append(list[i].Sizes, size)
	}
	return list, err
}

// ownNode is the "stream/node" that a process is, "" for one that no runtime of
// this user has started: its environment tells, docs/node-protocol.md.
func ownNode(pid int) string {
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return ""
	}
	for variable := range strings.SplitSeq(string(environ), "\x00") {
		if instance, ok := strings.CutPrefix(variable, "TATOLAB_INSTANCE="); ok {
			node, _, _ := strings.Cut(instance, "#")
			return node
		}
	}
	return ""
}
