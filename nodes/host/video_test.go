package host

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/datapath"
)

func TestPublishAllocatesNothing(t *testing.T) {
	o, err := datapath.NewOutput(datapath.OutputOptions{Owner: "s/n/video", Formats: []datapath.Format{datapath.RGBA}})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	w, err := datapath.NewWaiter()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	in := w.NewInput(datapath.Newest, datapath.RGBA)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	page, err := in.AddLink(1, "l", os.NewFile(uintptr(pair[0]), "link"))
	if err != nil {
		t.Fatal(err)
	}
	page.Close()
	if err := o.AddLink(1, os.NewFile(uintptr(pair[1]), "link")); err != nil {
		t.Fatal(err)
	}
	for o.Readers() == 0 {
		w.Wait(1e6)
	}
	v := NewVideo(o)
	p := Picture{Width: 64, Height: 8, FPS: 30, Colour: datapath.SRGB}
	fill := func(pixels []byte) error { pixels[0] = 1; return nil }
	if n := testing.AllocsPerRun(1000, func() {
		p.TimestampNS = datapath.Now()
		if err := v.Publish(p, fill); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a frame", n)
	}
	var bag datapath.Bag
	if !in.Read(&bag) || bag.Frame == nil || bag.Frame.Pixels[0] != 1 {
		t.Error("nothing was published")
	}
}
