package node

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"tatolab.com/tatolab/service/api"
)

// Whatever is written and however it is cut up: lines are valid text of
// bounded length, and the same lines.
func FuzzLines(f *testing.F) {
	f.Add([]byte("one\ntwo\r\n\nthr\xc3\xa9\xffe"), uint8(3))
	f.Add([]byte(strings.Repeat("é", maxLine)), uint8(7))
	f.Add([]byte("10%\r20%\r\n"), uint8(1))
	f.Fuzz(func(t *testing.T, data []byte, step uint8) {
		cut := func(step int) (out []string) {
			l := lines{emit: func(s string) { out = append(out, s) }}
			for chunk := range slices.Chunk(data, step) {
				l.add(chunk)
			}
			l.flush(true)
			return out
		}
		pieces, whole := cut(int(step)+1), cut(max(1, len(data)))
		if !slices.Equal(pieces, whole) {
			t.Errorf("in pieces of %d: %q; at once: %q", int(step)+1, pieces, whole)
		}
		for _, line := range whole {
			// Each byte may become a replacement character of three.
			if !utf8.ValidString(line) || strings.Contains(line, "\n") || len(line) > 3*maxLine+len("… (cut)") {
				t.Errorf("line of %d bytes: %.80q", len(line), line)
			}
		}
		if n := bytes.Count(data, []byte("\n")); len(whole) < n {
			t.Errorf("%d lines of %d", len(whole), n)
		}
	})
}

// A character that was cut in two is not shown in halves.
func TestCharacterInTwoPieces(t *testing.T) {
	var out []string
	l := lines{emit: func(s string) { out = append(out, s) }}
	l.add([]byte("caf\xc3"))
	l.flush(false)
	l.add([]byte("\xa9!\n"))
	if want := []string{"caf", "é!"}; !slices.Equal(out, want) {
		t.Errorf("%q, want %q", out, want)
	}
}

func TestLimiterEndsItsWindow(t *testing.T) {
	var out []string
	l := limiter{out: func(r api.Record) { out = append(out, r.Message) }}
	for range windowRecords + 5 {
		l.record(api.Record{Message: "x"})
	}
	for start := time.Now(); l.suppressing(); time.Sleep(5 * time.Millisecond) {
		if time.Since(start) > patience {
			t.Fatal("nobody was told")
		}
	}
	l.record(api.Record{Message: "later"})
	l.end()
	if n := len(out); n != windowRecords+2 || !strings.HasPrefix(out[n-2], "5 suppressed") || out[n-1] != "later" {
		t.Errorf("%d records, at the end %q", n, out[max(0, n-3):])
	}
	out = nil
	l = limiter{out: l.out}
	for range 3 {
		l.record(api.Record{Message: strings.Repeat("x", windowBytes/2)})
	}
	if len(out) != 2 {
		t.Errorf("%d large records passed", len(out))
	}
	l.end()
}
