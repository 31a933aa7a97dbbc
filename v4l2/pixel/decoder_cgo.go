//go:build cgo && !purego

package pixel

/*
#cgo CFLAGS: -O3
#cgo LDFLAGS: -lyuv -lturbojpeg
#include <turbojpeg.h>
#include "convert.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"unsafe"
)

// decoder is what a Converter keeps between frames.
type decoder struct {
	turbo C.tjhandle
	// Here, because a variable whose address is given to C is allocated.
	width, height, subsampling, colours C.int
}

func (c *Converter) open() error {
	if c.turbo = C.tjInitDecompress(); c.turbo == nil {
		return errors.New("cannot decode JPEG: libjpeg-turbo does not start")
	}
	return nil
}

// Close frees what the converter holds.
func (c *Converter) Close() {
	if c.turbo != nil {
		C.tjDestroy(c.turbo)
		c.turbo = nil
	}
}

func bytesOf(b []byte) *C.uint8_t { return (*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(b))) }

func flag(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

// rawToRGBA converts an uncompressed frame. Lengths have been checked.
func (c *Converter) rawToRGBA(dst []byte, stride int, src [][]byte) error {
	f, k := &c.format, &c.kind
	plane := func(i int) (*C.uint8_t, C.int) {
		p := &c.planes[i]
		return bytesOf(p.in(src)), C.int(p.stride)
	}
	from, fromStride := plane(0)
	to, toStride := bytesOf(dst), C.int(stride)
	width, height := C.int(f.Width), C.int(f.Height)
	matrix, full := C.int(f.Matrix), flag(f.FullRange)
	var rc C.int
	switch k.layout {
	case packed422:
		rc = C.pixel_packed422(from, fromStride, to, toStride, flag(k.y == 0), flag(k.v < k.u), matrix, full, width, height)
	case semiplanar:
		chroma, chromaStride := plane(1)
		rc = C.pixel_semiplanar(from, fromStride, chroma, chromaStride, to, toStride, flag(k.v < k.u), C.int(k.vshift), matrix, full, width, height)
	case planar:
		u, uStride := plane(1 + k.u)
		v, vStride := plane(1 + k.v)
		rc = C.pixel_planar(from, fromStride, u, uStride, v, vStride, to, toStride, C.int(k.vshift), matrix, full, width, height)
	case grey:
		rc = C.pixel_grey(from, fromStride, to, toStride, matrix, full, width, height)
	case grey16:
		rc = C.pixel_grey16(from, fromStride, to, toStride, C.int(k.bits), matrix, full, width, height)
	case rgb24:
		rc = C.pixel_rgb24(from, fromStride, to, toStride, flag(k.b == 0), width, height)
	case rgb32:
		C.pixel_rgb32(from, fromStride, to, toStride, C.int(k.r), C.int(k.g), C.int(k.b), width, height)
	}
	if rc != 0 {
		return fmt.Errorf("cannot convert %v of %dx%d: libyuv says %d", f.FourCC, f.Width, f.Height, rc)
	}
	return nil
}

// jpegToRGBA decodes a JPEG frame straight into dst.
func (c *Converter) jpegToRGBA(dst []byte, stride int, src []byte) error {
	if err := c.wholeJPEG(src); err != nil {
		return err
	}
	from, size := (*C.uchar)(bytesOf(src)), C.ulong(len(src))
	if C.tjDecompressHeader3(c.turbo, from, size, &c.width, &c.height, &c.subsampling, &c.colours) != 0 &&
		C.tjGetErrorCode(c.turbo) != C.TJERR_WARNING {
		return c.jpegError()
	}
	// Before decoding: tjDecompress2 scales, it does not refuse.
	if int(c.width) != c.format.Width || int(c.height) != c.format.Height {
		return fmt.Errorf("%w: a JPEG of %dx%d in a stream of %dx%d", ErrDamaged, c.width, c.height, c.format.Width, c.format.Height)
	}
	// Warnings are about bytes between the markers, which cameras put there.
	if C.tjDecompress2(c.turbo, from, size, (*C.uchar)(bytesOf(dst)), c.width, C.int(stride), c.height, C.TJPF_RGBA, 0) != 0 &&
		C.tjGetErrorCode(c.turbo) != C.TJERR_WARNING {
		return c.jpegError()
	}
	return nil
}

func (c *Converter) jpegError() error {
	return fmt.Errorf("%w: %s", ErrDamaged, C.GoString(C.tjGetErrorStr2(c.turbo)))
}

func rgbaToYUYV(dst, src []byte, stride, width, height int) {
	C.pixel_to_yuyv(bytesOf(src), C.int(stride), bytesOf(dst), C.int(width), C.int(height))
}
