package datapath

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"tatolab.com/tatolab/service/control"
)

// plan is what a peer process is told to do; testdata/peer.py reads the same.
type plan struct {
	Role    string `json:"role"` // produce, read
	Bags    int    `json:"bags"`
	Told    bool   `json:"told"`    // go on until told "finish"
	Readers int    `json:"readers"` // wait for so many before beginning
	Renew   int    `json:"renew"`   // a new generation every so many bags
	Size    int    `json:"size"`    // of the pictures; 0: none
	PauseUS int    `json:"pause_us"`
	Wait    bool   `json:"wait"` // lock step: wait until the bag was taken

	Profile string `json:"profile"`
	Links   int    `json:"links"` // ends to wait for
	Hold    int    `json:"hold"`  // frames to hold
	DelayUS int    `json:"delay_us"`
}

// report is what a peer says at its end.
type report struct {
	Sequence uint64            `json:"sequence"`
	Ends     map[string]End    `json:"ends"`
	Received map[string]uint64 `json:"received"`
	Checked  int               `json:"checked"` // pictures
	Errors   []string          `json:"errors"`
}

func (r *report) fail(format string, args ...any) {
	if len(r.Errors) < 10 {
		r.Errors = append(r.Errors, fmt.Sprintf(format, args...))
	}
}

// Bags of the stress test are the publication's number, then as many bytes as
// the number says; pictures are full of the number.
func stressBag(buf []byte, n uint64) []byte {
	size := n % 300
	if n%97 == 0 {
		size = 5000 // does not fit its entry
	}
	buf = binary.LittleEndian.AppendUint64(buf[:0], n)
	for range size {
		buf = append(buf, byte(n))
	}
	return buf
}

func stressCheck(bag []byte) (uint64, bool) {
	if len(bag) < 8 {
		return 0, false
	}
	n := binary.LittleEndian.Uint64(bag)
	size := n % 300
	if n%97 == 0 {
		size = 5000
	}
	if uint64(len(bag)-8) != size {
		return n, false
	}
	for _, b := range bag[8:] {
		if b != byte(n) {
			return n, false
		}
	}
	return n, true
}

func fill(pixels []byte, n uint64) {
	for i := 0; i+8 <= len(pixels); i += 8 {
		binary.LittleEndian.PutUint64(pixels[i:], n)
	}
}

func filled(pixels []byte, n uint64) bool {
	for i := 0; i+8 <= len(pixels); i += 8 {
		if binary.LittleEndian.Uint64(pixels[i:]) != n {
			return false
		}
	}
	return true
}

// peerMain is the Go peer: this test binary started again.
func peerMain(role string) {
	var p plan
	if err := json.Unmarshal([]byte(role), &p); err != nil {
		panic(err)
	}
	channel, err := control.Inherited()
	if err != nil {
		panic(err)
	}
	var r *report
	if p.Role == "produce" {
		r = peerProduce(p, channel)
	} else {
		r = peerRead(p, channel)
	}
	data, _ := json.Marshal(r)
	if err := channel.Send(&control.Message{Kind: "report", Message: string(data)}); err != nil {
		panic(err)
	}
	channel.Receive() // until the driver is done with us
}

func peerProduce(p plan, channel *control.Conn) *report {
	r := &report{Ends: map[string]End{}}
	var mu sync.Mutex
	out, err := NewOutput(OutputOptions{Owner: "test/go/out", Formats: []Format{RGBA}, OnGone: func(id uint64, end End) {
		mu.Lock()
		defer mu.Unlock()
		r.Ends[fmt.Sprint(id)] = end
	}})
	if err != nil {
		panic(err)
	}
	var told atomic.Bool
	go func() {
		for {
			m, err := channel.Receive()
			if err != nil {
				os.Exit(1)
			}
			switch m.Kind {
			case control.Link:
				err = out.AddLink(m.ID, m.File)
			case "finish":
				told.Store(true)
			case control.Stop:
				out.Close()
				os.Exit(0)
			}
			if err != nil {
				panic(err)
			}
		}
	}()
	for out.Readers() < p.Readers {
		time.Sleep(time.Millisecond)
	}
	var bag []byte
	for i := 1; i <= p.Bags || p.Told && !told.Load(); i++ {
		n := uint64(i)
		bag = stressBag(bag, n)
		var err error
		if p.Size > 0 && n%3 != 0 {
			slot, aerr := out.Acquire(RGBA, p.Size)
			if aerr == nil {
				fill(slot.Bytes, n)
				slot.Surface = Packed(out.NewSurface(), RGBA, p.Size/4, 1, 4)
				_, err = out.Publish(bag, Now(), slot)
			} else if aerr == ErrNotWanted {
				_, err = out.Publish(bag, Now())
			} else {
				err = aerr
			}
		} else {
			_, err = out.Publish(bag, Now())
		}
		if err != nil {
			r.fail("publish %d: %v", n, err)
		}
		if p.Renew > 0 && i%p.Renew == 0 {
			if err := out.RemoveLink(0, true); err != nil {
				r.fail("renew at %d: %v", n, err)
			}
		}
		if p.PauseUS > 0 && rand.IntN(16) == 0 {
			time.Sleep(time.Duration(rand.IntN(p.PauseUS)) * time.Microsecond)
		}
	}
	r.Sequence = out.Sequence()
	out.Close()
	mu.Lock()
	defer mu.Unlock()
	return r
}

func peerRead(p plan, channel *control.Conn) *report {
	r := &report{Received: map[string]uint64{}}
	w, err := NewWaiter()
	if err != nil {
		panic(err)
	}
	profile, err := ParseProfile(p.Profile)
	if err != nil {
		panic(err)
	}
	in := w.NewInput(profile, RGBA)
	go func() {
		for {
			m, err := channel.Receive()
			if err != nil {
				os.Exit(1)
			}
			if m.Kind == control.Link {
				page, err := in.AddLink(m.ID, m.Name, m.File)
				if err != nil {
					panic(err)
				}
				if err := channel.Send(&control.Message{Kind: control.Page, ID: m.ID, File: page}); err != nil {
					panic(err)
				}
				page.Close()
			}
		}
	}()
	type held struct {
		frame *Frame
		n     uint64
	}
	var frames []held
	release := func() {
		f := frames[0]
		frames = frames[1:]
		if !filled(f.frame.Pixels, f.n) {
			r.fail("frame %d changed while it was held", f.n)
		}
		f.frame.Release()
	}
	last := map[string]uint64{}
	ended := 0
	var b Bag
	for {
		before := uint64(0)
		if p.Links == 1 && profile == Newest {
			before = w.newestOfFirst()
		}
		if !in.Read(&b) {
			if ended >= p.Links {
				break
			}
			w.Wait(-1)
			ended += len(in.TakeGone())
			continue
		}
		n, ok := stressCheck(b.Data)
		if !ok {
			r.fail("bag %d is torn", n)
		}
		if n <= last[b.Link] {
			r.fail("%s: bag %d after %d", b.Link, n, last[b.Link])
		}
		if b.Sequence < before && p.Hold < MaxHeld {
			r.fail("bag %d was read when %d was there", b.Sequence, before)
		}
		last[b.Link] = n
		r.Received[b.Link]++
		if b.Frame != nil {
			r.Checked++
			if !filled(b.Frame.Pixels, n) {
				r.fail("frame %d is not its own", n)
			}
			frames = append(frames, held{b.Frame, n})
			for len(frames) > p.Hold {
				release()
			}
		}
		if p.DelayUS > 0 && rand.IntN(8) == 0 {
			unix.Nanosleep(&unix.Timespec{Nsec: int64(rand.IntN(p.DelayUS) * 1000)}, nil)
		}
	}
	for len(frames) > 0 {
		release()
	}
	w.Close()
	return r
}

// newestOfFirst is the newest bag that the first link's ring has now.
func (w *Waiter) newestOfFirst() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.links) == 0 {
		return 0
	}
	l := w.links[0]
	l.settle()
	if l.gen == nil {
		return 0
	}
	return load(l.gen.ring, ringNewest)
}
