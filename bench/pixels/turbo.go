package main

/*
#cgo CFLAGS: -O3
#cgo LDFLAGS: -lturbojpeg
#include <turbojpeg.h>
*/
import "C"

import (
	"errors"
	"unsafe"
)

// turbo is libjpeg-turbo and nothing else: no look at the header, no check.
type turbo struct{ handle C.tjhandle }

func newTurbo() (turbo, error) {
	h := C.tjInitDecompress()
	if h == nil {
		return turbo{}, errors.New("libjpeg-turbo does not start")
	}
	return turbo{h}, nil
}

// decode decodes a JPEG of that size to RGBA.
func (t turbo) decode(dst, jpeg []byte, width, height int) error {
	if C.tjDecompress2(t.handle, (*C.uchar)(unsafe.Pointer(unsafe.SliceData(jpeg))), C.ulong(len(jpeg)),
		(*C.uchar)(unsafe.Pointer(unsafe.SliceData(dst))), C.int(width), 0, C.int(height), C.TJPF_RGBA, 0) != 0 {
		return errors.New(C.GoString(C.tjGetErrorStr2(t.handle)))
	}
	return nil
}
