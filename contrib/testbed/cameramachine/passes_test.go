package cameramachine_test

import (
	"os"
	"os/exec"
	"testing"

	"tatolab.com/tatolab/contrib/testbed/cameramachine"
	"tatolab.com/tatolab/nodes/camera"
	"tatolab.com/tatolab/nodes/camera/cameratest"
	"tatolab.com/tatolab/nodes/host/hosttest"
	"tatolab.com/tatolab/service/control"
)

// However many readers, a frame is gone over once from the driver's buffer to all
// of them, with planes together and apart.
func TestOnePassOverThePixels(t *testing.T) {
	cameramachine.Need(t)
	t.Parallel()
	withPlanes(t)
	for _, path := range []string{device, planes} {
		p := hosttest.Prepare(t, control.Spec{
			Instance: "s/camera#1", Stream: "s", Node: "camera", Type: "tatolab.stream:CameraSource", Outputs: []string{camera.Port},
		}, map[string]any{"device_id": path, "max_width": width, "max_height": height}, os.Args[0], "camera")
		p.Start((*exec.Cmd).Start)
		// Of what vivid has the node takes a format of 12 bits a pixel.
		cameratest.OnePass(p, 3, width*height*3/2)
	}
}
