//go:build purego || !cgo

package pixel

// decoder is what a Converter keeps between frames: here nothing.
type decoder struct{}

// pure tells tests which of the two this is.
func (*decoder) pure() {}

func (c *Converter) open() error { return nil }

// Close frees what the converter holds.
func (c *Converter) Close() {}

func (c *Converter) rawToRGBA(dst []byte, stride int, src [][]byte) error {
	c.goRawToRGBA(dst, stride, src)
	return nil
}

func (c *Converter) jpegToRGBA(dst []byte, stride int, src []byte) error {
	return c.goJPEGToRGBA(dst, stride, src)
}

func rgbaToYUYV(dst, src []byte, stride, width, height int) {
	goRGBAToYUYV(dst, src, stride, width, height)
}
