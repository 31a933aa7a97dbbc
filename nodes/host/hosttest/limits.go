package hosttest

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"tatolab.com/tatolab/internal/testbed"
)

// Limits holds a node's own check of its configuration to the limits that its
// class in tatolab.stream declares: the ends are taken, what is beyond them is not.
func Limits(t *testing.T, class string, check func(config json.RawMessage) error) {
	t.Helper()
	python := exec.Command("python3", "-c", fmt.Sprintf(`
import json
from tatolab import stream
from tatolab.stream._config import schema
print(json.dumps(schema(stream.%s.__tatolab_node__)))`, class))
	python.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(testbed.Root(), "python/src"))
	out, err := python.Output()
	if err != nil {
		t.Fatalf("cannot read the configuration of %s: %v", class, err)
	}
	type property struct {
		Type             string
		Minimum, Maximum *float64
		Values           *property `json:"additionalProperties"`
	}
	var schema struct{ Properties map[string]property }
	if err := json.Unmarshal(out, &schema); err != nil {
		t.Fatal(err)
	}
	limits := 0
	for key, p := range schema.Properties {
		name, form := key, `{%q: %v}`
		if p.Values != nil {
			p, name, form = *p.Values, key+".x", `{%q: {"x": %v}}`
		}
		if p.Minimum == nil {
			continue
		}
		limits++
		step := 1.0
		if p.Type == "number" {
			step = 1e-6
		}
		for value, good := range map[float64]bool{
			*p.Minimum: true, *p.Minimum - step: false, *p.Maximum: true, *p.Maximum + step: false,
		} {
			number := fmt.Sprint(value)
			if value == math.Trunc(value) {
				number = fmt.Sprintf("%.0f", value)
			}
			if err := check(fmt.Appendf(nil, form, key, number)); (err == nil) != good {
				t.Errorf("%s with %s = %s: the class takes it: %v; the node says: %v", class, name, number, good, err)
			}
		}
	}
	if limits == 0 {
		t.Errorf("%s declares no limits: %s", class, out)
	}
}
