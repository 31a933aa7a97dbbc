// Package cameratest counts how often a camera node goes over its pixels, for the
// tests on scripted cameras and those on true ones.
package cameratest

import (
	"fmt"
	"os"
	"strings"

	"tatolab.com/tatolab/datapath"
	"tatolab.com/tatolab/nodes/host/hosttest"
	"tatolab.com/tatolab/service/control"
)

// port is the node's output.
const port = "video"

// OnePass links readers to a camera node that has none, reads a few pictures, and
// stops the node. However many readers there are, each frame is gone over once
// between the driver's buffer and all of them: it is read once, written once, and
// what was written is the memory that each reader has. frameSize is the bytes of
// a frame, 0 if they differ.
func OnePass(p *hosttest.Process, readers, frameSize int) {
	p.Helper()
	for range readers {
		p.Link(port, datapath.Ordered, datapath.RGBA)
	}
	// A picture counts once all readers have had it.
	const enough = 8
	seen := map[int64]map[string]bool{} // by timestamp: the places in memory
	had := map[int64]int{}
	size := 0
	for whole := 0; whole < enough; {
		f := p.Frame()
		size = len(f.Pixels)
		if seen[f.Timestamp] == nil {
			seen[f.Timestamp] = map[string]bool{}
		}
		seen[f.Timestamp][memory(p, f.Address)] = true
		if had[f.Timestamp]++; had[f.Timestamp] == readers {
			whole++
			if n := len(seen[f.Timestamp]); n != 1 {
				p.Errorf("%d readers have a picture in %d places: %v", readers, n, seen[f.Timestamp])
			}
		}
	}
	p.Stop()
	sum := p.Await("the sum of frames", func(m *control.Message) bool {
		return m.Kind == control.Log && strings.HasPrefix(m.Message, "frames of the camera, in all")
	}).Fields
	number := func(key string) int {
		n, ok := sum[key].(float64)
		if !ok {
			p.Fatalf("the sum has no %s: %v", key, sum)
		}
		return int(n)
	}
	published := number("published")
	if published < len(seen) || number("frames") < published {
		p.Errorf("%d pictures were read, and the sum says %v", len(seen), sum)
	}
	if got := number("converted"); got != published {
		p.Errorf("%d conversions for %d pictures", got, published)
	}
	if got, want := number("bytes_written"), published*size; got != want {
		p.Errorf("%d bytes were written, %v times %d pictures of %d", got, float64(got)/float64(want), published, size)
	}
	if got, want := number("bytes_read"), published*frameSize; frameSize > 0 && got != want {
		p.Errorf("%d bytes were read, %v times %d frames of %d", got, float64(got)/float64(want), published, frameSize)
	}
}

// memory names the place that an address of this process's is mapped from.
func memory(p *hosttest.Process, address uintptr) string {
	p.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	p.Must(err)
	for line := range strings.Lines(string(maps)) {
		// start-end perms offset device inode path, proc_pid_maps(5)
		var start, end, offset, inode uintptr
		var perms, device string
		if _, err := fmt.Sscanf(line, "%x-%x %s %x %s %d", &start, &end, &perms, &offset, &device, &inode); err == nil && start <= address && address < end {
			return fmt.Sprintf("%s inode %d offset %d", device, inode, offset+address-start)
		}
	}
	p.Fatalf("%x is not mapped", address)
	return ""
}
