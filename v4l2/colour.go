package v4l2

import "tatolab.com/tatolab/v4l2/pixel"

// The numbers of linux/videodev2.h.
const (
	colorspace170M    = 1
	colorspace240M    = 2
	colorspace709     = 3
	colorspaceSystemM = 5
	colorspace470BG   = 6
	colorspaceJPEG    = 7
	colorspaceSRGB    = 8
	colorspaceOPRGB   = 9
	colorspace2020    = 10
	colorspaceRaw     = 11
	colorspaceP3      = 12

	encoding601     = 1
	encoding709     = 2
	encodingXV709   = 4
	encoding2020    = 6
	encoding2020CL  = 7
	quantizationAll = 1
	quantizationLim = 2
)

// mode interprets what the driver granted. What it leaves at "default" means
// what V4L2_MAP_YCBCR_ENC_DEFAULT and V4L2_MAP_QUANTIZATION_DEFAULT say.
func (g granted) mode() Mode {
	m := Mode{Format: pixel.Format{FourCC: g.format, Width: g.width, Height: g.height, Strides: g.strides}}
	switch encoding := g.encoding; {
	case encoding == encoding709, encoding == encodingXV709,
		encoding == 0 && (g.colorspace == colorspace709 || g.colorspace == colorspaceP3):
		m.Matrix = pixel.BT709
	case encoding == encoding2020, encoding == encoding2020CL, encoding == 0 && g.colorspace == colorspace2020:
		m.Matrix = pixel.BT2020
	default:
		m.Matrix = pixel.BT601
	}
	// Grey without more is taken for full range, as the kernel's own generator of test
	// pictures and other programs do: sensors without colour count from 0.
	m.FullRange = g.quantization == quantizationAll ||
		g.quantization != quantizationLim && (g.colorspace == colorspaceJPEG || pixel.IsGrey(g.format))
	m.Colour = [4]int{primaries(g.colorspace), transfer(g.transfer, g.colorspace), 0, 1}
	return m
}

// primaries are H.273 table 2.
func primaries(colorspace uint32) int {
	switch colorspace {
	case colorspace170M:
		return 6
	case colorspace240M:
		return 7
	case colorspaceSystemM:
		return 4
	case colorspace470BG:
		return 5
	case colorspace2020:
		return 9
	case colorspaceP3:
		return 12
	case colorspace709, colorspaceSRGB, colorspaceJPEG:
		return 1
	}
	return 2 // unspecified
}

// transfer is H.273 table 3, from V4L2_XFER_FUNC_*.
func transfer(function, colorspace uint32) int {
	switch function {
	case 1:
		return 1
	case 2:
		return 13
	case 4:
		return 7
	case 5:
		return 8
	case 7:
		return 16
	case 0: // V4L2_MAP_XFER_FUNC_DEFAULT
		switch colorspace {
		case colorspaceSRGB, colorspaceJPEG:
			return 13
		case colorspace240M:
			return 7
		case colorspaceRaw:
			return 8
		case colorspace170M, colorspace709, colorspaceSystemM, colorspace470BG, colorspace2020:
			return 1
		}
	}
	return 2
}
