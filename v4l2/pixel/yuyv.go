package pixel

// RGBAToYUYV converts a picture to YUYV by BT.601 in limited range, which is what
// programs take YUYV for that says nothing else. The width is even and at most
// MaxWidth; stride is the bytes from one line of src to the next, lines of dst have
// no padding.
func RGBAToYUYV(dst, src []byte, stride, width, height int) {
	if width <= 0 || height <= 0 {
		return
	}
	// C checks no lengths.
	_, _ = dst[2*width*height-1], src[stride*(height-1)+4*width-1]
	rgbaToYUYV(dst, src, stride, width, height)
}

// goRGBAToYUYV is RGBAToYUYV with libyuv's coefficients.
func goRGBAToYUYV(dst, src []byte, stride, width, height int) {
	luma := func(r, g, b int) byte { return byte((66*r + 129*g + 25*b + 0x1080) >> 8) }
	for y := range height {
		from, to := src[y*stride:][:4*width], dst[2*y*width:][:2*width]
		for len(from) >= 8 && len(to) >= 4 {
			r0, g0, b0 := int(from[0]), int(from[1]), int(from[2])
			r1, g1, b1 := int(from[4]), int(from[5]), int(from[6])
			r, g, b := (r0+r1+1)/2, (g0+g1+1)/2, (b0+b1+1)/2
			to[0], to[2] = luma(r0, g0, b0), luma(r1, g1, b1)
			to[1] = byte((112*b - 74*g - 38*r + 0x8080) >> 8)
			to[3] = byte((112*r - 94*g - 18*b + 0x8080) >> 8)
			from, to = from[8:], to[4:]
		}
	}
}
