package effect

import (
	"fmt"

	"github.com/go-gl/gl/v3.3-core/gl"

	"tatolab.com/tatolab/gl/dmabuf"
	"tatolab.com/tatolab/gl/shader"
)

// Canvas draws effects from textures into textures, and keeps textures that
// are not used for the next of their size.
type Canvas struct {
	// Device, if set, is where textures are made, so that other processes can
	// have them too.
	Device *dmabuf.Device

	framebuffer uint32
	spare       []*shader.Texture // the latest last
	max         int

	// Counts since the canvas was made.
	Uploads, Draws, Readbacks uint64
}

// maxSpare bounds what is kept for later: a chain of effects at one size
// needs its pictures of one frame, and those of the frame before that are
// still held.
const maxSpare = 8

// NewCanvas makes a canvas on the current context.
func NewCanvas() *Canvas {
	c := &Canvas{max: shader.MaxExtent()}
	gl.GenFramebuffers(1, &c.framebuffer)
	gl.BindFramebuffer(gl.FRAMEBUFFER, c.framebuffer)
	gl.Disable(gl.DITHER)
	return c
}

// Texture returns a texture of that size; what it shows is undefined.
func (c *Canvas) Texture(width, height int) (*shader.Texture, error) {
	if width < 1 || height < 1 || width > c.max || height > c.max {
		return nil, fmt.Errorf("a picture of %d×%d is not possible here: OpenGL takes 1×1 to %d×%d", width, height, c.max, c.max)
	}
	for i, t := range c.spare {
		if t.Width == width && t.Height == height {
			c.spare = append(c.spare[:i], c.spare[i+1:]...)
			return t, nil
		}
	}
	if c.Device != nil {
		// What cannot be shared, for its size, can be drawn all the same.
		if t, err := c.Device.NewTexture(width, height); err == nil {
			return t, nil
		}
	}
	return shader.NewTexture(width, height)
}

// Recycle gives t back.
func (c *Canvas) Recycle(t *shader.Texture) {
	if c.spare = append(c.spare, t); len(c.spare) > maxSpare {
		c.spare[0].Delete()
		c.spare = append(c.spare[:0], c.spare[1:]...)
	}
}

// Upload makes a texture of the pixels, whose rows lie stride bytes apart.
func (c *Canvas) Upload(pixels []byte, stride, width, height int) (*shader.Texture, error) {
	t, err := c.Texture(width, height)
	if err != nil {
		return nil, err
	}
	if err := t.Upload(pixels, stride); err != nil {
		c.Recycle(t)
		return nil, fmt.Errorf("cannot upload a picture: %w", err)
	}
	c.Uploads++
	return t, nil
}

// Apply draws p over source and returns the result, which has its size.
// It starts the drawing and does not wait for its end; Read does. elapsed is
// in seconds.
func (c *Canvas) Apply(p *Program, source *shader.Texture, values Values, elapsed float64) (*shader.Texture, error) {
	result, err := c.Texture(source.Width, source.Height)
	if err != nil {
		return nil, err
	}
	if err := c.draw(p, source, result, values, elapsed); err != nil {
		c.Recycle(result)
		return nil, err
	}
	c.Draws++
	return result, nil
}

// Copy starts to copy t.
func (c *Canvas) Copy(t *shader.Texture) (*shader.Texture, error) {
	to, err := c.Texture(t.Width, t.Height)
	if err != nil {
		return nil, err
	}
	gl.FramebufferTexture2D(gl.FRAMEBUFFER, gl.COLOR_ATTACHMENT0, gl.TEXTURE_2D, t.ID, 0)
	gl.BindTexture(gl.TEXTURE_2D, to.ID)
	gl.CopyTexSubImage2D(gl.TEXTURE_2D, 0, 0, 0, 0, 0, int32(t.Width), int32(t.Height))
	if err := shader.Check(); err != nil {
		c.Recycle(to)
		return nil, fmt.Errorf("cannot copy a picture: %w", err)
	}
	return to, nil
}

func (c *Canvas) draw(p *Program, source, result *shader.Texture, values Values, elapsed float64) error {
	gl.FramebufferTexture2D(gl.FRAMEBUFFER, gl.COLOR_ATTACHMENT0, gl.TEXTURE_2D, result.ID, 0)
	if status := gl.CheckFramebufferStatus(gl.FRAMEBUFFER); status != gl.FRAMEBUFFER_COMPLETE {
		return fmt.Errorf("cannot draw into a picture of %d×%d: framebuffer status 0x%x", result.Width, result.Height, status)
	}
	gl.Viewport(0, 0, int32(result.Width), int32(result.Height))
	p.program.Use()
	gl.Uniform2i(p.extent, int32(source.Width), int32(source.Height))
	gl.Uniform1f(p.elapsed, float32(elapsed))
	if err := p.set(values); err != nil {
		return err
	}
	gl.ActiveTexture(gl.TEXTURE0)
	gl.BindTexture(gl.TEXTURE_2D, source.ID)
	p.program.Draw()
	gl.Flush()
	if err := shader.Check(); err != nil {
		return fmt.Errorf("cannot draw: %w", err)
	}
	return nil
}

// Read waits until t is drawn and writes its pixels into rows that lie stride
// bytes apart, top row first.
func (c *Canvas) Read(t *shader.Texture, into []byte, stride int) error {
	if err := shader.Fits(len(into), stride, t.Width, t.Height); err != nil {
		return err
	}
	gl.FramebufferTexture2D(gl.FRAMEBUFFER, gl.COLOR_ATTACHMENT0, gl.TEXTURE_2D, t.ID, 0)
	gl.PixelStorei(gl.PACK_ALIGNMENT, 1)
	gl.PixelStorei(gl.PACK_ROW_LENGTH, int32(stride/4))
	gl.ReadPixels(0, 0, int32(t.Width), int32(t.Height), gl.RGBA, gl.UNSIGNED_BYTE, gl.Ptr(into))
	if err := shader.Check(); err != nil {
		return fmt.Errorf("cannot read a picture back: %w", err)
	}
	c.Readbacks++
	return nil
}

// Warm draws p once over a small picture, and waits: drivers that compile at
// the first draw do it now. The size is no power of two, as those of cameras
// are not: drivers compile for the difference.
func (c *Canvas) Warm(p *Program) error {
	values := Values{}
	for _, d := range p.dials {
		values[d.Name] = make([]float64, dialTypes[d.Type])
	}
	source, err := c.Texture(6, 6)
	if err != nil {
		return err
	}
	defer c.Recycle(source)
	result, err := c.Texture(6, 6)
	if err != nil {
		return err
	}
	defer c.Recycle(result)
	if err := c.draw(p, source, result, values, 0); err != nil {
		return err
	}
	gl.Finish()
	return shader.Check()
}

// Close gives the canvas's memory back, pictures in use excepted.
func (c *Canvas) Close() {
	for _, t := range c.spare {
		t.Delete()
	}
	c.spare = nil
	gl.DeleteFramebuffers(1, &c.framebuffer)
}

// Delete forgets the program.
func (p *Program) Delete() { p.program.Delete() }
