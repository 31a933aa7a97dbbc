package camera

import (
	"encoding/json"
	"testing"

	"tatolab.com/tatolab/nodes/host"
	"tatolab.com/tatolab/nodes/host/hosttest"
)

// What the node takes and what a stream may give it are the same.
func TestLimits(t *testing.T) {
	hosttest.Limits(t, "CameraSource", func(raw json.RawMessage) error {
		c := defaults
		if err := host.Decode(raw, &c); err != nil {
			return err
		}
		return c.check()
	})
}
