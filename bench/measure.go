package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
	"tatolab.com/tatolab/datapath"
)

// The picture of all measurements.
const (
	width, height = 1280, 720
	pictureBytes  = 4 * width * height
	smallBag      = 200
)

// job is what a producer and its readers are to do; peer.py reads the same.
type job struct {
	Role    string `json:"role"`    // produce, read
	Mode    string `json:"mode"`    // slot, copy, socket
	Size    int    `json:"size"`    // bytes of the picture; 0: small bags
	Readers int    `json:"readers"` // how many
	Frames  int    `json:"frames"`  // how many to publish, with a pause after each
	Warm    int    `json:"warm"`    // how many of them not to count
	PauseUS int    `json:"pause_us"`
	Seconds int    `json:"seconds"` // or as many as there is time for
	Profile string `json:"profile"`
}

// told is what a process reports of itself.
type told struct {
	LatencyNS []int64 `json:"latency_ns"` // per frame, from before the copy or publication to having it
	Frames    int     `json:"frames"`
	// Over these frames: all that a reader does, what a producer does to hand
	// them over. How it comes by the next, here a pause, is not part of it.
	CPUNS  int64 `json:"cpu_ns"`
	WallNS int64 `json:"wall_ns"`
}

// Row is one line of the table.
type Row struct {
	Pair    string `json:"pair"`
	Mode    string `json:"mode"`
	Readers int    `json:"readers"`
	// Latency, in microseconds.
	P50 float64 `json:"p50_us"`
	P99 float64 `json:"p99_us"`
	// FramesPerSecond is what one reader gets when the producer works flat out.
	FramesPerSecond float64 `json:"frames_per_second"`
	// CPU time per frame in microseconds, at a moderate rate: of the
	// producer, of one reader, and of all together.
	WriterCPU float64 `json:"writer_cpu_us"`
	ReaderCPU float64 `json:"reader_cpu_us"`
	TotalCPU  float64 `json:"total_cpu_us"`
	// Beside the socket copy of the same pair and number of readers: how
	// many times faster, and which share of its CPU time.
	Faster   float64 `json:"p50_faster_than_socket"`
	CPUShare float64 `json:"cpu_share_of_socket"`
}

// Bags is the line of small bags: the best round, all ways taking turns.
type Bags struct {
	Pair      string  `json:"pair"`
	Mode      string  `json:"mode"`
	PerSecond float64 `json:"received_per_second"`
	Faster    float64 `json:"times_the_socket"`
}

// Result is bench.json.
type Result struct {
	Version           int     `json:"version"`
	Machine           string  `json:"machine"`
	Rows              []Row   `json:"rows"`
	Bags              []Bags  `json:"bags"`
	AllocationsFrame  float64 `json:"go_allocations_per_frame"`
	FourReadersWriter float64 `json:"writer_cpu_four_readers_over_one"` // Go, copy fused
}

var pairs = []string{"go", "python"}

func measure(python string, quick bool) (*Result, error) {
	r := &Result{Version: 1, Machine: machine(), AllocationsFrame: allocations()}
	frames, seconds, rounds := 300, 2, 5
	if quick {
		frames, seconds, rounds = 60, 1, 1
	}
	for _, from := range pairs {
		for _, readers := range []int{1, 2, 4, 8} {
			var socket Row
			for _, mode := range []string{"socket", "slot", "copy"} {
				row, err := picture(python, from, mode, readers, frames, seconds)
				if err != nil {
					return nil, fmt.Errorf("cannot measure %s to Python, %s, %d readers: %w", from, mode, readers, err)
				}
				if mode == "socket" {
					socket = row
				}
				row.Faster, row.CPUShare = socket.P50/row.P50, row.TotalCPU/socket.TotalCPU
				r.Rows = append(r.Rows, row)
			}
		}
		modes := []string{"socket", "ordered", "newest"}
		best := map[string]float64{}
		for range rounds {
			for _, mode := range modes {
				j := job{Mode: mode, Readers: 1, Seconds: seconds, Profile: mode}
				_, readers, err := run(python, from, j)
				if err != nil {
					return nil, fmt.Errorf("cannot measure small bags, %s to Python, %s: %w", from, mode, err)
				}
				best[mode] = max(best[mode], float64(readers[0].Frames)/(float64(readers[0].WallNS)/1e9))
			}
		}
		for _, mode := range modes {
			r.Bags = append(r.Bags, Bags{pairName(from), mode, best[mode], best[mode] / best["socket"]})
		}
	}
	// Taking turns: what else the machine does weighs on both alike.
	var ratios []float64
	for range rounds {
		cpu := map[int]float64{}
		for _, readers := range []int{1, 4} {
			j := job{
				Mode: "copy", Size: pictureBytes, Readers: readers, Profile: "newest",
				Frames: frames / 2, Warm: frames / 20, PauseUS: 15_000,
			}
			writer, _, err := run(python, "go", j)
			if err != nil {
				return nil, fmt.Errorf("cannot measure the copy for %d readers: %w", readers, err)
			}
			cpu[readers] = float64(writer.CPUNS) / float64(writer.Frames)
		}
		ratios = append(ratios, cpu[4]/cpu[1])
	}
	slices.Sort(ratios)
	r.FourReadersWriter = ratios[len(ratios)/2]
	return r, nil
}

func pairName(from string) string {
	if from == "go" {
		return "Go → Python"
	}
	return "Python → Python"
}

// picture measures one line: once at a moderate rate, for latency and CPU
// time, and once flat out.
func picture(python, from, mode string, readers, frames, seconds int) (Row, error) {
	row := Row{Pair: pairName(from), Mode: mode, Readers: readers}
	j := job{
		Mode: mode, Size: pictureBytes, Readers: readers, Profile: "newest",
		Frames: frames, Warm: frames / 10, PauseUS: 15_000,
	}
	writer, got, err := run(python, from, j)
	if err != nil {
		return row, err
	}
	var latencies []int64
	var cpu float64
	for _, r := range got {
		if len(r.LatencyNS) == 0 {
			return row, fmt.Errorf("a reader got no frame")
		}
		latencies = append(latencies, r.LatencyNS...)
		cpu += float64(r.CPUNS) / float64(r.Frames) / 1e3
	}
	slices.Sort(latencies)
	row.P50 = float64(latencies[len(latencies)/2]) / 1e3
	row.P99 = float64(latencies[len(latencies)*99/100]) / 1e3
	row.WriterCPU = float64(writer.CPUNS) / float64(writer.Frames) / 1e3
	row.ReaderCPU = cpu / float64(readers)
	row.TotalCPU = row.WriterCPU + cpu

	j.Frames, j.Warm, j.PauseUS, j.Seconds = 0, 0, 0, seconds
	if _, got, err = run(python, from, j); err != nil {
		return row, err
	}
	for _, r := range got {
		row.FramesPerSecond += float64(r.Frames) / (float64(r.WallNS) / 1e9) / float64(readers)
	}
	return row, nil
}

// run starts a producer and its readers, and returns what they tell.
func run(python, from string, j job) (writer told, readers []told, err error) {
	kind := unix.SOCK_SEQPACKET
	if j.Mode == "socket" && j.Size > 0 {
		kind = unix.SOCK_STREAM
	}
	var ours, theirs []*os.File
	for range j.Readers {
		fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return writer, nil, err
		}
		ours = append(ours, os.NewFile(uintptr(fds[0]), "link"))
		theirs = append(theirs, os.NewFile(uintptr(fds[1]), "link"))
	}
	defer func() {
		for _, f := range append(ours, theirs...) {
			f.Close()
		}
	}()
	var processes []*exec.Cmd
	defer func() {
		for _, p := range processes {
			if p.ProcessState == nil {
				_ = p.Process.Kill()
				_ = p.Wait()
			}
		}
	}()
	outputs := make([]bytes.Buffer, j.Readers+1)
	begin := func(language, role string, files []*os.File, out io.Writer) error {
		own := j
		own.Role = role
		data, err := json.Marshal(own)
		if err != nil {
			return err
		}
		var cmd *exec.Cmd
		if language == "python" {
			cmd = exec.Command(python, "-I", "bench/peer.py", "python/src/tatolab/stream", string(data))
		} else {
			cmd = exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), "TATOLAB_BENCH_PRODUCER="+string(data))
		}
		cmd.ExtraFiles, cmd.Stdout, cmd.Stderr = files, out, os.Stderr
		if err := cmd.Start(); err != nil {
			return err
		}
		processes = append(processes, cmd)
		return nil
	}
	for i := range j.Readers {
		if err := begin("python", "read", theirs[i:i+1], &outputs[i+1]); err != nil {
			return writer, nil, err
		}
	}
	if err := begin(from, "produce", ours, &outputs[0]); err != nil {
		return writer, nil, err
	}
	for _, f := range append(ours, theirs...) {
		f.Close() // or nobody sees an end
	}
	for _, p := range processes {
		if err := p.Wait(); err != nil {
			return writer, nil, err
		}
	}
	readers = make([]told, j.Readers)
	for i := range outputs {
		to := &writer
		if i > 0 {
			to = &readers[i-1]
		}
		if err := json.Unmarshal(outputs[i].Bytes(), to); err != nil {
			return writer, nil, fmt.Errorf("a process told %q: %w", outputs[i].String(), err)
		}
	}
	return writer, readers, nil
}

// produce is the Go producer: this program started again.
func produce(text string) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	picture := bytes.Repeat([]byte{0x55}, max(j.Size, smallBag))
	runtime.LockOSThread() // CPU time is counted per thread
	emit, closeAll, err := emitter(j, picture)
	if err != nil {
		return err
	}
	t := told{}
	var wall time.Time
	end := time.Now().Add(time.Duration(j.Seconds) * time.Second)
	for i := 0; i < j.Frames || j.Frames == 0 && (i%16 != 0 || time.Now().Before(end)); i++ {
		if i == j.Warm {
			t.CPUNS, wall = 0, time.Now()
		}
		var cpu int64
		if j.PauseUS > 0 {
			cpu = threadCPU()
		}
		if err := emit(); err != nil {
			return err
		}
		if j.PauseUS > 0 {
			t.CPUNS += threadCPU() - cpu
			// In the kernel, as a camera's thread does: Go's timers wake others first.
			_ = unix.Nanosleep(&unix.Timespec{Nsec: int64(j.PauseUS) * 1000}, nil)
		}
		if i >= j.Warm {
			t.Frames++
		}
	}
	t.WallNS = time.Since(wall).Nanoseconds()
	closeAll()
	return json.NewEncoder(os.Stdout).Encode(t)
}

// emitter returns how one frame, or small bag, is handed over.
func emitter(j job, picture []byte) (emit func() error, closeAll func(), err error) {
	var links []*os.File
	for i := range j.Readers {
		links = append(links, os.NewFile(uintptr(3+i), "link"))
	}
	if j.Mode == "socket" {
		return func() error {
			binary.LittleEndian.PutUint64(picture, uint64(datapath.Now())) // a bag has its own
			for _, l := range links {
				for rest := picture; len(rest) > 0; {
					n, err := unix.Write(int(l.Fd()), rest)
					if err != nil && err != unix.EINTR {
						return err
					}
					rest = rest[max(n, 0):]
				}
			}
			return nil
		}, func() {}, nil
	}
	out, err := datapath.NewOutput(datapath.OutputOptions{Owner: "bench/go/out", Formats: []datapath.Format{datapath.RGBA}})
	if err != nil {
		return nil, nil, err
	}
	for i, l := range links {
		if err := out.AddLink(uint64(i+1), l); err != nil {
			return nil, nil, err
		}
	}
	for out.Readers() < j.Readers {
		time.Sleep(time.Millisecond)
	}
	bag := make([]byte, smallBag)
	return func() error {
		if j.Size == 0 {
			_, err := out.Publish(bag, datapath.Now())
			return err
		}
		begun := datapath.Now()
		slot, err := out.Acquire(datapath.RGBA, j.Size)
		if err != nil {
			return err
		}
		slot.Surface = datapath.Packed(out.NewSurface(), datapath.RGBA, width, height, 4)
		if j.Mode == "copy" {
			copy(slot.Bytes, picture)
		} else {
			begun = datapath.Now() // the picture is made
		}
		_, err = out.Publish(bag, begun, slot)
		return err
	}, out.Close, nil
}

func threadCPU() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	return ts.Nano()
}

// allocations counts what both Go ends allocate for a frame.
func allocations() float64 {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	out, err := datapath.NewOutput(datapath.OutputOptions{Owner: "bench/go/out", Formats: []datapath.Format{datapath.RGBA}})
	if err != nil {
		return -1
	}
	defer out.Close()
	w, err := datapath.NewWaiter()
	if err != nil {
		return -1
	}
	defer w.Close()
	in := w.NewInput(datapath.Newest, datapath.RGBA)
	if err := out.AddLink(1, os.NewFile(uintptr(fds[0]), "link")); err != nil {
		return -1
	}
	page, err := in.AddLink(1, "bench", os.NewFile(uintptr(fds[1]), "link"))
	if err != nil {
		return -1
	}
	page.Close()
	for out.Readers() == 0 {
		time.Sleep(time.Millisecond)
	}
	bag := make([]byte, smallBag)
	var b datapath.Bag
	const warm, frames = 100, 10_000
	var before, after runtime.MemStats
	for i := range warm + frames {
		if i == warm {
			runtime.ReadMemStats(&before)
		}
		slot, err := out.Acquire(datapath.RGBA, pictureBytes)
		if err != nil {
			return -1
		}
		slot.Surface = datapath.Packed(1, datapath.RGBA, width, height, 4)
		if _, err := out.Publish(bag, 0, slot); err != nil {
			return -1
		}
		w.Wait(time.Second)
		for in.Read(&b) {
			b.Frame.Release()
		}
	}
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / frames
}

func machine() string {
	var u unix.Utsname
	_ = unix.Uname(&u)
	model := "unknown processor"
	if data, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(data)) {
			if name, ok := strings.CutPrefix(line, "model name"); ok {
				model = strings.Trim(name, "\t :\n")
				break
			}
		}
	}
	return fmt.Sprintf("%s, %d CPUs, Linux %s, %s", model, runtime.NumCPU(), unix.ByteSliceToString(u.Release[:]), runtime.GOARCH)
}

func (r *Result) print(to io.Writer) {
	fmt.Fprintf(to, "%s\n\n720p RGBA picture (%.1f MB), microseconds\n", r.Machine, pictureBytes/1e6)
	t := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "PAIR\tWAY\tREADERS\tP50\tP99\tFRAMES/S\tWRITER CPU\tREADER CPU\tTOTAL CPU\tFASTER\tCPU SHARE")
	for _, row := range r.Rows {
		fmt.Fprintf(t, "%s\t%s\t%d\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.1fx\t1/%.1f\n", row.Pair, row.Mode, row.Readers,
			row.P50, row.P99, row.FramesPerSecond, row.WriterCPU, row.ReaderCPU, row.TotalCPU, row.Faster, 1/row.CPUShare)
	}
	t.Flush()
	fmt.Fprintf(to, "\nbags of %d bytes, received per second by one reader, the producer flat out; the best of several rounds\n", smallBag)
	fmt.Fprintln(t, "PAIR\tWAY\tBAGS/S\tTIMES THE SOCKET")
	for _, b := range r.Bags {
		fmt.Fprintf(t, "%s\t%s\t%.0f\t%.1f\n", b.Pair, b.Mode, b.PerSecond, b.Faster)
	}
	t.Flush()
	fmt.Fprintf(to, "\nGo, allocations per frame: %g\nGo, copy fused: four readers cost the writer %.2f times the CPU of one\n",
		r.AllocationsFrame, r.FourReadersWriter)
}
