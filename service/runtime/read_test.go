package runtime

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"

	"tatolab.com/tatolab/datapath"
)

// Whatever a node writes can be shown: one value that JSON has no word for must
// not end a `tatolab read`.
func TestEveryBagIsShown(t *testing.T) {
	bag, err := msgp.AppendMapStrIntf(nil, map[string]any{
		"nan": math.NaN(), "inf": float32(math.Inf(-1)), "half": float32(0.1), "n": 1,
		"nested": []any{map[string]any{"z": math.Inf(1)}}, "c": complex(1, 2),
		"far": time.Unix(1<<40, 0), "raw": []byte{0, 255},
	})
	if err != nil {
		t.Fatal(err)
	}
	decoded, err := decodeBag(bag)
	if err != nil {
		t.Fatal(err)
	}
	line, err := json.Marshal(decoded)
	if err != nil {
		t.Fatal(err)
	}
	// A complex number is an extension of its own only where more follows it.
	for _, want := range []string{`"nan":"NaN"`, `"inf":"-Inf"`, `"half":0.1`, `"n":1`, `"z":"+Inf"`, `"raw":{"$bytes":"AP8="}`} {
		if !strings.Contains(string(line), want) {
			t.Errorf("%s is missing in %s", want, line)
		}
	}
}

// A producer that lies about its picture is told so.
func TestASnapshotOfALie(t *testing.T) {
	frame := func(width, height, offset, stride, size int) *datapath.Frame {
		s := datapath.Packed(1, datapath.RGBA, width, height, 4)
		s.Planes[0] = datapath.Plane{Offset: offset, Stride: stride}
		return &datapath.Frame{Surface: s, Pixels: make([]byte, size)}
	}
	for name, f := range map[string]*datapath.Frame{
		"no width":            frame(0, 2, 0, 8, 16),
		"no height":           frame(2, 0, 0, 8, 16),
		"a row too many":      frame(2, 3, 0, 8, 16),
		"rows that overlap":   frame(2, 2, 0, 4, 16),
		"beyond the end":      frame(2, 2, 8, 8, 16),
		"product overflows":   frame(2, 1<<24+1, 0, 1<<40, 16),
		"row larger than all": frame(1<<30, 1, 0, 1<<32, 16),
	} {
		if _, err := toImage(f); err == nil {
			t.Errorf("%s: was taken for a picture", name)
		}
	}
	if _, err := toImage(frame(2, 2, 1, 12, 21)); err != nil {
		t.Errorf("padded rows, the last one without: %v", err)
	}
}
