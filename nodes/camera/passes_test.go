package camera

import (
	"testing"

	"tatolab.com/tatolab/contrib/testbed/fakecamera"
	"tatolab.com/tatolab/nodes/camera/cameratest"
)

// Four readers cost what one does: one pass over the pixels of each frame, from
// the driver's buffer into the memory that all of them have.
func TestOnePassOverThePixels(t *testing.T) {
	for format, size := range map[string]int{"YUYV": 2 * 320 * 180, "NM12": 320 * 180 * 3 / 2, "MJPG": 0} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			camera := fakecamera.Webcam(path, format, 320, 180, 30)
			camera.Multiplanar = format == "NM12"
			r := start(t, one(camera), nil)
			cameratest.OnePass(r.Process, 4, size)
		})
	}
}
