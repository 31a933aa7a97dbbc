package cameramachine_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"tatolab.com/tatolab/contrib/testbed/cameramachine"
	"tatolab.com/tatolab/datapath"
	"tatolab.com/tatolab/internal/testbed"
	"tatolab.com/tatolab/nodes/camera"
	"tatolab.com/tatolab/nodes/host/hosttest"
	"tatolab.com/tatolab/service/control"
)

// BenchmarkPeers is one true device, a driver's, read by a camera node and by
// other programs one after the other: what each takes of a CPU for a frame. The
// processor is emulated, so only the ratios say something, and little: what is
// work on many pixels at once costs an emulator more than anything else.
func BenchmarkPeers(b *testing.B) {
	if os.Getenv("TATOLAB_CAMERA_MACHINE") == "" {
		b.Skip("there is no camera machine")
	}
	cameramachine.Load(b, "vivid", "n_devs=1", "node_types=0x1", "vid_cap_nr=5")
	size := fmt.Sprintf("%dx%d", width, height)
	ffmpeg := func(output ...string) []string {
		return append([]string{
			"ffmpeg", "-nostdin", "-loglevel", "error", "-f", "v4l2", "-input_format", "yuv420p", "-video_size", size, "-i", device,
		}, append(output, "-f", "null", "-")...)
	}
	for _, peer := range []struct {
		name string
		argv []string
	}{
		{"camera-rgba", nil},
		{"ffmpeg-copy", ffmpeg()},
		{"ffmpeg-rgba", ffmpeg("-pix_fmt", "rgba")},
	} {
		b.Run(peer.name, func(b *testing.B) {
			var pid int
			if peer.argv == nil {
				p := hosttest.Prepare(b, control.Spec{
					Instance: "s/camera#1", Stream: "s", Node: "camera", Type: "tatolab.stream:CameraSource", Outputs: []string{camera.Port},
				}, map[string]any{"device_id": device, "max_width": width, "max_height": height}, os.Args[0], "camera")
				p.Start((*exec.Cmd).Start)
				p.Link(camera.Port, datapath.Newest, datapath.RGBA)
				p.Frame()
				defer p.Stop()
				pid = p.Cmd.Process.Pid
			} else {
				if _, err := exec.LookPath(peer.argv[0]); err != nil {
					b.Skip(err)
				}
				cmd := exec.Command(peer.argv[0], peer.argv[1:]...)
				said := testbed.Capture(cmd)
				if err := cmd.Start(); err != nil {
					b.Fatal(err)
				}
				defer func() {
					cmd.Process.Kill()
					cmd.Wait()
					if out := said.String(); out != "" {
						b.Errorf("%s said: %s", strings.Join(peer.argv, " "), out)
					}
				}()
				pid = cmd.Process.Pid
			}
			time.Sleep(5 * time.Second) // it starts
			const length = 10 * time.Second
			for b.Loop() {
				begun, before := time.Now(), testbed.CPUTime(b, pid)
				time.Sleep(length)
				took, frames := testbed.CPUTime(b, pid)-before, rate*time.Since(begun).Seconds()
				if took == 0 {
					b.Fatalf("%s does nothing", peer.name)
				}
				b.ReportMetric(float64(took.Microseconds())/frames, "µs/frame")
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}
