package graphics

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A page that a program cut short is told of with its reason.
func TestWhoWasServedCannotBeRead(t *testing.T) {
	page, err := os.Create(filepath.Join(t.TempDir(), "page"))
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	name, err := (&process{page: page}).served()
	if name != "" || !errors.Is(err, io.EOF) || strings.Contains(err.Error(), "%!") {
		t.Errorf("%q, %v", name, err)
	}
}
