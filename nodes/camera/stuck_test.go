package camera

import (
	"testing"

	"tatolab.com/tatolab/contrib/testbed/fakecamera"
	"tatolab.com/tatolab/datapath"
)

// What is told of a driver that does not answer is taken back when it answers,
// though no frame comes: nobody reads any more, or all is as it was before.
func TestStuckIsTakenBack(t *testing.T) {
	hang := func(ioctl string) func(*fakecamera.Camera) {
		return func(c *fakecamera.Camera) { c.Hang = ioctl }
	}
	t.Run("without readers", func(t *testing.T) {
		t.Parallel()
		r := start(t, one(named(path, "Cam", "", 320)), nil)
		id := r.Link(Port, datapath.Newest, datapath.RGBA)
		r.Frame()
		r.bed.Change(path, hang("STREAMOFF"))
		r.Unlink(id)
		r.Condition("stuck", "has not answered")
		r.Forget()
		r.bed.Change(path, hang(""))
		r.Condition("", "320x180 YUYV")
		r.Stop()
	})
	t.Run("busy before and after", func(t *testing.T) {
		t.Parallel()
		busy := named(path, "Cam", "", 320)
		busy.Busy = true
		r := start(t, one(busy), nil)
		r.Link(Port, datapath.Newest, datapath.RGBA)
		r.Condition("busy", "is held by ")
		r.bed.Change(path, hang("S_FMT"))
		r.Condition("stuck", "has not answered")
		r.Forget()
		r.bed.Change(path, hang(""))
		r.Condition("busy", "is held by ")
		r.Stop()
	})
}
