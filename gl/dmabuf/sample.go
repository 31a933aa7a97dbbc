package dmabuf

import (
	"fmt"

	"github.com/go-gl/gl/v3.3-core/gl"

	"tatolab.com/tatolab/gl/shader"
)

// sampleSide is the sample's width and height: odd, so that a driver pads its
// rows, and larger than a tile.
const sampleSide = 67

// sample makes a picture in which no two pixels are equal.
const sample = `
out vec4 color;
void main() {
	ivec2 at = ivec2(gl_FragCoord.xy);
	color = vec4(3 * at.x, 3 * at.y, at.x ^ at.y, 255 - at.x) / 255.0;
}
`

// Sample makes a texture that can be exported and shows what IsSample looks for.
func (d *Device) Sample() (*shader.Texture, error) {
	t, err := d.NewTexture(sampleSide, sampleSide)
	if err != nil {
		return nil, err
	}
	program, err := shader.New(sample)
	if err != nil {
		t.Delete()
		return nil, err
	}
	defer program.Delete()
	err = attached(t, func() {
		gl.Viewport(0, 0, sampleSide, sampleSide)
		program.Use()
		program.Draw()
		gl.Finish()
	})
	if err != nil {
		t.Delete()
		return nil, fmt.Errorf("cannot draw to a shared picture: %w", err)
	}
	return t, nil
}

// IsSample returns an error if t does not show what Sample drew.
func IsSample(t *shader.Texture) error {
	if t.Width != sampleSide || t.Height != sampleSide {
		return fmt.Errorf("a shared picture is %d×%d, not %d×%d", t.Width, t.Height, sampleSide, sampleSide)
	}
	pixels := make([]byte, 4*sampleSide*sampleSide)
	err := attached(t, func() {
		gl.PixelStorei(gl.PACK_ALIGNMENT, 1)
		gl.PixelStorei(gl.PACK_ROW_LENGTH, 0)
		gl.ReadPixels(0, 0, sampleSide, sampleSide, gl.RGBA, gl.UNSIGNED_BYTE, gl.Ptr(pixels))
	})
	if err != nil {
		return fmt.Errorf("cannot look at a shared picture: %w", err)
	}
	for i := range pixels {
		x, y := i/4%sampleSide, i/4/sampleSide
		if want := [4]int{3 * x, 3 * y, x ^ y, 255 - x}[i%4]; int(pixels[i]) != want {
			return fmt.Errorf("a shared picture shows other pixels than were drawn: %d for %d at (%d,%d)", pixels[i], want, x, y)
		}
	}
	return nil
}

// attached calls do while drawing goes to t, and reading comes from it.
func attached(t *shader.Texture, do func()) error {
	var before int32
	gl.GetIntegerv(gl.FRAMEBUFFER_BINDING, &before)
	defer func() { gl.BindFramebuffer(gl.FRAMEBUFFER, uint32(before)) }()
	var framebuffer uint32
	gl.GenFramebuffers(1, &framebuffer)
	defer gl.DeleteFramebuffers(1, &framebuffer)
	gl.BindFramebuffer(gl.FRAMEBUFFER, framebuffer)
	gl.FramebufferTexture2D(gl.FRAMEBUFFER, gl.COLOR_ATTACHMENT0, gl.TEXTURE_2D, t.ID, 0)
	if status := gl.CheckFramebufferStatus(gl.FRAMEBUFFER); status != gl.FRAMEBUFFER_COMPLETE {
		return fmt.Errorf("framebuffer status 0x%x", status)
	}
	do()
	return shader.Check()
}

// Probe finds out whether pictures can be shared with another process that has
// the same device, by doing it: one is drawn, exported, imported, and compared.
// NewTexture needs it to have succeeded. The current context is of d.
func (d *Device) Probe() (err error) {
	if d.modifiers, err = drawable(); err != nil {
		return fmt.Errorf("cannot share pictures: %w", err)
	}
	drawn, err := d.Sample()
	if err != nil {
		return err
	}
	defer drawn.Delete()
	memory, l, err := Export(drawn)
	if err != nil {
		return err
	}
	defer memory.Close()
	seen, err := Import(memory, l)
	if err != nil {
		return err
	}
	defer seen.Delete()
	return IsSample(seen)
}
