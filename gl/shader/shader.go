// Package shader compiles GLSL programs that fill what they draw to. It needs
// a context of OpenGL 3.1 or newer that is current on the calling thread.
package shader

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-gl/gl/v3.3-core/gl"
)

// CompileError is a shader or program the driver refuses, with its
// messages. Their lines count from the first line of the text compiled.
type CompileError struct {
	Stage string // vertex, fragment, or link
	Log   string
}

func (e *CompileError) Error() string {
	return fmt.Sprintf("cannot %s: %s", map[string]string{
		"vertex": "compile the vertex shader", "fragment": "compile the fragment shader", "link": "link the program",
	}[e.Stage], e.Log)
}

// cover is a triangle that covers the viewport, made from nothing but the
// number of the vertex; corner runs from (0,0) to (1,1) over the viewport.
const cover = `
out vec2 corner;
void main() {
	corner = vec2((gl_VertexID << 1) & 2, gl_VertexID & 2);
	gl_Position = vec4(corner * 2.0 - 1.0, 0.0, 1.0);
}
`

// Version is the `#version` line for the newest GLSL of the current context.
func Version() string {
	// "4.50" or "1.40 - vendor": digits as in the directive, behind the point.
	text := gl.GoStr(gl.GetString(gl.SHADING_LANGUAGE_VERSION))
	var major, minor int
	if _, err := fmt.Sscanf(text, "%d.%d", &major, &minor); err != nil {
		return "#version 140\n"
	}
	return fmt.Sprintf("#version %d%02d\n", major, minor)
}

// Program is a linked program whose fragment shader runs on every pixel of the
// viewport.
type Program struct {
	id       uint32
	vertices uint32
}

// New compiles fragment, a whole fragment shader without its `#version` line.
// The error is a *CompileError if the text is wrong.
func New(fragment string) (*Program, error) {
	version := Version()
	vs, err := compile("vertex", gl.VERTEX_SHADER, version+cover)
	if err != nil {
		return nil, err
	}
	defer gl.DeleteShader(vs)
	fs, err := compile("fragment", gl.FRAGMENT_SHADER, version+fragment)
	if err != nil {
		return nil, err
	}
	defer gl.DeleteShader(fs)
	id := gl.CreateProgram()
	gl.AttachShader(id, vs)
	gl.AttachShader(id, fs)
	gl.LinkProgram(id)
	var ok, length int32
	gl.GetProgramiv(id, gl.LINK_STATUS, &ok)
	if ok == gl.FALSE {
		gl.GetProgramiv(id, gl.INFO_LOG_LENGTH, &length)
		log := make([]byte, length+1)
		gl.GetProgramInfoLog(id, length, nil, &log[0])
		gl.DeleteProgram(id)
		return nil, &CompileError{"link", clean(log)}
	}
	p := &Program{id: id}
	gl.GenVertexArrays(1, &p.vertices)
	return p, nil
}

func compile(stage string, kind uint32, text string) (uint32, error) {
	id := gl.CreateShader(kind)
	source, free := gl.Strs(text + "\x00")
	defer free()
	gl.ShaderSource(id, 1, source, nil)
	gl.CompileShader(id)
	var ok, length int32
	gl.GetShaderiv(id, gl.COMPILE_STATUS, &ok)
	if ok == gl.TRUE {
		return id, nil
	}
	gl.GetShaderiv(id, gl.INFO_LOG_LENGTH, &length)
	log := make([]byte, length+1)
	gl.GetShaderInfoLog(id, length, nil, &log[0])
	gl.DeleteShader(id)
	return 0, &CompileError{stage, clean(log)}
}

func clean(log []byte) string {
	return strings.TrimSpace(strings.TrimRight(string(log), "\x00"))
}

// Uniform returns where the uniform lies, -1 if the program does not use it.
func (p *Program) Uniform(name string) int32 {
	return gl.GetUniformLocation(p.id, gl.Str(name+"\x00"))
}

// Use makes p the program of what follows.
func (p *Program) Use() { gl.UseProgram(p.id) }

// Draw runs p, which is in use, over the viewport.
func (p *Program) Draw() {
	gl.BindVertexArray(p.vertices)
	gl.DrawArrays(gl.TRIANGLES, 0, 3)
}

// Delete forgets the program.
func (p *Program) Delete() {
	gl.DeleteProgram(p.id)
	gl.DeleteVertexArrays(1, &p.vertices)
}

// Texture is a picture of eight-bit RGBA in OpenGL.
type Texture struct {
	ID            uint32
	Width, Height int
	// Number is one that no other texture of the process has or had; OpenGL
	// uses IDs again.
	Number uint64
	// Backing is what the pixels lie in where that is not memory of OpenGL's
	// own; Delete closes it.
	Backing io.Closer
}

var textures uint64 // so far; of the thread that has the context

// NewTexture makes an empty texture, interpolated and clamped at its edges.
func NewTexture(width, height int) (*Texture, error) {
	textures++
	t := &Texture{Width: width, Height: height, Number: textures}
	gl.GenTextures(1, &t.ID)
	gl.BindTexture(gl.TEXTURE_2D, t.ID)
	gl.TexParameteri(gl.TEXTURE_2D, gl.TEXTURE_MIN_FILTER, gl.LINEAR)
	gl.TexParameteri(gl.TEXTURE_2D, gl.TEXTURE_MAG_FILTER, gl.LINEAR)
	gl.TexParameteri(gl.TEXTURE_2D, gl.TEXTURE_WRAP_S, gl.CLAMP_TO_EDGE)
	gl.TexParameteri(gl.TEXTURE_2D, gl.TEXTURE_WRAP_T, gl.CLAMP_TO_EDGE)
	gl.TexImage2D(gl.TEXTURE_2D, 0, gl.RGBA8, int32(width), int32(height), 0, gl.RGBA, gl.UNSIGNED_BYTE, nil)
	if err := Check(); err != nil {
		t.Delete()
		return nil, fmt.Errorf("cannot make a texture of %d×%d: %w", width, height, err)
	}
	return t, nil
}

// Upload replaces the pixels by those of rows that lie stride bytes apart,
// top row first. pixels holds all of them.
func (t *Texture) Upload(pixels []byte, stride int) error {
	if err := Fits(len(pixels), stride, t.Width, t.Height); err != nil {
		return err
	}
	gl.BindTexture(gl.TEXTURE_2D, t.ID)
	gl.PixelStorei(gl.UNPACK_ALIGNMENT, 1)
	gl.PixelStorei(gl.UNPACK_ROW_LENGTH, int32(stride/4))
	gl.TexSubImage2D(gl.TEXTURE_2D, 0, 0, 0, int32(t.Width), int32(t.Height), gl.RGBA, gl.UNSIGNED_BYTE, gl.Ptr(pixels))
	return Check()
}

// Delete gives the texture's memory back.
func (t *Texture) Delete() {
	gl.DeleteTextures(1, &t.ID)
	if t.Backing != nil {
		t.Backing.Close()
	}
}

// Fits says why a picture of eight-bit RGBA does not lie within size bytes.
func Fits(size, stride, width, height int) error {
	switch {
	case width < 1 || height < 1:
		return fmt.Errorf("a picture of %d×%d has no pixels", width, height)
	case stride < 4*width || stride%4 != 0:
		return fmt.Errorf("rows %d bytes apart cannot hold %d pixels of 4 bytes", stride, width)
	case (size-4*width)/stride < height-1 || size < 4*width:
		return fmt.Errorf("%d×%d pixels in rows of %d bytes do not lie within %d bytes", width, height, stride, size)
	}
	return nil
}

// MaxExtent is the largest width and height of a picture, in pixels.
func MaxExtent() int {
	var n int32
	gl.GetIntegerv(gl.MAX_TEXTURE_SIZE, &n)
	return int(n)
}

// Check returns OpenGL's errors since the last look.
func Check() error {
	var errs []error
	// A lost context may report errors for ever.
	for range 8 {
		code := gl.GetError()
		if code == gl.NO_ERROR {
			break
		}
		name, ok := map[uint32]string{
			gl.INVALID_ENUM: "invalid enum", gl.INVALID_VALUE: "invalid value", gl.INVALID_OPERATION: "invalid operation",
			gl.OUT_OF_MEMORY: "out of memory", gl.INVALID_FRAMEBUFFER_OPERATION: "invalid framebuffer operation",
		}[code]
		if !ok {
			name = fmt.Sprintf("error 0x%x", code)
		}
		errs = append(errs, errors.New("OpenGL: "+name))
	}
	return errors.Join(errs...)
}
