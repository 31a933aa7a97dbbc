package v4l2

import (
	"unsafe"

	go4vl "github.com/vladimirvivien/go4vl/v4l2"
	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/v4l2/pixel"
)

// The two interfaces for pictures, told apart by the type of buffer. They differ
// in where a format and a buffer keep what they say of a plane.
const (
	singlePlanar = uint32(go4vl.BufTypeVideoCapture)
	multiPlanar  = uint32(9) // V4L2_BUF_TYPE_VIDEO_CAPTURE_MPLANE
)

func (k *kernel) setFormat(f pixel.FourCC, width, height int) (granted, error) {
	return k.formatCall(vidiocSFmt, f, width, height)
}

func (k *kernel) format() (granted, error) { return k.formatCall(vidiocGFmt, 0, 0, 0) }

// formatCall makes an ioctl about the format; what the driver answers is written over
// the wish.
func (k *kernel) formatCall(request uintptr, f pixel.FourCC, width, height int) (granted, error) {
	if k.bufferType == multiPlanar {
		a := planarFormat{kind: k.bufferType, fourCC: uint32(f), width: uint32(width), height: uint32(height), field: uint32(go4vl.FieldNone)}
		if errno := ioctl(k.fd, request, unsafe.Pointer(&a)); errno != 0 {
			return granted{}, errno
		}
		g := granted{
			format: pixel.FourCC(a.fourCC), width: int(a.width), height: int(a.height), memories: int(a.numPlanes),
			colorspace: a.colorspace, encoding: uint32(a.encoding), quantization: uint32(a.colourRange), transfer: uint32(a.transfer),
		}
		for i := range g.strides {
			g.strides[i] = int(a.planes[i].stride)
		}
		return g, nil
	}
	a := pixelFormat{kind: k.bufferType, fourCC: uint32(f), width: uint32(width), height: uint32(height), field: uint32(go4vl.FieldNone)}
	if errno := ioctl(k.fd, request, unsafe.Pointer(&a)); errno != 0 {
		return granted{}, errno
	}
	return granted{
		format: pixel.FourCC(a.fourCC), width: int(a.width), height: int(a.height), memories: 1, strides: [pixel.MaxMemories]int{int(a.stride)},
		colorspace: a.colorspace, encoding: a.encoding, quantization: a.colourRange, transfer: a.transfer,
	}, nil
}

// bufferCall makes an ioctl about a buffer, k.buf.
func (k *kernel) bufferCall(request uintptr, index int) unix.Errno {
	k.buf = buffer{index: uint32(index), kind: k.bufferType, memory: uint32(go4vl.IOTypeMMAP)}
	if k.bufferType == multiPlanar {
		k.planes = [maxPlanes]plane{}
		// k is on the heap, where nothing moves, and lives until the call is back.
		k.buf.m, k.buf.length = uint64(uintptr(unsafe.Pointer(&k.planes))), maxPlanes
	}
	return ioctl(k.fd, request, unsafe.Pointer(&k.buf))
}

// bufferPlanes are the planes of k.buf: a single-planar buffer has its one in itself.
func (k *kernel) bufferPlanes() []plane {
	if k.bufferType == multiPlanar {
		return k.planes[:min(k.buf.length, pixel.MaxMemories)]
	}
	// The offset is the low half of the union.
	k.planes[0] = plane{bytesUsed: k.buf.bytesUsed, length: k.buf.length, offset: uint64(uint32(k.buf.m))}
	return k.planes[:1]
}
