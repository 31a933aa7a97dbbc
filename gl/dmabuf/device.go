// Package dmabuf shares pictures between processes where they lie: in memory of
// a DRM device, which crosses a socket as a descriptor (a DMA-BUF) and becomes a
// texture on the other side.
//
// The one side opens a [Device] and makes textures on it, whose memory Export
// names; the other has nothing but a context of EGL, and calls Import. All of it
// runs on the thread of that context.
package dmabuf

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>

// libgbm is loaded when it is wanted: machines without it share nothing, and
// have everything else. What is declared here has been in it since Mesa 17.1
// (gbm.h).
struct gbm_device;
struct gbm_bo;
union gbm_bo_handle {
	void *ptr;
	uint64_t u64;
};

static struct {
	struct gbm_device *(*create_device)(int);
	void (*device_destroy)(struct gbm_device *);
	struct gbm_bo *(*bo_create)(struct gbm_device *, uint32_t, uint32_t, uint32_t, uint32_t);
	struct gbm_bo *(*bo_create_with_modifiers)(struct gbm_device *, uint32_t, uint32_t, uint32_t, const uint64_t *, unsigned int);
	void (*bo_destroy)(struct gbm_bo *);
	int (*bo_get_fd)(struct gbm_bo *);
	int (*bo_get_plane_count)(struct gbm_bo *);
	uint32_t (*bo_get_stride_for_plane)(struct gbm_bo *, int);
	uint32_t (*bo_get_offset)(struct gbm_bo *, int);
	union gbm_bo_handle (*bo_get_handle_for_plane)(struct gbm_bo *, int);
	uint64_t (*bo_get_modifier)(struct gbm_bo *);
} gbm;

// load returns NULL, or what is missing.
static const char *load(void) {
	void *library = dlopen("libgbm.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return dlerror();
#define FIND(name) \
	if (!(*(void **)&gbm.name = dlsym(library, "gbm_" #name))) \
		return dlerror();
	FIND(create_device)
	FIND(device_destroy)
	FIND(bo_create)
	FIND(bo_create_with_modifiers)
	FIND(bo_destroy)
	FIND(bo_get_fd)
	FIND(bo_get_plane_count)
	FIND(bo_get_stride_for_plane)
	FIND(bo_get_offset)
	FIND(bo_get_handle_for_plane)
	FIND(bo_get_modifier)
#undef FIND
	return NULL;
}

static struct gbm_device *create_device(int fd) { return gbm.create_device(fd); }
static void device_destroy(struct gbm_device *device) { gbm.device_destroy(device); }

enum { RENDERING = 1 << 2 }; // GBM_BO_USE_RENDERING

static struct gbm_bo *bo_create(struct gbm_device *device, uint32_t width, uint32_t height, uint32_t format,
	const uint64_t *modifiers, unsigned int count) {
	return count ? gbm.bo_create_with_modifiers(device, width, height, format, modifiers, count)
		     : gbm.bo_create(device, width, height, format, RENDERING);
}
static void bo_destroy(struct gbm_bo *bo) { gbm.bo_destroy(bo); }
static int bo_get_fd(struct gbm_bo *bo) { return gbm.bo_get_fd(bo); }
static int bo_get_plane_count(struct gbm_bo *bo) { return gbm.bo_get_plane_count(bo); }
static uint32_t bo_get_stride(struct gbm_bo *bo, int plane) { return gbm.bo_get_stride_for_plane(bo, plane); }
static uint32_t bo_get_offset(struct gbm_bo *bo, int plane) { return gbm.bo_get_offset(bo, plane); }
static uint64_t bo_get_handle(struct gbm_bo *bo, int plane) { return gbm.bo_get_handle_for_plane(bo, plane).u64; }
static uint64_t bo_get_modifier(struct gbm_bo *bo) { return gbm.bo_get_modifier(bo); }
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/gl/shader"
)

// format is DRM_FORMAT_ABGR8888, `AB24`: bytes R, G, B, A in memory
// (drm_fourcc.h).
const format = 'A' | 'B'<<8 | '2'<<16 | '4'<<24

// unknown is DRM_FORMAT_MOD_INVALID: how the pixels lie is known to the driver
// alone, on both sides; linear is row after row.
const (
	unknown uint64 = 1<<56 - 1
	linear  uint64 = 0
)

// maxPlanes is what DRM allows a picture.
const maxPlanes = 4

// Variable, of the environment, names the device to share pictures on: a path
// below /dev/dri, or None to share none. Without it one is looked for.
const (
	Variable = "TATOLAB_DRM_DEVICE"
	None     = "none"
)

// A Layout says how a picture of eight-bit RGBA lies in memory.
type Layout struct {
	Width    int     `json:"width"`
	Height   int     `json:"height"`
	Modifier uint64  `json:"modifier"`
	Planes   []Plane `json:"planes"` // all in the same memory; those after the first are the driver's own (compression)
}

// A Plane is where a part of a picture begins, and how far its rows lie apart,
// in bytes.
type Plane struct {
	Offset int `json:"offset"`
	Stride int `json:"stride"`
}

// A Device is a DRM device to have memory of.
type Device struct {
	file   *os.File
	device *C.struct_gbm_device
	// modifiers are what the driver can draw to, none where it is not said.
	modifiers []uint64
}

var load = sync.OnceValue(func() error {
	if what := C.load(); what != nil {
		return errors.New(C.GoString(what))
	}
	return nil
})

// Open opens the device node at path.
func Open(path string) (*Device, error) {
	if err := load(); err != nil {
		return nil, fmt.Errorf("cannot open %s: %w", path, err)
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	device, err := C.create_device(C.int(file.Fd()))
	if device == nil {
		file.Close()
		return nil, fmt.Errorf("cannot open %s: libgbm: %w", path, err)
	}
	return &Device{file: file, device: device}, nil
}

// Native is the device as EGL_PLATFORM_GBM takes it.
func (d *Device) Native() unsafe.Pointer { return unsafe.Pointer(d.device) }

// Close closes the device, after everything of it.
func (d *Device) Close() {
	C.device_destroy(d.device)
	d.file.Close()
}

// backing is the memory of a texture.
type backing struct {
	image image
	bo    *C.struct_gbm_bo // nil if it was imported
	layout
}

type layout = Layout

// Close is called when the texture is gone.
func (b *backing) Close() error {
	b.image.destroy()
	if b.bo != nil {
		C.bo_destroy(b.bo)
	}
	return nil
}

// NewTexture makes a texture whose memory can be exported; what it shows is
// undefined. d is the device of the current context.
func (d *Device) NewTexture(width, height int) (*shader.Texture, error) {
	t, err := d.newTexture(width, height)
	if err != nil {
		return nil, fmt.Errorf("cannot make a picture of %d×%d that can be shared: %w", width, height, err)
	}
	return t, nil
}

func (d *Device) newTexture(width, height int) (*shader.Texture, error) {
	b := &backing{layout: Layout{Width: width, Height: height}}
	// How the pixels lie is first left to the driver as far as both sides can
	// name it, then altogether.
	if err := b.allocate(d, d.modifiers); err != nil {
		if err := b.allocate(d, nil); err != nil {
			return nil, err
		}
	}
	memory, err := b.export()
	if err != nil {
		C.bo_destroy(b.bo)
		return nil, err
	}
	defer memory.Close()
	if b.image, err = newImage(int(memory.Fd()), b.layout); err != nil {
		C.bo_destroy(b.bo)
		return nil, err
	}
	return b.texture()
}

func (b *backing) allocate(d *Device, modifiers []uint64) error {
	bo, err := C.bo_create(d.device, C.uint32_t(b.Width), C.uint32_t(b.Height), format,
		(*C.uint64_t)(unsafe.SliceData(modifiers)), C.uint(len(modifiers)))
	if bo == nil {
		return fmt.Errorf("libgbm: %w", err)
	}
	b.Modifier, b.Planes = uint64(C.bo_get_modifier(bo)), nil
	n := C.bo_get_plane_count(bo)
	if n < 1 || n > maxPlanes {
		C.bo_destroy(bo)
		return fmt.Errorf("libgbm made a picture of %d planes", n)
	}
	for plane := range n {
		if C.bo_get_handle(bo, plane) != C.bo_get_handle(bo, 0) {
			C.bo_destroy(bo)
			return errors.New("its planes lie in different memory")
		}
		b.Planes = append(b.Planes, Plane{int(C.bo_get_offset(bo, plane)), int(C.bo_get_stride(bo, plane))})
	}
	b.bo = bo
	return nil
}

func (b *backing) export() (*os.File, error) {
	if b.bo == nil {
		return nil, errors.New("it is another process's")
	}
	fd, err := C.bo_get_fd(b.bo)
	if fd < 0 {
		return nil, fmt.Errorf("libgbm names no descriptor: %w", err)
	}
	unix.CloseOnExec(int(fd))
	return os.NewFile(uintptr(fd), "dma-buf"), nil
}

// Export returns a new descriptor of the memory of t, which is one of
// NewTexture's, and how the picture lies there.
func Export(t *shader.Texture) (*os.File, Layout, error) {
	b, ok := t.Backing.(*backing)
	if !ok {
		return nil, Layout{}, errors.New("cannot share a picture: its memory is OpenGL's own")
	}
	file, err := b.export()
	if err != nil {
		return nil, Layout{}, fmt.Errorf("cannot share a picture: %w", err)
	}
	return file, b.layout, nil
}
