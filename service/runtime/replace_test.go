package runtime

import (
	"os"
	"path/filepath"
	"testing"

	"tatolab.com/tatolab/service/project"
)

// A project is the same one by whichever path `run -d` came to it.
func TestReplaces(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	c := &compiled{Compiled: &project.Compiled{Target: "stream.py:watch"}, src: &project.Source{Dir: link}}
	for _, test := range []struct {
		dir, target  string
		broken, want bool
	}{
		{link, "stream.py:watch", false, true},
		{dir, "stream.py:watch", false, true},
		{dir, "stream.py:other", false, false},
		{dir, "", true, true},
		{other, "stream.py:watch", false, false},
		{other, "", true, false},
	} {
		if got := replaces(c, project.Source{Dir: test.dir, Target: test.target}, test.broken); got != test.want {
			t.Errorf("%+v: %v", test, got)
		}
	}
}
