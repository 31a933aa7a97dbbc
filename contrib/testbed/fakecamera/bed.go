package fakecamera

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Bed is the cameras that a program is running under. Its methods may be called
// from any goroutine, while the program runs.
type Bed struct {
	handover *os.File      // the launcher's end of the way the listener takes
	launched chan struct{} // closed when listener and failed are settled
	failed   error
	listener int
	folder   string // what /dev and /dev/v4l/by-id hold, for the program
	closed   chan struct{}
	end      int // an eventfd that becomes readable when the bed is closed
	handlers sync.WaitGroup
	done     chan struct{} // serve has ended

	mu       sync.Mutex
	cameras  map[string]*device // by path
	sessions map[int]*session   // by number
	clocks   []*time.Timer
	events   []Event
}

// newBed makes the bed; run begins to serve.
func newBed(script Script) (*Bed, error) {
	b := &Bed{
		launched: make(chan struct{}), listener: -1, closed: make(chan struct{}), done: make(chan struct{}),
		cameras: map[string]*device{}, sessions: map[int]*session{}, events: script.Events,
	}
	var err error
	if b.end, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
		return nil, err
	}
	if b.folder, err = os.MkdirTemp("", "fakecamera-"); err == nil {
		err = os.MkdirAll(filepath.Join(b.folder, "v4l/by-id"), 0o755)
	}
	for _, c := range script.Cameras {
		err = errors.Join(err, b.Plug(c))
	}
	for _, e := range script.Events {
		if e.Plug != nil {
			err = errors.Join(err, e.Plug.check())
		}
	}
	if err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

func (b *Bed) run() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.events {
		b.clocks = append(b.clocks, time.AfterFunc(time.Duration(e.At*float64(time.Second)), func() {
			if e.Unplug != "" {
				b.Unplug(e.Unplug)
			}
			if e.Plug != nil {
				_ = b.Plug(*e.Plug) // was checked
			}
			if e.Connect != "" {
				b.Connect(e.Connect, e.Signal)
			}
		}))
	}
	go b.serve()
	go b.reap()
}

// Plug makes a camera appear, in place of the one there was at its path.
func (b *Bed) Plug(c Camera) error {
	if err := c.check(); err != nil {
		return err
	}
	if c.Driver == "" {
		c.Driver = "uvcvideo"
	}
	if c.Bus == "" {
		c.Bus = fmt.Sprintf("usb-fake-%d", number(c.Path))
	}
	b.Unplug(c.Path)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cameras[c.Path] = newDevice(c)
	name := filepath.Join(b.folder, filepath.Base(c.Path))
	// A device node where that is allowed, so that it looks like one; opening
	// it never gets to the kernel.
	const major = 81
	if unix.Mknod(name, unix.S_IFCHR|0o660, int(unix.Mkdev(major, uint32(number(c.Path))))) != nil {
		if err := os.WriteFile(name, nil, 0o660); err != nil {
			return err
		}
	}
	if c.ByID != "" {
		return os.Symlink("../../"+filepath.Base(c.Path), filepath.Join(b.folder, "v4l/by-id", c.ByID))
	}
	return nil
}

// Unplug makes the camera at path disappear, also for those who have it open.
func (b *Bed) Unplug(path string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	d := b.cameras[path]
	if d == nil {
		return
	}
	delete(b.cameras, path)
	d.unplug()
	os.Remove(filepath.Join(b.folder, filepath.Base(path)))
	if d.ByID != "" {
		os.Remove(filepath.Join(b.folder, "v4l/by-id", d.ByID))
	}
}

// Change alters the behaviour of the camera at path from now on.
func (b *Bed) Change(path string, change func(*Camera)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d := b.cameras[path]; d != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		change(&d.Camera)
	}
}

// Connect changes what the receiver at path receives.
func (b *Bed) Connect(path string, signal Signal) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d := b.cameras[path]; d != nil {
		d.connect(signal)
	}
}

// State is what the program does with a camera at the moment.
type State struct {
	Open      int  // descriptors
	Streaming bool // somebody has it streaming
	Frames    int  // made since it was plugged in
	Written   int  // bytes that those who have it open wrote to it
}

// State looks at the camera at path.
func (b *Bed) State(path string) State {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reapLocked()
	d := b.cameras[path]
	if d == nil {
		return State{}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s := State{Streaming: d.streaming != nil, Frames: d.frames}
	for _, session := range b.sessions {
		if session.device == d {
			s.Open++
			var file unix.Stat_t
			if d.Output && unix.Fstat(session.memory, &file) == nil {
				s.Written += int(file.Size)
			}
		}
	}
	return s
}

// Close ends the cameras; what still runs under them gets ENOSYS from then on.
// It is called after the program has been waited for.
func (b *Bed) Close() {
	b.mu.Lock()
	select {
	case <-b.closed:
		b.mu.Unlock()
		return
	default:
	}
	close(b.closed)
	for _, t := range b.clocks {
		t.Stop()
	}
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	unix.Write(b.end, one[:])
	b.mu.Unlock()
	if b.handover != nil {
		b.handover.Close() // nobody launches any more
		<-b.launched
	}
	if b.listener >= 0 {
		<-b.done
		b.handlers.Wait()
		unix.Close(b.listener)
	}
	for path := range b.cameras {
		b.Unplug(path)
	}
	for _, s := range b.sessions {
		s.close()
	}
	unix.Close(b.end)
	os.RemoveAll(b.folder)
}

// notification is struct seccomp_notif.
type notification struct {
	id          uint64
	pid, flags  uint32
	number      uint32
	arch        uint32
	instruction uint64
	args        [6]uint64
	// Below is not the kernel's.
	milliseconds bool // a poll's time-out is that, not a timespec's address
}

// response is struct seccomp_notif_resp.
type response struct {
	id    uint64
	value int64
	errno int32
	flags uint32
}

// addFD is struct seccomp_notif_addfd.
type addFD struct {
	id                           uint64
	flags, source, target, flag2 uint32
}

const (
	notifReceive = 0xc0502100
	notifSend    = 0xc0182101
	notifAddFD   = 0x40182103
	notifyGoOn   = 1      // SECCOMP_USER_NOTIF_FLAG_CONTINUE
	addFDSend    = 1 << 1 // SECCOMP_ADDFD_FLAG_SEND
)

// serve answers until the last process under the filter is gone.
func (b *Bed) serve() {
	defer close(b.done)
	for {
		polls := []unix.PollFd{{Fd: int32(b.listener), Events: unix.POLLIN}, {Fd: int32(b.end), Events: unix.POLLIN}}
		if _, err := unix.Poll(polls, -1); err != nil && err != unix.EINTR {
			return
		}
		if polls[1].Revents != 0 || polls[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0 {
			return
		}
		if polls[0].Revents&unix.POLLIN == 0 {
			continue
		}
		n := &notification{}
		if errno := control(b.listener, notifReceive, unsafe.Pointer(n)); errno != 0 {
			continue // the caller was killed meanwhile
		}
		b.handlers.Add(1)
		go func() {
			defer b.handlers.Done()
			b.answer(n)
		}()
	}
}

func control(fd int, request uintptr, argument unsafe.Pointer) unix.Errno {
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(argument))
		if errno != unix.EINTR {
			return errno
		}
	}
}

// goOn lets the kernel do the call.
func (b *Bed) goOn(n *notification) { b.send(response{id: n.id, flags: notifyGoOn}) }

// give ends the call with a value, or with an error number.
func (b *Bed) give(n *notification, value int64, errno unix.Errno) {
	b.send(response{id: n.id, value: value, errno: -int32(errno)})
}

func (b *Bed) send(r response) { control(b.listener, notifSend, unsafe.Pointer(&r)) }

// giveFD ends the call with a copy of our descriptor.
func (b *Bed) giveFD(n *notification, fd int, closeOnExec bool) {
	a := addFD{id: n.id, flags: addFDSend, source: uint32(fd)}
	if closeOnExec {
		a.flag2 = unix.O_CLOEXEC
	}
	control(b.listener, notifAddFD, unsafe.Pointer(&a))
}

func (b *Bed) answer(n *notification) {
	n.normalise()
	switch n.number {
	case unix.SYS_OPENAT:
		b.open(n)
	case sysFstatat:
		b.stat(n)
	case unix.SYS_READLINKAT:
		b.readlink(n)
	case unix.SYS_FACCESSAT, unix.SYS_FACCESSAT2:
		b.access(n)
	case unix.SYS_INOTIFY_ADD_WATCH:
		b.watch(n)
	case unix.SYS_PPOLL:
		b.poll(n)
	case unix.SYS_PSELECT6:
		b.choose(n)
	case unix.SYS_IOCTL:
		b.ioctl(n)
	default:
		b.goOn(n)
	}
}

// number of a path /dev/videoN, -1 for any other.
func number(path string) int {
	digits, ok := strings.CutPrefix(path, "/dev/video")
	if !ok {
		return -1
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n < 0 {
		return -1
	}
	return n
}

// stand is the file that stands for a path below /dev that is ours.
func (b *Bed) stand(path string) (string, bool) {
	path = filepath.Clean(path)
	if path == "/dev" || path == "/dev/v4l" || strings.HasPrefix(path, "/dev/v4l/") || number(path) >= 0 {
		return b.folder + strings.TrimPrefix(path, "/dev"), true
	}
	return "", false
}

// named returns the path that a call names, and the file that stands for it if it
// is ours.
func (b *Bed) named(n *notification) (path, stand string, ours bool) {
	path, ok := readString(n.pid, uintptr(n.args[1]))
	if ok {
		stand, ours = b.stand(path)
	}
	return path, stand, ours
}

func (b *Bed) open(n *notification) {
	path, stand, ours := b.named(n)
	if !ours {
		b.goOn(n)
		return
	}
	closeOnExec := n.args[2]&unix.O_CLOEXEC != 0
	if target, err := os.Readlink(stand); err == nil { // by-id
		path = filepath.Join("/dev/v4l/by-id", target)
	}
	if number(path) < 0 {
		fd, err := unix.Open(stand, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			b.give(n, 0, err.(unix.Errno))
			return
		}
		defer unix.Close(fd)
		b.giveFD(n, fd, closeOnExec)
		return
	}
	b.mu.Lock()
	d := b.cameras[path]
	if d == nil {
		b.mu.Unlock()
		b.give(n, 0, unix.ENOENT)
		return
	}
	if d.behaviour().Denied {
		b.mu.Unlock()
		b.give(n, 0, unix.EACCES)
		return
	}
	s, err := newSession(int(openings.Add(1)), d, n.args[2]&unix.O_NONBLOCK != 0, n.pid)
	if err != nil {
		b.mu.Unlock()
		b.give(n, 0, unix.ENOMEM)
		return
	}
	b.sessions[s.number] = s
	b.mu.Unlock()
	b.giveFD(n, s.memory, closeOnExec)
	s.given.Store(true)
}

// watch has the program's inotify watch the folder that stands for /dev.
func (b *Bed) watch(n *notification) {
	_, stand, ours := b.named(n)
	if !ours {
		b.goOn(n)
		return
	}
	fd, err := fetchFD(n.pid, int(n.args[0]))
	if err != nil {
		b.goOn(n)
		return
	}
	defer unix.Close(fd)
	number, err := unix.InotifyAddWatch(fd, stand, uint32(n.args[2]))
	if err != nil {
		b.give(n, 0, err.(unix.Errno))
		return
	}
	b.give(n, int64(number), 0)
}

func (b *Bed) stat(n *notification) {
	path, stand, ours := b.named(n)
	if !ours || path == "/dev" {
		b.goOn(n)
		return
	}
	var st unix.Stat_t
	if err := unix.Fstatat(unix.AT_FDCWD, stand, &st, int(n.args[3])&unix.AT_SYMLINK_NOFOLLOW); err != nil {
		b.give(n, 0, err.(unix.Errno))
		return
	}
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		st.Mode = st.Mode&^unix.S_IFMT | unix.S_IFCHR
	}
	writeMemory(n.pid, uintptr(n.args[2]), unsafe.Slice((*byte)(unsafe.Pointer(&st)), unsafe.Sizeof(st)))
	b.give(n, 0, 0)
}

func (b *Bed) access(n *notification) {
	path, stand, ours := b.named(n)
	if !ours || path == "/dev" {
		b.goOn(n)
		return
	}
	if _, err := os.Stat(stand); err != nil {
		b.give(n, 0, unix.ENOENT)
		return
	}
	b.mu.Lock()
	d := b.cameras[path]
	denied := d != nil && d.behaviour().Denied && n.args[2] != unix.F_OK
	b.mu.Unlock()
	if denied {
		b.give(n, 0, unix.EACCES)
		return
	}
	b.give(n, 0, 0)
}

func (b *Bed) readlink(n *notification) {
	path, stand, ours := b.named(n)
	target := ""
	switch {
	case ours:
		var err error
		if target, err = os.Readlink(stand); err != nil {
			b.give(n, 0, err.(*os.PathError).Err.(unix.Errno))
			return
		}
	case strings.HasPrefix(path, "/proc/") && strings.Contains(path, "/fd/") && !strings.HasPrefix(path, "/proc/self/"):
		// Whoever looks for the holder of a device finds its path.
		// We have it too, which nobody is to see, unless we play that.
		link, _ := os.Readlink(path)
		held := strings.HasPrefix(path, fmt.Sprintf("/proc/%d/", os.Getpid())) // by us
		b.mu.Lock()
		if s := b.sessions[sessionNumber(link)]; s != nil && (!held || s.device.behaviour().Busy) {
			target = s.device.Path
		}
		b.mu.Unlock()
	}
	if target == "" {
		b.goOn(n)
		return
	}
	data := []byte(target)[:min(len(target), int(n.args[3]))]
	writeMemory(n.pid, uintptr(n.args[2]), data)
	b.give(n, int64(len(data)), 0)
}

// session finds the camera behind a descriptor of the caller's.
func (b *Bed) session(pid uint32, fd int) *session {
	link, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, fd))
	if err != nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sessions[sessionNumber(link)]
}

// poll answers a poll that has one of our descriptors in it: the others are
// fetched and polled here, beside the camera's own readiness.
func (b *Bed) poll(n *notification) {
	count := int(n.args[1])
	const most = 64 // who polls more does not poll a camera
	if count < 1 || count > most {
		b.goOn(n)
		return
	}
	fds := make([]unix.PollFd, count)
	raw := unsafe.Slice((*byte)(unsafe.Pointer(&fds[0])), count*int(unsafe.Sizeof(fds[0])))
	if !readMemory(n.pid, uintptr(n.args[0]), raw) {
		b.goOn(n)
		return
	}
	number, errno, ours := b.await(n, fds)
	switch {
	case !ours:
		b.goOn(n)
	case errno != 0:
		b.give(n, 0, errno)
	default:
		writeMemory(n.pid, uintptr(n.args[0]), raw)
		b.give(n, number, 0)
	}
}

// choose answers a select as poll does a poll.
func (b *Bed) choose(n *notification) {
	const most = 1024 // FD_SETSIZE
	count := int(n.args[0])
	if count < 1 || count > most {
		b.goOn(n)
		return
	}
	var sets [3][]byte // to read, to write, exceptional; a set is of long integers
	for i := range sets {
		if n.args[1+i] == 0 {
			continue
		}
		sets[i] = make([]byte, (count+63)/64*8)
		if !readMemory(n.pid, uintptr(n.args[1+i]), sets[i]) {
			b.goOn(n)
			return
		}
	}
	// What select(2) calls ready, in the words of poll.
	events := [3]int16{unix.POLLIN, unix.POLLOUT, unix.POLLPRI}
	ready := [3]int16{unix.POLLIN | unix.POLLHUP | unix.POLLERR, unix.POLLOUT | unix.POLLERR, unix.POLLPRI}
	var fds []unix.PollFd
	for fd := range count {
		var wanted int16
		for i, set := range sets {
			if set != nil && set[fd/8]&(1<<(fd%8)) != 0 {
				wanted |= events[i]
			}
		}
		if wanted != 0 {
			fds = append(fds, unix.PollFd{Fd: int32(fd), Events: wanted})
		}
	}
	n.args[2] = n.args[4] // where a poll has its time-out
	_, errno, ours := b.await(n, fds)
	if !ours {
		b.goOn(n)
		return
	}
	if errno != 0 {
		b.give(n, 0, errno)
		return
	}
	number := int64(0)
	for i, set := range sets {
		clear(set)
		for _, p := range fds {
			if set != nil && p.Events&events[i] != 0 && p.Revents&ready[i] != 0 {
				set[p.Fd/8] |= 1 << (p.Fd % 8)
				number++
			}
		}
		if set != nil {
			writeMemory(n.pid, uintptr(n.args[1+i]), set)
		}
	}
	b.give(n, number, 0)
}

// await waits as a poll of fds does, and fills in what is ready; ours tells
// whether a camera is among them at all.
func (b *Bed) await(n *notification, fds []unix.PollFd) (number int64, errno unix.Errno, ours bool) {
	polls := []unix.PollFd{{Fd: int32(b.end), Events: unix.POLLIN}} // then one for each of fds
	var events []unix.PollFd                                        // of the cameras among them
	sessions := make([]*session, len(fds))
	for i, p := range fds {
		if p.Fd >= 0 {
			sessions[i] = b.session(n.pid, int(p.Fd))
			ours = ours || sessions[i] != nil
		}
	}
	if !ours {
		return 0, 0, false
	}
	for i, p := range fds {
		q := unix.PollFd{Fd: -1, Events: p.Events}
		if s := sessions[i]; s != nil {
			if q.Events = unix.POLLIN; p.Events&unix.POLLIN != 0 {
				q.Fd = int32(s.ready)
			}
			events = append(events, unix.PollFd{Fd: int32(s.urgent), Events: unix.POLLIN})
		} else if p.Fd >= 0 {
			fd, err := fetchFD(n.pid, int(p.Fd))
			if err != nil {
				return 0, 0, false
			}
			defer unix.Close(fd)
			q.Fd = int32(fd)
		}
		polls = append(polls, q)
	}
	polls = append(polls, events...)
	deadline := b.deadline(n)
	for {
		wait := -1
		if deadline >= 0 {
			wait = int(max(0, deadline-monotonic()+999_999) / 1_000_000)
		}
		_, err := unix.Poll(polls, wait)
		if err != nil && err != unix.EINTR {
			return 0, err.(unix.Errno), true
		}
		number = 0
		for i := range fds {
			fds[i].Revents = polls[i+1].Revents
			if sessions[i] != nil {
				fds[i].Revents = sessions[i].revents(fds[i].Events)
			}
			if fds[i].Revents != 0 {
				number++
			}
		}
		expired := deadline >= 0 && monotonic() >= deadline
		if number > 0 || expired || polls[0].Revents != 0 {
			return number, 0, true
		}
		if err == nil {
			// Readiness that the caller did not ask for.
			time.Sleep(time.Millisecond)
		}
	}
}

// deadline of a poll in monotonic nanoseconds, negative for none.
func (b *Bed) deadline(n *notification) int64 {
	if n.milliseconds {
		ms := int64(int32(n.args[2]))
		if ms < 0 {
			return -1
		}
		return monotonic() + ms*1_000_000
	}
	var t unix.Timespec
	if n.args[2] == 0 || !readMemory(n.pid, uintptr(n.args[2]), unsafe.Slice((*byte)(unsafe.Pointer(&t)), unsafe.Sizeof(t))) {
		return -1
	}
	return monotonic() + t.Nano()
}

// reap notices descriptors that were closed: nothing tells of it.
func (b *Bed) reap() {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-b.closed:
			return
		case <-tick.C:
			b.mu.Lock()
			b.reapLocked()
			b.mu.Unlock()
		}
	}
}

func (b *Bed) reapLocked() {
	for number, s := range b.sessions {
		if s.given.Load() && !s.held() {
			delete(b.sessions, number)
			s.close()
		}
	}
}

// memoryName, and a number, is what the memfd of a session is called, so that a
// descriptor of anybody's tells which session it is. Beds of other processes
// have other names, those of this one share the numbers: whoever looks for the
// holder of a device sees the processes of all.
var memoryName = fmt.Sprintf("fakecamera-%016x-", rand.Uint64())

// openings is how many sessions there were in this process.
var openings atomic.Int64

// sessionNumber reads a link in /proc/PID/fd; 0 if it is no session.
func sessionNumber(link string) int {
	rest, ok := strings.CutPrefix(link, "/memfd:"+memoryName)
	if !ok {
		return 0
	}
	digits, _, _ := strings.Cut(rest, " ")
	n, _ := strconv.Atoi(digits)
	return n
}

// fetchFD duplicates a descriptor of another process.
func fetchFD(tid uint32, fd int) (int, error) {
	pidfd, err := unix.PidfdOpen(threadGroup(tid), 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(pidfd)
	return unix.PidfdGetfd(pidfd, fd, 0)
}

// threadGroup is the process of a thread.
func threadGroup(tid uint32) int {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	_, rest, _ := bytes.Cut(status, []byte("\nTgid:\t"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	if pid, err := strconv.Atoi(string(line)); err == nil {
		return pid
	}
	return int(tid)
}

// readMemory reads the caller's memory.
func readMemory(pid uint32, address uintptr, into []byte) bool {
	local := []unix.Iovec{{Base: &into[0], Len: uint64(len(into))}}
	n, err := unix.ProcessVMReadv(int(pid), local, []unix.RemoteIovec{{Base: address, Len: len(into)}}, 0)
	return err == nil && n == len(into)
}

// writeMemory writes the caller's memory.
func writeMemory(pid uint32, address uintptr, from []byte) bool {
	if len(from) == 0 {
		return true
	}
	local := []unix.Iovec{{Base: &from[0], Len: uint64(len(from))}}
	n, err := unix.ProcessVMWritev(int(pid), local, []unix.RemoteIovec{{Base: address, Len: len(from)}}, 0)
	return err == nil && n == len(from)
}

// readString reads a path, which ends at a zero byte and may lie at the end of
// the last page there is.
func readString(pid uint32, address uintptr) (string, bool) {
	const page = 4096
	var whole []byte
	for len(whole) < unix.PathMax {
		part := make([]byte, page-int(address%page))
		if !readMemory(pid, address, part) {
			return "", false
		}
		if end := bytes.IndexByte(part, 0); end >= 0 {
			return string(append(whole, part[:end]...)), true
		}
		whole, address = append(whole, part...), address+uintptr(len(part))
	}
	return "", false
}

func monotonic() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // the clock is always there
	}
	return t.Nano()
}
