package hotplug

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestWatch(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	create := func(names ...string) {
		t.Helper()
		for _, name := range names {
			if err := os.WriteFile(path(name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	create("video0", "video99")
	told := make(chan [2][]string, 100)
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		ended <- Watch(ctx, dir, func(come, gone []string) { told <- [2][]string{come, gone} })
	}()
	// Until it tells of a change of video99 nothing is watched yet.
	for mode := fs.FileMode(0o600); len(told) == 0; mode++ {
		if err := os.Chmod(path("video99"), mode); err != nil {
			t.Fatal(err)
		}
		time.Sleep(settle / 4)
	}
	// What was done in one go may be told in several.
	var come, gone []string
	expect := func(wantCome, wantGone []string) {
		t.Helper()
		limit := time.After(20 * time.Second)
		for come, gone = nil, nil; ; {
			slices.Sort(come)
			slices.Sort(gone)
			come, gone = slices.Compact(come), slices.Compact(gone)
			if slices.Equal(come, wantCome) && slices.Equal(gone, wantGone) {
				return
			}
			select {
			case news := <-told:
				come = append(come, slices.DeleteFunc(news[0], func(p string) bool { return p == path("video99") })...)
				gone = append(gone, news[1]...)
			case <-limit:
				t.Fatalf("told %v %v, want %v %v", come, gone, wantCome, wantGone)
			}
		}
	}
	create("video1", "video12", "null", "video", "videotape")
	expect([]string{path("video1"), path("video12")}, nil)
	if err := os.Chmod(path("video12"), 0o660); err != nil {
		t.Fatal(err)
	}
	expect([]string{path("video12")}, nil)
	os.Remove(path("null"))
	os.Remove(path("video0"))
	os.Rename(path("video1"), path("video2"))
	expect([]string{path("video2")}, []string{path("video0"), path("video1")})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for len(told) > 0 {
		if more := <-told; !slices.Equal(more[0], []string{path("video99")}) {
			t.Errorf("told more: %s", more)
		}
	}
}

func TestWatchRefuses(t *testing.T) {
	if err := Watch(context.Background(), filepath.Join(t.TempDir(), "absent"), nil); err == nil {
		t.Error("a folder that is not there is watched")
	}
}
