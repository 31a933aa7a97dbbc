package datapath

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"tatolab.com/tatolab/service/control"
)

// python runs the Python peers.
const python = "/usr/bin/python3"

// languages are those of the peers: Python with what it has in C, where that
// was built, and without.
var languages = []string{"go", "python", "pure"}

// soaking asks for the long form of the stress tests: a million publications
// a pair.
var soaking = os.Getenv("TATOLAB_SOAK") == "1"

func stressBags() int {
	if soaking {
		return 1_000_000
	}
	return 20_000
}

// peer is a process of the test: Go or Python, producer or reader.
type peer struct {
	t       *testing.T
	cmd     *exec.Cmd
	channel *control.Conn
	pages   map[uint64]*PageView
	result  chan *report
}

func start(t *testing.T, language string, p plan) *peer {
	t.Helper()
	ours, theirs, err := control.Pair()
	if err != nil {
		t.Fatal(err)
	}
	data, _ := json.Marshal(p)
	var cmd *exec.Cmd
	if language != "go" {
		if _, err := os.Stat(python); err != nil {
			t.Skipf("no Python to test with: %v", err)
		}
		folder, err := filepath.Abs("../python/src/tatolab/stream")
		if err != nil {
			t.Fatal(err)
		}
		cmd = exec.Command(python, "-I", "testdata/peer.py", folder, string(data))
		if language == "pure" {
			cmd.Env = append(os.Environ(), "TATOLAB_PURE_PYTHON=1")
		}
	} else {
		cmd = exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "TATOLAB_DATAPATH_PEER="+string(data))
	}
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	peer := &peer{t: t, cmd: cmd, channel: ours, pages: map[uint64]*PageView{}, result: make(chan *report, 1)}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		ours.Close()
		for _, page := range peer.pages {
			page.Close()
		}
	})
	return peer
}

// connect links a producer and a reader, and waits for the reader's page.
func connect(producer, reader *peer, id uint64, name string) {
	t := producer.t
	t.Helper()
	a, b := pair(t)
	defer a.Close()
	defer b.Close()
	for to, file := range map[*peer]*os.File{producer: a, reader: b} {
		if err := to.channel.Send(&control.Message{Kind: control.Link, ID: id, Name: name, File: file}); err != nil {
			t.Fatal(err)
		}
	}
	m, err := reader.channel.Receive()
	if err != nil || m.Kind != control.Page {
		t.Fatalf("no page of %s: %v %v", name, m, err)
	}
	defer m.File.Close()
	if reader.pages[id], err = OpenPage(m.File); err != nil {
		t.Fatal(err)
	}
}

func (p *peer) report() *report {
	p.t.Helper()
	got := make(chan *report, 1)
	go func() {
		m, err := p.channel.Receive()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				p.t.Errorf("a peer's report: %v", err)
			}
			close(got)
			return
		}
		r := &report{}
		if err := json.Unmarshal([]byte(m.Message), r); err != nil {
			p.t.Errorf("a peer's report: %v", err)
		}
		got <- r
	}()
	limit := 2 * time.Minute
	if soaking {
		limit = 20 * time.Minute
	}
	select {
	case r := <-got:
		if r == nil {
			p.t.Fatal("a peer died")
		}
		for _, e := range r.Errors {
			p.t.Error(e)
		}
		return r
	case <-time.After(limit):
		p.t.Fatal("a peer does not end")
		return nil
	}
}

// balanced checks that what a reader got and lost is all that was sent.
func balanced(t *testing.T, what string, r *report, name string, page *PageView, sequence uint64) {
	t.Helper()
	// As the reader counted: the figures would compute the one from the other.
	f, dropped := page.Figures(sequence, false), load(page.m, pageDropped)
	start := load(page.m, pageStart)
	if f.Received != r.Received[name] || f.Received+dropped != sequence-start || f.Sent != sequence-start || f.Held != 0 {
		t.Errorf("%s: returned %d; page: received %d + dropped %d of %d sent, %d held",
			what, r.Received[name], f.Received, dropped, sequence-start, f.Held)
	}
	if f.Received == 0 {
		t.Errorf("%s: nothing came", what)
	}
}

// TestStress lets every pair of languages exchange bags and pictures, with
// frames held across generations, a reader that stops for a while, one that is
// killed, and one that comes late.
func TestStress(t *testing.T) {
	for _, from := range languages {
		for _, to := range languages {
			t.Run(from+" to "+to, func(t *testing.T) { stress(t, from, to) })
		}
	}
}

func stress(t *testing.T, from, to string) {
	bags := stressBags()
	producer := start(t, from, plan{Role: "produce", Bags: bags, Told: true, Readers: 4, Renew: 500, Size: 8192, PauseUS: 400})
	read := func(profile string, hold, delay int) *peer {
		return start(t, to, plan{Role: "read", Profile: profile, Links: 1, Hold: hold, DelayUS: delay})
	}
	newest, ordered := read("newest", 3, 300), read("ordered", 7, 0)
	stopped, killed := read("ordered", 8, 100), read("newest", 8, 0)
	for i, reader := range []*peer{newest, ordered, stopped, killed} {
		connect(producer, reader, uint64(i+1), "main")
	}
	until := func(p *peer, id, n uint64) {
		t.Helper()
		for end := time.Now().Add(time.Minute); p.pages[id].Figures(0, false).Received < n; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("a reader got %d bags in a minute, not %d", p.pages[id].Figures(0, false).Received, n)
			}
		}
	}
	until(stopped, 3, 200)
	signal(t, stopped, unix.SIGSTOP)
	until(killed, 4, 200)
	signal(t, killed, unix.SIGKILL)
	late := read("newest", 1, 0)
	connect(producer, late, 5, "main")
	until(newest, 1, 500)
	until(late, 5, 1)
	signal(t, stopped, unix.SIGCONT)
	if err := producer.channel.Send(&control.Message{Kind: "finish"}); err != nil {
		t.Fatal(err)
	}

	made := producer.report()
	for what, r := range map[string]struct {
		*peer
		id uint64
	}{"newest": {newest, 1}, "ordered": {ordered, 2}, "stopped": {stopped, 3}, "late": {late, 5}} {
		got := r.report()
		balanced(t, what, got, "main", r.pages[r.id], made.Sequence)
		if what != "late" && got.Checked == 0 {
			t.Errorf("%s: no picture came", what)
		}
		t.Logf("%s: received %d of %d, %d pictures", what, got.Received["main"], made.Sequence, got.Checked)
	}
	end, told := made.Ends["4"]
	if page := killed.pages[4].Figures(0, false); !told || end.Received != page.Received || end.Sent != end.Received+end.Dropped || end.Received < 200 {
		t.Errorf("the killed reader's account is %+v (told: %v), its page says received %d", end, told, page.Received)
	}
}

func signal(t *testing.T, p *peer, s unix.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// TestSeveralWriters joins outputs of both languages to one input of each.
func TestSeveralWriters(t *testing.T) {
	for _, to := range languages {
		for _, profile := range []string{"newest", "ordered"} {
			t.Run(to+" "+profile, func(t *testing.T) {
				reader := start(t, to, plan{Role: "read", Profile: profile, Links: 3, Hold: 2})
				var producers []*peer
				for i, from := range languages {
					p := start(t, from, plan{Role: "produce", Bags: 3000, Readers: 1, Size: 4096, PauseUS: 500, Renew: 700})
					producers = append(producers, p)
					connect(p, reader, uint64(i+1), fmt.Sprint("writer", i+1))
				}
				var made []*report
				for _, p := range producers {
					made = append(made, p.report())
				}
				got := reader.report()
				for i, m := range made {
					name := fmt.Sprint("writer", i+1)
					balanced(t, name, got, name, reader.pages[uint64(i+1)], m.Sequence)
				}
			})
		}
	}
}

// TestProducerKilled kills a producer in the middle of its work: what it
// published last is still read, and the sums hold.
func TestProducerKilled(t *testing.T) {
	for _, from := range languages[:2] {
		for _, to := range languages[:2] {
			t.Run(from+" to "+to, func(t *testing.T) {
				producer := start(t, from, plan{Role: "produce", Bags: 1 << 40, Readers: 1, Size: 4096})
				reader := start(t, to, plan{Role: "read", Profile: "ordered", Links: 1, Hold: 8})
				connect(producer, reader, 1, "main")
				for reader.pages[1].Figures(0, false).Received < 500 {
					time.Sleep(time.Millisecond)
				}
				signal(t, producer, unix.SIGKILL)
				got := reader.report()
				f := reader.pages[1].Figures(0, true)
				if f.Received != got.Received["main"] || f.Sent != f.Received+f.Dropped || !f.Left {
					t.Errorf("returned %d; page: %+v", got.Received["main"], f)
				}
			})
		}
	}
}

// TestNewestWithoutTheProducersHelp reads while a Python producer keeps its
// interpreter lock for half a second: the bag is there before that is over.
func TestNewestWithoutTheProducersHelp(t *testing.T) {
	producer := start(t, "python", plan{Role: "hog", Bags: 3, Readers: 1})
	w, err := NewWaiter()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	in := w.NewInput(Newest)
	a, b := pair(t)
	if err := producer.channel.Send(&control.Message{Kind: control.Link, ID: 1, File: a}); err != nil {
		t.Fatal(err)
	}
	a.Close() // or its end would never be seen
	page, err := in.AddLink(1, "hog", b)
	if err != nil {
		t.Fatal(err)
	}
	page.Close()
	// Bags 1, 3, 5 are followed by the hold, the next ones come after it: they
	// are stamped when it is over. A late reader may miss some.
	var bag Bag
	var readAt int64 // of a bag with a hold behind it
	held, prompt := 0, 0
	for ended := false; ; {
		if !in.Read(&bag) {
			if ended {
				break
			}
			w.Wait(-1)
			ended = len(in.TakeGone()) > 0
			continue
		}
		if readAt != 0 {
			held++
			if readAt <= bag.Timestamp {
				prompt++
			}
		}
		if readAt = 0; bag.Sequence%2 == 1 {
			readAt = Now()
		}
	}
	// On a busy machine one may be late for another reason, not all.
	if prompt == 0 {
		t.Errorf("all of %d bags came only after the producer let its lock go", held)
	}
}

// TestNoDescriptorsLeft makes and drops everything, and counts.
func TestNoDescriptorsLeft(t *testing.T) {
	count := func() (fds, maps int) {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries), strings.Count(string(data), "memfd:tatolab-")
	}
	var fds, maps int
	for round := range 5 {
		t.Run("", func(t *testing.T) {
			r := newRig(t, RGBA)
			in := r.w.NewInput(Newest, RGBA)
			for range 10 { // outgrows the links a pool is made for
				r.link(in)
			}
			r.publish([]byte{1}, r.picture(RGBA, 4096, 1))
			var b Bag
			in.Read(&b)
			if err := r.out.RemoveLink(1, true); err != nil {
				t.Fatal(err)
			}
			r.publish([]byte{1}, r.picture(RGBA, 100_000, 1))
			in.RemoveLink(2)
			b.Frame.Release()
		})
		if round == 0 {
			fds, maps = count()
		}
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		f, m := count()
		if f <= fds && m <= maps {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d descriptors and %d maps after one round, %d and %d after five", fds, maps, f, m)
		}
	}
}
