package cameramachine_test

import (
	"os"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/contrib/testbed/cameramachine"
)

// A driver that does not answer: one call of another program holds the lock that every
// call takes. The node says so, and is back by itself when the driver is.
func TestStuckDriver(t *testing.T) {
	cameramachine.Need(t)
	t.Parallel()
	vivid(t)
	p := start(t, map[string]any{"device_id": device, "max_width": width, "max_height": height})
	p.Frame()
	p.Forget()
	answer := hold(t)
	p.Condition("stuck", "its driver has not answered for 2s")
	returned := time.Now()
	answer()
	p.Said("camera is back: ")
	for f := p.Frame(); ; f = p.Frame() {
		if late := time.Duration(f.Timestamp - monotonic(returned)); late > 0 {
			t.Logf("back %v after the driver", late.Round(time.Millisecond))
			if late > backBound+slack {
				t.Errorf("frames were back %v after the driver", late)
			}
			break
		}
	}
	p.Stop()
}

// From linux/userfaultfd.h and linux/videodev2.h; vivid's control "string".
const (
	uffdAPI          = 0xc018aa3f
	uffdRegister     = 0xc020aa00
	uffdZeropage     = 0xc020aa04
	vidiocSExtCtrls  = 0xc0205648
	vividString      = 0x0098f905
	vividStringBytes = 5
)

// hold keeps the driver in a call, until answer is called: it copies the text of a
// control, its lock held, from a page that is not there until somebody provides it
// (userfaultfd(2)).
func hold(t *testing.T) (answer func()) {
	t.Helper()
	check := func(what string, errno unix.Errno) {
		t.Helper()
		if errno != 0 {
			t.Fatalf("%s: %v", what, errno)
		}
	}
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	start := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(page))))
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	check("userfaultfd", errno)
	_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, uffdAPI, uintptr(unsafe.Pointer(&struct{ api, features, ioctls uint64 }{api: 0xaa})))
	check("UFFDIO_API", errno)
	_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, uffdRegister,
		uintptr(unsafe.Pointer(&struct{ start, length, mode, ioctls uint64 }{start, uint64(len(page)), 1 /* missing pages */, 0})))
	check("UFFDIO_REGISTER", errno)
	camera, err := unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan unix.Errno, 1)
	go func() {
		// struct v4l2_ext_control is packed: a pointer in the middle of a word.
		text := struct{ id, size, reserved, low, high uint32 }{vividString, vividStringBytes, 0, uint32(start), uint32(start >> 32)}
		list := struct {
			which, count, failed, request, reserved, pad uint32
			controls                                     unsafe.Pointer
		}{count: 1, controls: unsafe.Pointer(&text)}
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(camera), vidiocSExtCtrls, uintptr(unsafe.Pointer(&list)))
		done <- errno
	}()
	answered := false
	answer = func() {
		if answered {
			return
		}
		answered = true
		// Whoever waits for the page gets one of zeroes, which is a short text: refused.
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, uffdZeropage,
			uintptr(unsafe.Pointer(&struct{ start, length, mode, zeroed uint64 }{start, uint64(len(page)), 0, 0})))
		check("UFFDIO_ZEROPAGE", errno)
		if errno := <-done; errno != 0 && errno != unix.ERANGE {
			t.Errorf("the call that held the driver: %v", errno)
		}
		unix.Close(camera)
		unix.Close(int(fd))
		unix.Munmap(page)
	}
	t.Cleanup(answer)
	return answer
}
