package host

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/tinylib/msgp/msgp"

	"tatolab.com/tatolab/datapath"
)

// Video publishes pictures on an output: RGBA, for those who read pictures, and
// the bag that names them. It is for one goroutine and allocates nothing.
type Video struct {
	output *datapath.Output
	owner  string // what surface ids begin with
	id     []byte
	bag    []byte
}

// NewVideo returns the publisher of an output that makes RGBA.
func NewVideo(o *datapath.Output) *Video {
	return &Video{output: o, owner: strings.TrimSuffix(o.SurfaceID(0), "0")}
}

// Picture describes what is published.
type Picture struct {
	Width, Height int // pixels
	TimestampNS   int64
	FPS           float64 // frames a second, 0 if unknown
	Colour        datapath.Colour
}

// bareLimit is how many bags without a picture, one after the other, are no accident.
const bareLimit = 3

// Bare sees to bags that come without a picture where pictures are shown.
type Bare struct{ row int }

// Complaint returns what is wrong with a source, "" for nothing. It is called with
// every bag.
func (b *Bare) Complaint(bag *datapath.Bag) string {
	if bag.Frame != nil {
		b.row = 0
		return ""
	}
	if b.row++; b.row < bareLimit {
		return ""
	}
	return fmt.Sprintf("cannot show what %s gives: its bags name no picture. What a node writes as surface_id is the surface_id of a picture it acquired, drew or read", bag.Link)
}

// Publish gives a picture to every reader. fill writes its RGBA bytes, lines
// without padding; it is not called if all readers want the bag alone. Its
// error is returned, and then nothing is published.
func (v *Video) Publish(p Picture, fill func(pixels []byte) error) error {
	number := v.output.NewSurface()
	slot, err := v.output.Acquire(datapath.RGBA, 4*p.Width*p.Height)
	switch {
	case errors.Is(err, datapath.ErrNotWanted):
		_, err = v.output.Publish(v.describe(p, number), p.TimestampNS)
		return err
	case err != nil:
		return err
	}
	if err := fill(slot.Bytes); err != nil {
		v.output.Release(slot)
		return err
	}
	slot.Surface = datapath.Packed(number, datapath.RGBA, p.Width, p.Height, 4)
	slot.Surface.Colour = p.Colour
	_, err = v.output.Publish(v.describe(p, number), p.TimestampNS, slot)
	return err
}

// describe is the bag of a picture.
func (v *Video) describe(p Picture, number uint64) []byte {
	fields := uint32(5)
	if p.FPS > 0 {
		fields++
	}
	v.id = strconv.AppendUint(append(v.id[:0], v.owner...), number, 10)
	b := msgp.AppendMapHeader(v.bag[:0], fields)
	b = msgp.AppendStringFromBytes(msgp.AppendString(b, "surface_id"), v.id)
	b = msgp.AppendInt(msgp.AppendString(b, "width"), p.Width)
	b = msgp.AppendInt(msgp.AppendString(b, "height"), p.Height)
	b = msgp.AppendInt64(msgp.AppendString(b, "timestamp_ns"), p.TimestampNS)
	if p.FPS > 0 {
		b = msgp.AppendFloat64(msgp.AppendString(b, "fps"), p.FPS)
	}
	// H.273: primaries, transfer, matrix, and whether the range is full.
	full := 0
	if p.Colour.Range == 2 {
		full = 1
	}
	b = msgp.AppendArrayHeader(msgp.AppendString(b, "color_info"), 4)
	for _, x := range [4]int{int(p.Colour.Primaries), int(p.Colour.Transfer), int(p.Colour.Matrix), full} {
		b = msgp.AppendInt(b, x)
	}
	v.bag = b
	return b
}
