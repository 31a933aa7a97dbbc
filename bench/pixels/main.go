// Command pixels measures what it costs to turn a camera's frame of 720p into
// RGBA: each format beside a plain copy of the result, and JPEG beside
// libjpeg-turbo alone. All take turns, frame by frame, each in memory that was
// last touched a while ago, as a camera's is. docs/benchmarks.md has figures.
package main

import (
	"bytes"
	"fmt"
	"image"
	"image/jpeg"
	"math/rand"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"tatolab.com/tatolab/v4l2/pixel"
)

const (
	width, height = 1280, 720
	rounds        = 400
	buffers       = 8 // of each way, taken in turn
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// way is one way to have a picture.
type way struct {
	name, against string
	convert       func(dst, src []byte) error
	src, dst      [buffers][]byte
	took          []time.Duration
}

func run() error {
	picture, err := encode()
	if err != nil {
		return err
	}
	alone, err := newTurbo()
	if err != nil {
		return err
	}
	ways := []*way{
		{name: "copy", against: "copy", convert: func(dst, src []byte) error { copy(dst, src); return nil }},
		{name: "libjpeg-turbo", against: "libjpeg-turbo", convert: func(dst, src []byte) error { return alone.decode(dst, src, width, height) }},
	}
	for _, f := range []struct {
		format  pixel.FourCC
		stride  int
		against string
	}{
		{pixel.YUYV, 2 * width, "copy"}, {pixel.UYVY, 2 * width, "copy"},
		{pixel.NV12, width, "copy"}, {pixel.NV16, width, "copy"}, {pixel.YU12, width, "copy"}, {pixel.GREY, width, "copy"},
		{pixel.RGB3, 3 * width, "copy"}, {pixel.XR24, 4 * width, "copy"}, {pixel.AB24, 4 * width, "copy"},
		{pixel.MJPG, 0, "libjpeg-turbo"},
	} {
		c, err := pixel.NewConverter(pixel.Format{FourCC: f.format, Width: width, Height: height, Strides: [pixel.MaxMemories]int{f.stride}})
		if err != nil {
			return err
		}
		defer c.Close()
		ways = append(ways, &way{name: f.format.String(), against: f.against, convert: func(dst, src []byte) error {
			return c.ToRGBA(dst, 4*width, src)
		}})
	}
	noise := rand.New(rand.NewSource(1))
	for _, w := range ways {
		for i := range buffers {
			w.dst[i] = bytes.Repeat([]byte{1}, 4*width*height)
			w.src[i] = bytes.Clone(picture)
			if w.against == "copy" {
				w.src[i] = make([]byte, 4*width*height) // as much as any format has, or more
				noise.Read(w.src[i])
			}
		}
	}
	for i := range rounds + buffers {
		for _, w := range ways {
			begin := time.Now()
			if err := w.convert(w.dst[i%buffers], w.src[i%buffers]); err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			if took := time.Since(begin); i >= buffers {
				w.took = append(w.took, took)
			}
		}
	}
	median := map[string]float64{}
	for _, w := range ways {
		slices.Sort(w.took)
		median[w.name] = float64(w.took[len(w.took)/2])
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "1280×720 TO RGBA\tMEDIAN µS\tTIMES\tOF")
	for _, w := range ways {
		fmt.Fprintf(table, "%s\t%.0f\t%.2f\t%s\n", w.name, median[w.name]/1e3, median[w.name]/median[w.against], w.against)
	}
	return table.Flush()
}

// encode makes a JPEG as a camera does: soft shapes and some noise, 4:2:0.
func encode() ([]byte, error) {
	m := image.NewYCbCr(image.Rect(0, 0, width, height), image.YCbCrSubsampleRatio420)
	noise := rand.New(rand.NewSource(2))
	for y := range height {
		for x := range width {
			m.Y[m.YOffset(x, y)] = byte((x*x/900+y*y/700)%200 + 20 + noise.Intn(6))
		}
	}
	for i := range m.Cb {
		m.Cb[i], m.Cr[i] = byte(100+i%56), byte(160-i/640%56)
	}
	var b bytes.Buffer
	err := jpeg.Encode(&b, m, &jpeg.Options{Quality: 90})
	return b.Bytes(), err
}
