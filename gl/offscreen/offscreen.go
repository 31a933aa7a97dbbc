// Package offscreen makes an OpenGL context without a display, by EGL: on a
// GPU's render node where there is one, else on Mesa's software renderer.
//
// Where libgbm and the driver allow, the context is opened on a device whose
// memory other processes can be given (package dmabuf). The order, and how to
// choose, is in docs/pictures.md.
package offscreen

/*
#cgo pkg-config: egl
#include <stdlib.h>
#include <EGL/egl.h>
#include <EGL/eglext.h>

#ifndef EGL_PLATFORM_SURFACELESS_MESA
#define EGL_PLATFORM_SURFACELESS_MESA 0x31DD
#endif

// open_context makes a context current on the calling thread, on a device of
// libgbm's or, without one, wherever EGL likes to. It returns NULL, or what
// failed. error is the EGL error then.
static const char *open_context(void *gbm, EGLDisplay *display, EGLContext *context, EGLint *error) {
	static const EGLint versions[][2] = {{3, 3}, {3, 1}};
	PFNEGLGETPLATFORMDISPLAYEXTPROC platform_display =
		(PFNEGLGETPLATFORMDISPLAYEXTPROC)eglGetProcAddress("eglGetPlatformDisplayEXT");
	*error = EGL_SUCCESS;
	if (!platform_display)
		return "eglGetPlatformDisplayEXT is missing";
	*display = gbm ? platform_display(EGL_PLATFORM_GBM_KHR, gbm, NULL)
		       : platform_display(EGL_PLATFORM_SURFACELESS_MESA, EGL_DEFAULT_DISPLAY, NULL);
	if (*display == EGL_NO_DISPLAY) {
		*error = eglGetError();
		return gbm ? "there is no EGL platform for libgbm" : "there is no surfaceless EGL platform";
	}
	const char *what = "eglInitialize";
	if (!eglInitialize(*display, NULL, NULL)) {
		*error = eglGetError();
		return what;
	}
	what = "EGL offers no desktop OpenGL";
	if (!eglBindAPI(EGL_OPENGL_API))
		goto failed;
	what = "no context of OpenGL 3.1 or newer";
	for (int i = 0; i < 2; i++) {
		const EGLint attributes[] = {
			EGL_CONTEXT_MAJOR_VERSION, versions[i][0],
			EGL_CONTEXT_MINOR_VERSION, versions[i][1],
			EGL_NONE,
		};
		*context = eglCreateContext(*display, EGL_NO_CONFIG_KHR, EGL_NO_CONTEXT, attributes);
		if (*context == EGL_NO_CONTEXT)
			continue;
		if (eglMakeCurrent(*display, EGL_NO_SURFACE, EGL_NO_SURFACE, *context))
			return NULL;
		what = "eglMakeCurrent";
		break;
	}
failed:
	*error = eglGetError();
	eglTerminate(*display); // and the context
	return what;
}

static void close_context(EGLDisplay display, EGLContext context) {
	eglMakeCurrent(display, EGL_NO_SURFACE, EGL_NO_SURFACE, EGL_NO_CONTEXT);
	eglDestroyContext(display, context);
	eglTerminate(display);
	eglReleaseThread();
}
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"github.com/go-gl/gl/v3.3-core/gl"

	"tatolab.com/tatolab/gl/dmabuf"
)

// Context is an OpenGL context (3.1 or newer) that is current on one thread.
type Context struct {
	// Device is where pictures can be made that other processes can have too,
	// nil where they cannot, which Unshared explains.
	Device   *dmabuf.Device
	Unshared error

	gbm     *dmabuf.Device // what the context is on, nil if EGL chose
	display C.EGLDisplay
	context C.EGLContext
}

// Open makes a context current on the calling thread and loads OpenGL's
// functions. The caller has locked its goroutine to that thread
// (runtime.LockOSThread) and does all drawing from it.
func Open() (*Context, error) {
	var why []error
	named := os.Getenv(dmabuf.Variable)
	for _, path := range devices(named) {
		c, err := openOn(path, named != "")
		if err == nil {
			return c, nil
		}
		why = append(why, err)
	}
	c, err := open(nil)
	if err != nil {
		return nil, err
	}
	if why == nil {
		why = append(why, errors.New("there is no DRM device to draw on"))
	}
	c.Unshared = errors.Join(why...)
	return c, nil
}

// devices are the device nodes to try, in order: the one that was named, or the
// render nodes, that of the card the machine shows its first screen on before
// the others.
func devices(named string) []string {
	switch named {
	case "":
	case dmabuf.None:
		return nil
	default:
		return []string{named}
	}
	nodes, _ := filepath.Glob("/dev/dri/renderD*")
	first := func(node string) bool {
		v, err := os.ReadFile(filepath.Join("/sys/class/drm", filepath.Base(node), "device/boot_vga"))
		return err == nil && strings.TrimSpace(string(v)) == "1"
	}
	slices.SortStableFunc(nodes, func(a, b string) int {
		switch {
		case first(a) == first(b):
			return 0
		case first(a):
			return -1
		}
		return 1
	})
	return nodes
}

// openOn opens a context on a device. A device that no driver draws on, so that
// the processor would, is for who named it.
func openOn(path string, named bool) (*Context, error) {
	device, err := dmabuf.Open(path)
	if err != nil {
		return nil, err
	}
	c, err := open(device)
	if err != nil {
		device.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if renderer := gl.GoStr(gl.GetString(gl.RENDERER)); !named && software(renderer) {
		c.Close()
		return nil, fmt.Errorf("%s: there is no driver but %s", path, renderer)
	}
	if err := device.Probe(); err != nil {
		c.Unshared = fmt.Errorf("%s: %w", path, err)
	} else {
		c.Device = device
	}
	return c, nil
}

// software tells whether a renderer is one of Mesa's that use the processor.
func software(renderer string) bool {
	return strings.HasPrefix(renderer, "llvmpipe") || strings.HasPrefix(renderer, "softpipe")
}

func open(device *dmabuf.Device) (*Context, error) {
	c := &Context{gbm: device}
	var native unsafe.Pointer
	if device != nil {
		native = device.Native()
	}
	var code C.EGLint
	if what := C.open_context(native, &c.display, &c.context, &code); what != nil {
		return nil, fmt.Errorf("cannot open OpenGL off screen: %s (EGL error 0x%x)", C.GoString(what), int(code))
	}
	err := gl.InitWithProcAddrFunc(func(name string) unsafe.Pointer {
		s := C.CString(name)
		defer C.free(unsafe.Pointer(s))
		return unsafe.Pointer(C.eglGetProcAddress(s))
	})
	if err != nil {
		c.gbm = nil // the caller's still
		c.Close()
		return nil, fmt.Errorf("cannot open OpenGL off screen: %w", err)
	}
	return c, nil
}

// Close ends the context, on its thread, after everything of it.
func (c *Context) Close() {
	C.close_context(c.display, c.context)
	if c.gbm != nil {
		c.gbm.Close()
	}
}
