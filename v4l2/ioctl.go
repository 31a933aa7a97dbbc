package v4l2

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Requests of linux/videodev2.h whose go4vl functions do not serve; the size of
// the argument is part of the number.
const (
	vidiocEnumFmt            = 0xc0405602
	vidiocReqbufs            = 0xc0145608
	vidiocQuerybuf           = 0xc0585609
	vidiocQbuf               = 0xc058560f
	vidiocDqbuf              = 0xc0585611
	vidiocStreamon           = 0x40045612
	vidiocStreamoff          = 0x40045613
	vidiocEnumFrameintervals = 0xc034564b
	vidiocQuerycap           = 0x80685600
	vidiocGFmt               = 0xc0d05604
	vidiocSFmt               = 0xc0d05605
	vidiocGParm              = 0xc0cc5615
	vidiocSParm              = 0xc0cc5616
	vidiocGInput             = 0x80045626
	vidiocEnuminput          = 0xc050561a
	vidiocGStd               = 0x80085617
	vidiocSStd               = 0x40085618
	vidiocQuerystd           = 0x8008563f
	vidiocQueryDVTimings     = 0x80845663
	vidiocSDVTimings         = 0xc0845657
	vidiocSubscribeEvent     = 0x4020565a
	vidiocDqevent            = 0x80885659
)

// buffer is struct v4l2_buffer of a 64-bit kernel.
type buffer struct {
	index, kind, bytesUsed, flags, field, _ uint32
	seconds, microseconds                   int64
	timecode                                [4]uint32
	sequence, memory                        uint32
	m                                       uint64 // a union: offset to map at, or address of planes
	length, _, requestFD, _                 uint32 // length: in bytes, or the number of planes
}

// maxPlanes is VIDEO_MAX_PLANES.
const maxPlanes = 8

// plane is struct v4l2_plane.
type plane struct {
	bytesUsed, length uint32 // bytesUsed includes what is before dataOffset
	offset            uint64 // to map at, in the union m
	dataOffset        uint32
	_                 [11]uint32
}

// requestBuffers is struct v4l2_requestbuffers.
type requestBuffers struct{ count, kind, memory, capabilities, flags uint32 }

// formatDescription is struct v4l2_fmtdesc.
type formatDescription struct {
	index, kind, flags uint32
	_                  [32]byte
	pixelFormat        uint32
	_                  [4]uint32
}

// captureParameters is struct v4l2_streamparm with the member capture of its union.
type captureParameters struct {
	kind, capability, mode uint32
	interval               Fraction
	_                      [184]byte
}

// frameInterval is struct v4l2_frmivalenum. Discrete: the first fraction;
// otherwise least, greatest and step.
type frameInterval struct {
	index, pixelFormat, width, height, kind uint32
	fractions                               [6]uint32
	_                                       [2]uint32
}

// pixelFormat is struct v4l2_format with the member pix of its union.
type pixelFormat struct {
	kind, _                                                     uint32
	width, height, fourCC, field, stride, size                  uint32
	colorspace, private, flags, encoding, colourRange, transfer uint32
	_                                                           [152]byte
}

// planarFormat is struct v4l2_format with the member pix_mp of its union.
type planarFormat struct {
	kind, _                                  uint32
	width, height, fourCC, field, colorspace uint32
	planes                                   [maxPlanes]struct {
		size, stride uint32
		_            [12]byte
	}
	numPlanes, flags, encoding, colourRange, transfer uint8
	_                                                 [15]byte
}

// input is struct v4l2_input.
type input struct {
	index                 uint32
	name                  [32]byte
	kind, audioset, tuner uint32
	standards             uint64
	status, capabilities  uint32
	_                     [4]uint32
}

// timings is struct v4l2_dv_timings with the member bt of its union; second is
// what the header calls il, of the second field of interlaced ones. Lengths are in
// pixels and lines.
type timings struct {
	kind, width, height, interlaced, polarities   uint32
	clockLow, clockHigh                           uint32 // Hz
	hFrontPorch, hSync, hBackPorch                uint32
	vFrontPorch, vSync, vBackPorch                uint32
	secondFrontPorch, secondSync, secondBackPorch uint32
	_                                             [68]byte
}

// eventSubscription is struct v4l2_event_subscription.
type eventSubscription struct {
	kind, id, flags uint32
	_               [5]uint32
}

// event is struct v4l2_event.
type event struct {
	kind, _ uint32
	_       [128]byte
}

// The layouts above are those of the request numbers.
var (
	_ [0x58]byte = [unsafe.Sizeof(buffer{})]byte{}
	_ [0x14]byte = [unsafe.Sizeof(requestBuffers{})]byte{}
	_ [0xd0]byte = [unsafe.Sizeof(pixelFormat{})]byte{}
	_ [0xd0]byte = [unsafe.Sizeof(planarFormat{})]byte{}
	_ [0x40]byte = [unsafe.Sizeof(plane{})]byte{}
	_ [0x40]byte = [unsafe.Sizeof(formatDescription{})]byte{}
	_ [0xcc]byte = [unsafe.Sizeof(captureParameters{})]byte{}
	_ [0x34]byte = [unsafe.Sizeof(frameInterval{})]byte{}
	_ [0x50]byte = [unsafe.Sizeof(input{})]byte{}
	_ [0x84]byte = [unsafe.Sizeof(timings{})]byte{}
	_ [0x20]byte = [unsafe.Sizeof(eventSubscription{})]byte{}
	_ [0x88]byte = [unsafe.Sizeof(event{})]byte{}
)

// ioctl returns the error number itself, 0 for success.
func ioctl(fd int, request uintptr, argument unsafe.Pointer) unix.Errno {
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(argument))
		if errno != unix.EINTR {
			return errno
		}
	}
}
