package camera

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"tatolab.com/tatolab/contrib/testbed/fakecamera"
	"tatolab.com/tatolab/nodes/host/hosttest"
	"tatolab.com/tatolab/service/control"
	"tatolab.com/tatolab/v4l2"
)

// The test binary is the camera process too.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "camera":
			os.Exit(Main(os.Args[2:]))
		case "hold":
			hold(os.Args[2], os.Args[3])
			os.Exit(0)
		}
	}
	// Most tests wait, for time-outs that are what they test.
	flag.Parse()
	flag.Set("test.parallel", "6")
	os.Exit(m.Run())
}

// hold is a foreign program that has a camera for as long as there is a file.
func hold(device, file string) {
	camera, err := v4l2.Find(device, nil)
	if err == nil {
		var d *v4l2.Device
		if d, err = v4l2.Open(camera); err == nil {
			_, err = d.Configure(v4l2.Request{MaxWidth: 1920, MaxHeight: 1080})
		}
	}
	if err != nil {
		panic(err)
	}
	fmt.Println("held")
	for err == nil {
		time.Sleep(20 * time.Millisecond)
		_, err = os.Stat(file)
	}
}

// rig is a camera node process under scripted cameras.
type rig struct {
	*hosttest.Process
	bed *fakecamera.Bed
}

// start brings a node up to ready.
func start(t *testing.T, script fakecamera.Script, config map[string]any) *rig {
	t.Helper()
	r := launch(t, script, config)
	r.Tell(&control.Message{Kind: control.Start})
	r.AwaitKind(control.Ready)
	return r
}

// launch brings a node up to loaded.
func launch(t *testing.T, script fakecamera.Script, config map[string]any) *rig {
	t.Helper()
	r := prepare(t, config)
	r.launch(script)
	return r
}

// prepare makes ready what launch starts.
func prepare(t *testing.T, config map[string]any) *rig {
	t.Helper()
	return &rig{Process: hosttest.Prepare(t, control.Spec{
		Instance: "s/camera#1", Stream: "s", Node: "camera", Type: "tatolab.stream:CameraSource", Outputs: []string{Port},
	}, config, os.Args[0], "camera")}
}

func (r *rig) launch(script fakecamera.Script) {
	r.Helper()
	// Registered first, so done last: the process is gone by then.
	r.Cleanup(func() {
		if r.bed != nil {
			r.bed.Close()
		}
	})
	r.Launch(func(cmd *exec.Cmd) (err error) {
		r.bed, err = fakecamera.Start(cmd, script)
		return err
	})
	r.AwaitKind(control.Loaded)
}
