package runtime

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"image"
	"io"
	"math"
	"strings"
	"time"

	"github.com/tinylib/msgp/msgp"

	"tatolab.com/tatolab/datapath"
	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/control"
	"tatolab.com/tatolab/service/graph"
	"tatolab.com/tatolab/service/switchboard"
)

const (
	// readPoll is how often a reader looks whether it is still wanted.
	readPoll = 250 * time.Millisecond
	// snapshotLimit is how long Snapshot waits for a picture of an output
	// that is there.
	snapshotLimit = 10 * time.Second
	// silence is after how long without a bag a reader is told what ails the
	// node it reads.
	silence = time.Second
	// pictureless is after how many bags without a picture Snapshot believes
	// that an output has none.
	pictureless = 10
)

// tap reads one output from within the runtime: for a person who looks, never
// for a stream. To the switchboard it is a stream without outputs.
type tap struct {
	r      *Runtime
	name   string
	waiter *datapath.Waiter
	input  *datapath.Input
}

// tapNode and tapPort are the names of a tap's only input.
const tapNode, tapPort = "tap", "in"

// Send takes the ends of links.
func (t *tap) Send(m *control.Message) {
	switch m.Kind {
	case control.Link:
		if page, err := t.input.AddLink(m.ID, m.Name, m.File); err == nil {
			page.Close()
		}
		t.waiter.Wake()
	case control.Unlink:
		t.input.RemoveLink(m.ID)
	}
}

// Kill has nothing to kill.
func (t *tap) Kill(string) {}

// openTap joins a reader to an exposed output of this machine.
func (r *Runtime) openTap(source graph.Source, profile datapath.Profile, formats ...datapath.Format) (*tap, error) {
	waiter, err := datapath.NewWaiter()
	if err != nil {
		return nil, api.Errorf(api.Internal, "cannot read %s: %v", source, err)
	}
	r.mu.Lock()
	r.taps++
	t := &tap{r: r, name: fmt.Sprintf("read#%d", r.taps), waiter: waiter}
	r.mu.Unlock()
	t.input = waiter.NewInput(profile, formats...)
	r.board.Set(t.name, switchboard.Stream{
		Links:   []graph.Link{{Source: source, Target: graph.End{Node: tapNode, Port: tapPort}}},
		Classes: map[string]graph.Class{tapNode: {Inputs: []graph.Input{{Port: tapPort, Profile: profile.String()}}}},
	})
	r.board.Up(t.name, tapNode, t)
	return t, nil
}

func (t *tap) close() {
	t.r.board.Remove(t.name)
	t.waiter.Close()
}

// state of the tap's link: wired, or why not.
func (t *tap) state() switchboard.Status {
	for _, gone := range t.input.TakeGone() {
		t.r.board.Lost(gone.ID, t)
	}
	return t.r.board.Links(t.name)[0]
}

// parse reads an address and refuses what cannot be read from here.
func parse(address string) (graph.Source, error) {
	source, err := graph.ParseAddress(address)
	if err != nil {
		return source, api.Errorf(api.BadRequest, "%v", err)
	}
	if source.Machine != "" {
		return source, api.Errorf(api.BadRequest, "cannot read %s: reading from other machines is not built yet", address)
	}
	return source, nil
}

// missing says what an output that cannot be read waits for.
func (r *Runtime) missing(source graph.Source, s switchboard.Status) string {
	if why := r.absent(source.Stream); why != "" {
		return why
	}
	return strings.TrimPrefix(s.Reason, fmt.Sprintf("needs %s: ", source))
}

// unreadable is the error for an output that is not there or not exposed.
func (r *Runtime) unreadable(source graph.Source, s switchboard.Status) error {
	code, hint := api.NoSuchPort, ""
	stream, err := r.Stream(source.Stream)
	switch {
	case err != nil:
		code, hint = api.NoSuchStream, "`tatolab streams` lists those there are"
	case stream.State == api.Stopped:
		hint = fmt.Sprintf("`tatolab start %s` starts it", source.Stream)
	case stream.State == api.Failed:
		hint = fmt.Sprintf("`tatolab start %s` retries it", source.Stream)
	case s.Hidden:
		code, hint = api.NotExposed, fmt.Sprintf("`tatolab expose %s %s %s` lets this machine read it", source.Stream, source.Node, source.Port)
	default:
		var exposed []string
		for _, x := range r.board.Exposed(source.Stream) {
			exposed = append(exposed, fmt.Sprintf("%s/%s/%s", source.Stream, x.Node, x.Port))
		}
		hint = "what it exposes: " + cmp.Or(join(exposed), "nothing")
	}
	return api.Errorf(code, "cannot read %s: %s", source, r.missing(source, s)).WithHint("%s", hint)
}

// trouble says why a node that may be read delivers nothing, as far as it knows.
func (r *Runtime) trouble(source graph.Source) string {
	nodes, _ := r.nodes(source.Stream)
	for _, n := range nodes[source.Stream] {
		if n.Name == source.Node && n.State != api.NodeRunning {
			return strings.TrimSuffix(fmt.Sprintf("%s is %s: %s", n.Name, n.State, n.Reason), ": ")
		}
	}
	return ""
}

// ReadBags yields the bags of an exposed output, in order, until
// ctx ends or bag returns an error (io.EOF: enough). With wait an output that is
// not there is waited for, and note told why; without, that is an error.
func (r *Runtime) ReadBags(ctx context.Context, address string, wait bool, bag func(api.Bag) error, note func(string)) error {
	source, err := parse(address)
	if err != nil {
		return err
	}
	t, err := r.openTap(source, datapath.Ordered)
	if err != nil {
		return err
	}
	defer t.close()
	stop := context.AfterFunc(ctx, t.waiter.Wake)
	defer stop()
	var b datapath.Bag
	said, last := "", time.Now()
	for ctx.Err() == nil {
		for t.input.Read(&b) {
			last = time.Now()
			decoded, err := decodeBag(b.Data)
			if err != nil {
				note(fmt.Sprintf("a bag of %s is no msgpack map: %v", address, err))
				continue
			}
			if err := bag(decoded); err != nil {
				if err == io.EOF {
					return nil
				}
				return err
			}
		}
		s, why := t.state(), ""
		switch {
		case s.State != api.LinkWired && !wait:
			return r.unreadable(source, s)
		case s.State != api.LinkWired:
			why = r.missing(source, s)
		case time.Since(last) >= silence:
			why = r.trouble(source)
		}
		if why != "" && why != said {
			note(fmt.Sprintf("waiting for %s: %s", source, why))
		}
		said = why
		t.waiter.Wait(readPoll)
	}
	return nil
}

// decodeBag turns a bag into JSON values: bytes become {"$bytes": base64}, and
// what JSON has no word for, like the number NaN, a string.
func decodeBag(data []byte) (api.Bag, error) {
	value, _, err := msgp.ReadIntfBytes(data)
	if err != nil {
		return nil, err
	}
	m, ok := jsonValue(value).(map[string]any)
	if !ok {
		return nil, fmt.Errorf("it is a %T", value)
	}
	return m, nil
}

func jsonValue(v any) any {
	switch v := v.(type) {
	case []byte:
		return map[string]any{"$bytes": base64.StdEncoding.EncodeToString(v)}
	case float32:
		if f := float64(v); math.IsNaN(f) || math.IsInf(f, 0) {
			return fmt.Sprint(v)
		}
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Sprint(v)
		}
	case complex64, complex128:
		return fmt.Sprint(v)
	case time.Time: // JSON has only years of four digits
		return v.Format(time.RFC3339Nano)
	case map[string]any:
		for key, value := range v {
			v[key] = jsonValue(value)
		}
	case []any:
		for i, value := range v {
			v[i] = jsonValue(value)
		}
	}
	return v
}

// Snapshot is the next picture of an exposed output.
func (r *Runtime) Snapshot(ctx context.Context, address string) (image.Image, error) {
	source, err := parse(address)
	if err != nil {
		return nil, err
	}
	t, err := r.openTap(source, datapath.Newest, datapath.RGBA)
	if err != nil {
		return nil, err
	}
	defer t.close()
	ctx, cancel := context.WithTimeout(ctx, snapshotLimit)
	defer cancel()
	var b datapath.Bag
	for without := 0; ctx.Err() == nil; {
		if t.input.Read(&b) {
			if b.Frame != nil {
				defer b.Frame.Release()
				return toImage(b.Frame)
			}
			if without++; without == pictureless {
				return nil, api.Errorf(api.Unloadable, "cannot take a picture of %s: its bags come without one", address).
					WithHint("`tatolab read %s` shows them", address)
			}
		}
		if s := t.state(); s.State != api.LinkWired {
			return nil, r.unreadable(source, s)
		}
		t.waiter.Wait(readPoll)
	}
	why := fmt.Sprintf("no picture came within %s", snapshotLimit)
	if trouble := r.trouble(source); trouble != "" {
		why += ": " + trouble
	}
	return nil, api.Errorf(api.Unloadable, "cannot take a picture of %s: %s", address, why)
}

// toImage copies a frame's pixels.
func toImage(f *datapath.Frame) (image.Image, error) {
	s := f.Surface
	if s.Format != datapath.RGBA {
		return nil, api.Errorf(api.Unloadable, "cannot take a picture of %s: it is %s, not RGBA", f.SurfaceID(), s.Format)
	}
	plane := s.Planes[0]
	// The last row need not be whole. Divided, since the product may overflow.
	rows := len(f.Pixels) - plane.Offset - 4*s.Width
	if s.Width <= 0 || s.Height <= 0 || plane.Stride < 4*s.Width || rows < 0 || s.Height-1 > rows/plane.Stride {
		return nil, api.Errorf(api.Unloadable, "cannot take a picture of %s: %dx%d does not fit its %d bytes", f.SurfaceID(), s.Width, s.Height, len(f.Pixels))
	}
	img := image.NewNRGBA(image.Rect(0, 0, s.Width, s.Height))
	for y := range s.Height {
		copy(img.Pix[y*img.Stride:(y+1)*img.Stride], f.Pixels[plane.Offset+y*plane.Stride:])
	}
	return img, nil
}
