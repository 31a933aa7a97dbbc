package cli

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestHelpFitsATerminal(t *testing.T) {
	for _, c := range commands() {
		for line := range strings.Lines(help(c)) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 100 {
				t.Errorf("%s --help has a line of %d columns: %s", c.name, n, line)
			}
		}
	}
	if got, want := wrap("a  b\n\nc", 9), "a b\n\nc"; got != want {
		t.Errorf("wrap: %q, want %q", got, want)
	}
}
