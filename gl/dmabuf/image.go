package dmabuf

/*
#cgo pkg-config: egl
#include <EGL/egl.h>
#include <EGL/eglext.h>
#include <stdint.h>
#include <string.h>

static PFNEGLCREATEIMAGEKHRPROC create_image;
static PFNEGLDESTROYIMAGEKHRPROC destroy_image;
static PFNEGLQUERYDMABUFMODIFIERSEXTPROC query_modifiers;
static void (*image_target)(unsigned int target, EGLImageKHR image);

static int has(const char *list, const char *name) {
	size_t length = strlen(name);
	for (const char *at = list; at && (at = strstr(at, name)); at += length)
		if ((at == list || at[-1] == ' ') && (at[length] == ' ' || !at[length]))
			return 1;
	return 0;
}

// can_import returns NULL, or what the display lacks; *modifiers tells whether
// it takes them.
static const char *can_import(EGLDisplay display, int *modifiers) {
	const char *list = eglQueryString(display, EGL_EXTENSIONS);
	*modifiers = has(list, "EGL_EXT_image_dma_buf_import_modifiers");
	if (!has(list, "EGL_EXT_image_dma_buf_import"))
		return "EGL_EXT_image_dma_buf_import";
	create_image = (PFNEGLCREATEIMAGEKHRPROC)eglGetProcAddress("eglCreateImageKHR");
	destroy_image = (PFNEGLDESTROYIMAGEKHRPROC)eglGetProcAddress("eglDestroyImageKHR");
	query_modifiers = (PFNEGLQUERYDMABUFMODIFIERSEXTPROC)eglGetProcAddress("eglQueryDmaBufModifiersEXT");
	*(void **)&image_target = (void *)eglGetProcAddress("glEGLImageTargetTexture2DOES");
	if (!create_image || !destroy_image)
		return "EGL_KHR_image_base";
	if (!image_target)
		return "GL_OES_EGL_image";
	if (!query_modifiers)
		*modifiers = 0;
	return NULL;
}

static EGLImageKHR import_image(EGLDisplay display, const EGLint *attributes) {
	return create_image(display, EGL_NO_CONTEXT, EGL_LINUX_DMA_BUF_EXT, NULL, attributes);
}
static void drop_image(EGLDisplay display, EGLImageKHR image) { destroy_image(display, image); }
static void target_texture(EGLImageKHR image) { image_target(0x0DE1, image); } // GL_TEXTURE_2D

static EGLint modifiers_of(EGLDisplay display, EGLint format, EGLint max, uint64_t *modifiers, EGLBoolean *external_only) {
	EGLint count = 0;
	return query_modifiers(display, format, max, (EGLuint64KHR *)modifiers, external_only, &count) ? count : 0;
}
*/
import "C"

import (
	"errors"
	"fmt"
	"io"
	"os"

	"tatolab.com/tatolab/gl/shader"
)

// image is an EGLImage.
type image struct {
	display C.EGLDisplay
	image   C.EGLImageKHR
}

func (i image) destroy() { C.drop_image(i.display, i.image) }

// current returns the display of the current context, if that can import.
func current() (display C.EGLDisplay, modifiers bool, err error) {
	if display = C.eglGetCurrentDisplay(); display == 0 {
		return 0, false, errors.New("there is no context of EGL")
	}
	var takes C.int
	if missing := C.can_import(display, &takes); missing != nil {
		return 0, false, fmt.Errorf("the driver has no %s", C.GoString(missing))
	}
	return display, takes != 0, nil
}

// drawable returns the modifiers that the current context can draw to.
func drawable() ([]uint64, error) {
	display, takes, err := current()
	if err != nil || !takes {
		return nil, err
	}
	const most = 64 // i915 has 14, amdgpu up to 50
	var all [most]C.uint64_t
	var external [most]C.EGLBoolean
	var modifiers []uint64
	for i := range min(most, int(C.modifiers_of(display, format, most, &all[0], &external[0]))) {
		if external[i] == 0 {
			modifiers = append(modifiers, uint64(all[i]))
		}
	}
	return modifiers, nil
}

// check says why a picture cannot lie so in memory of that size. Software
// renderers believe what they are told.
func (l Layout) check(size int64) error {
	if n := len(l.Planes); n < 1 || n > maxPlanes {
		return fmt.Errorf("a picture of %d planes", n)
	}
	for _, p := range l.Planes {
		if p.Offset < 0 || p.Stride < 1 || int64(p.Offset) >= size || int64(p.Stride) > size-int64(p.Offset) {
			return fmt.Errorf("rows of %d bytes from %d do not lie within %d bytes", p.Stride, p.Offset, size)
		}
	}
	if l.Modifier == linear || l.Modifier == unknown {
		return shader.Fits(int(size)-l.Planes[0].Offset, l.Planes[0].Stride, l.Width, l.Height)
	}
	if l.Width < 1 || l.Height < 1 {
		return fmt.Errorf("a picture of %d×%d has no pixels", l.Width, l.Height)
	}
	return nil
}

// newImage makes an image of the memory behind fd, which it does not keep.
func newImage(fd int, l Layout) (image, error) {
	display, takes, err := current()
	if err != nil {
		return image{}, err
	}
	attributes := []C.EGLint{
		C.EGL_WIDTH, C.EGLint(l.Width), C.EGL_HEIGHT, C.EGLint(l.Height), C.EGL_LINUX_DRM_FOURCC_EXT, format,
	}
	// The names of one plane's fd, offset, stride, and modifier.
	for i, names := range [maxPlanes][5]C.EGLint{
		{C.EGL_DMA_BUF_PLANE0_FD_EXT, C.EGL_DMA_BUF_PLANE0_OFFSET_EXT, C.EGL_DMA_BUF_PLANE0_PITCH_EXT, C.EGL_DMA_BUF_PLANE0_MODIFIER_LO_EXT, C.EGL_DMA_BUF_PLANE0_MODIFIER_HI_EXT},
		{C.EGL_DMA_BUF_PLANE1_FD_EXT, C.EGL_DMA_BUF_PLANE1_OFFSET_EXT, C.EGL_DMA_BUF_PLANE1_PITCH_EXT, C.EGL_DMA_BUF_PLANE1_MODIFIER_LO_EXT, C.EGL_DMA_BUF_PLANE1_MODIFIER_HI_EXT},
		{C.EGL_DMA_BUF_PLANE2_FD_EXT, C.EGL_DMA_BUF_PLANE2_OFFSET_EXT, C.EGL_DMA_BUF_PLANE2_PITCH_EXT, C.EGL_DMA_BUF_PLANE2_MODIFIER_LO_EXT, C.EGL_DMA_BUF_PLANE2_MODIFIER_HI_EXT},
		{C.EGL_DMA_BUF_PLANE3_FD_EXT, C.EGL_DMA_BUF_PLANE3_OFFSET_EXT, C.EGL_DMA_BUF_PLANE3_PITCH_EXT, C.EGL_DMA_BUF_PLANE3_MODIFIER_LO_EXT, C.EGL_DMA_BUF_PLANE3_MODIFIER_HI_EXT},
	} {
		if i == len(l.Planes) {
			break
		}
		p := l.Planes[i]
		attributes = append(attributes, names[0], C.EGLint(fd), names[1], C.EGLint(p.Offset), names[2], C.EGLint(p.Stride))
		if l.Modifier != unknown {
			if !takes {
				return image{}, fmt.Errorf("the driver takes no modifiers, and the pixels lie as 0x%x says", l.Modifier)
			}
			attributes = append(attributes, names[3], C.EGLint(int32(l.Modifier)), names[4], C.EGLint(int32(l.Modifier>>32)))
		}
	}
	attributes = append(attributes, C.EGL_NONE)
	made := C.import_image(display, &attributes[0])
	if made == nil {
		return image{}, fmt.Errorf("eglCreateImage: %s", eglError())
	}
	return image{display, made}, nil
}

// texture makes a texture of the image; b goes with it, now or later.
func (b *backing) texture() (*shader.Texture, error) {
	t, err := shader.NewTexture(0, 0) // without memory of its own
	if err != nil {
		b.Close()
		return nil, err
	}
	t.Width, t.Height, t.Backing = b.Width, b.Height, b
	C.target_texture(b.image.image)
	if err := shader.Check(); err != nil {
		t.Delete()
		return nil, err
	}
	return t, nil
}

// Import makes a texture of memory that another process, or this one, exported.
// memory may be closed after. What is drawn there shows here at once: who draws
// says when it has ended (gl.Finish), and who looks when it has.
func Import(memory *os.File, l Layout) (*shader.Texture, error) {
	size, err := memory.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, fmt.Errorf("cannot use a shared picture: it is no DMA-BUF: %w", err)
	}
	if err := l.check(size); err != nil {
		return nil, fmt.Errorf("cannot use a shared picture: %w", err)
	}
	made, err := newImage(int(memory.Fd()), l)
	if err != nil {
		return nil, fmt.Errorf("cannot use a shared picture of %d×%d: %w", l.Width, l.Height, err)
	}
	t, err := (&backing{image: made, layout: l}).texture()
	if err != nil {
		return nil, fmt.Errorf("cannot use a shared picture of %d×%d: %w", l.Width, l.Height, err)
	}
	return t, nil
}

func eglError() string {
	code := int(C.eglGetError())
	name, ok := map[int]string{
		C.EGL_BAD_ALLOC: "bad alloc", C.EGL_BAD_ATTRIBUTE: "bad attribute", C.EGL_BAD_MATCH: "bad match",
		C.EGL_BAD_PARAMETER: "bad parameter", C.EGL_BAD_ACCESS: "bad access", C.EGL_BAD_DISPLAY: "bad display",
	}[code]
	if !ok {
		return fmt.Sprintf("EGL error 0x%x", code)
	}
	return name
}
