package spelling

import "testing"

func TestNearest(t *testing.T) {
	known := []string{"start", "stop", "streams", "graph", "rm"}
	for word, want := range map[string]string{
		"strems": "streams", "sotp": "stop", "grpah": "graph", "stap": "stop", "streamss": "streams", "graph": "graph",
		"xyzzy": "", "xx": "", "": "",
	} {
		if got := Nearest(word, known); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", word, got, want)
		}
	}
	if got := Nearest("stop", nil); got != "" {
		t.Errorf("of no words %q is the nearest", got)
	}
}
