package e2e

import (
	"os/exec"
	"testing"
	"time"

	"tatolab.com/tatolab/contrib/testbed/fakecamera"
	"tatolab.com/tatolab/internal/testbed"
)

// BenchmarkPeers is the camera of BenchmarkCamera, read by other programs: what
// they take of a CPU for each of its 30 frames a second. Those that are not
// installed are left out. What each does with a frame is said in
// docs/benchmarks.md.
func BenchmarkPeers(b *testing.B) {
	const device, sink = "/dev/video0", "tatolab-bench.raw"
	ffmpeg := func(format string, output ...string) []string {
		return append([]string{
			"ffmpeg", "-nostdin", "-loglevel", "error", "-f", "v4l2", "-input_format", format, "-video_size", "1280x720", "-framerate", "30", "-i", device,
		}, append(output, "-f", "null", "-")...)
	}
	for _, peer := range []struct {
		name   string
		format string // of the camera
		argv   []string
		reader []string // another process, which takes what the first one offers
	}{
		{"ffmpeg-yuyv", "YUYV", ffmpeg("yuyv422"), nil},
		{"ffmpeg-rgba", "YUYV", ffmpeg("yuyv422", "-pix_fmt", "rgba"), nil},
		{"ffmpeg-mjpeg-rgba", "MJPG", ffmpeg("mjpeg", "-pix_fmt", "rgba"), nil},
		{"ustreamer-yuyv", "YUYV", []string{
			"ustreamer", "--device", device, "--format", "YUYV", "--resolution", "1280x720", "--desired-fps", "30", "--encoder", "NOOP",
			"--raw-sink", sink, "--raw-sink-rm", "--unix", b.TempDir() + "/http", "--log-level", "0",
		}, []string{"ustreamer-dump", "--sink", sink, "--output", "/dev/null"}},
	} {
		b.Run(peer.name, func(b *testing.B) {
			for _, argv := range [][]string{peer.argv, peer.reader} {
				if argv == nil {
					continue
				}
				if _, err := exec.LookPath(argv[0]); err != nil {
					b.Skip(err)
				}
			}
			cmd := exec.Command(peer.argv[0], peer.argv[1:]...)
			said := testbed.Capture(cmd)
			bed, err := fakecamera.Start(cmd, fakecamera.Script{Cameras: []fakecamera.Camera{fakecamera.Webcam(device, peer.format, 1280, 720, 30)}})
			if err != nil {
				b.Fatal(err)
			}
			defer bed.Close()
			defer func() { cmd.Process.Kill(); cmd.Wait() }()
			time.Sleep(2 * time.Second)
			if peer.reader != nil {
				reader := exec.Command(peer.reader[0], peer.reader[1:]...)
				if err := reader.Start(); err != nil {
					b.Fatal(err)
				}
				defer func() { reader.Process.Kill(); reader.Wait() }()
				time.Sleep(time.Second)
			}
			for b.Loop() {
				begun, before := time.Now(), testbed.CPUTime(b, cmd.Process.Pid)
				time.Sleep(benchedFor)
				took, frames := testbed.CPUTime(b, cmd.Process.Pid)-before, 30*time.Since(begun).Seconds()
				if took < benchedFor/2000 {
					b.Fatalf("%s does next to nothing; it said:\n%s", peer.name, said)
				}
				b.ReportMetric(float64(took.Microseconds())/frames, "µs/frame")
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}
