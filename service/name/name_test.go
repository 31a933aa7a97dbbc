package name

import (
	"encoding/json"
	"os"
	"testing"
)

// The vectors are the Python package's too.
func TestCast(t *testing.T) {
	data, err := os.ReadFile("testdata/cast.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors struct {
		Cast    [][2]string
		Refused []string
	}
	if err := json.Unmarshal(data, &vectors); err != nil {
		t.Fatal(err)
	}
	if len(vectors.Cast) == 0 || len(vectors.Refused) == 0 {
		t.Fatal("no vectors")
	}
	for _, v := range vectors.Cast {
		raw, want := v[0], v[1]
		got, err := Cast(raw)
		if err != nil || got != want {
			t.Errorf("Cast(%q) = %q, %v; want %q", raw, got, err, want)
		}
		if again, err := Cast(got); err != nil || again != got {
			t.Errorf("Cast is not idempotent on %q: %q, %v", got, again, err)
		}
	}
	for _, raw := range vectors.Refused {
		if got, err := Cast(raw); err == nil {
			t.Errorf("Cast(%q) = %q, want an error", raw, got)
		}
	}
}
