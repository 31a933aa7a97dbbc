package node

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/service/api"
)

const (
	// partialDelay is how long a line without its end may be silent before it
	// is shown as it is; partialAge is how long one that keeps growing.
	partialDelay = 100 * time.Millisecond
	partialAge   = time.Second
	// maxLine is how much of a line is kept, in bytes.
	maxLine = 16 << 10
	// In each logWindow at most windowRecords records and windowBytes bytes
	// of messages of one node are logged; the rest is counted.
	logWindow     = time.Second
	windowRecords = 1000
	windowBytes   = 1 << 20
	// lastWords is how many of the suppressed records are shown all the same
	// if the process ends with them.
	lastWords = 20
	// floodPause is how long a pipe is left alone after each read while its
	// lines are suppressed, so that reading what nobody sees costs little.
	floodPause = 10 * time.Millisecond
)

// levels of a record, and what else people call them.
var levels = map[string]string{
	"trace": "trace", "debug": "debug", "info": "info", "warn": "warn", "error": "error",
	"warning": "warn", "critical": "error",
}

func level(s string) string {
	if l, ok := levels[strings.ToLower(s)]; ok {
		return l
	}
	return "info"
}

// wallClock turns a CLOCK_MONOTONIC stamp into a time of day. One that is not
// of the last minute is not believed.
func wallClock(ns int64) time.Time {
	now := time.Now()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return now
	}
	if ago := time.Duration(ts.Nano() - ns); ago > 0 && ago < time.Minute {
		return now.Add(-ago)
	}
	return now
}

// readLines logs what is written to an output pipe until its end.
func (n *Node) readLines(f *os.File, level string) {
	defer n.readers.Done()
	l := lines{emit: func(s string) { n.log.record(api.Record{Level: level, Message: s}) }}
	buf := make([]byte, 32<<10)
	for {
		_ = f.SetReadDeadline(l.deadline())
		got, err := f.Read(buf)
		l.add(buf[:got])
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			l.flush(false)
		case err != nil: // the end, or closed by follow
			l.flush(true)
			return
		}
		if n.log.suppressing() {
			select {
			case <-time.After(floodPause):
			case <-n.exited:
			}
		}
	}
}

// lines cuts a flow of bytes into lines of text.
type lines struct {
	emit  func(string)
	held  []byte
	first time.Time // when the oldest byte of held came
	cut   bool      // the rest of this line is dropped
	shown bool      // the start of this line has been shown
}

// deadline is when what is held must be shown; zero: nothing is held.
func (l *lines) deadline() time.Time {
	if len(l.held) == 0 {
		return time.Time{}
	}
	now := time.Now()
	silence, age := now.Add(partialDelay), l.first.Add(partialAge)
	if age.Before(silence) {
		return age
	}
	return silence
}

func (l *lines) add(data []byte) {
	for len(data) > 0 {
		line, rest, whole := bytes.Cut(data, []byte{'\n'})
		data = rest
		if !l.cut {
			if len(l.held) == 0 {
				l.first = time.Now()
			}
			l.held = append(l.held, line[:min(len(line), maxLine+1-len(l.held))]...)
			if len(l.held) > maxLine {
				l.say(trimRune(l.held[:maxLine]), "… (cut)")
				l.held, l.cut = nil, true
			}
		}
		if whole {
			// An empty rest after a start that was shown is only the end of
			// that line, not a line.
			if !l.cut && (len(l.held) > 0 || !l.shown) {
				l.say(l.held, "")
			}
			l.held, l.cut, l.shown = l.held[:0], false, false
		}
	}
}

// flush shows what is held; all of it at the end, else not the first bytes of
// a character whose rest has yet to come, unless it does not come.
func (l *lines) flush(end bool) {
	text := l.held
	if whole := trimRune(text); !end && (len(whole) > 0 || time.Since(l.first) < partialAge) {
		text = whole
	}
	if len(text) > 0 {
		l.say(text, "")
		l.held, l.shown, l.first = slices.Clone(l.held[len(text):]), true, time.Now()
	}
}

// say emits one line. After a carriage return a terminal writes over the line,
// so of a progress bar only what would be seen is kept.
func (l *lines) say(text []byte, suffix string) {
	text = bytes.TrimRight(text, "\r")
	if i := bytes.LastIndexByte(text, '\r'); i >= 0 {
		text = text[i+1:]
	}
	l.emit(strings.ToValidUTF8(string(text), "\uFFFD") + suffix)
}

// trimRune cuts an incomplete character off the end.
func trimRune(b []byte) []byte {
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		if c := b[len(b)-i]; utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-i:]) {
				return b[:len(b)-i]
			}
			break
		}
	}
	return b
}

// limiter passes records on, up to a limit, and says how many it did not.
type limiter struct {
	stream, node string
	out          func(api.Record)

	mu         sync.Mutex
	window     time.Time // when it began
	records    int
	bytes      int
	suppressed int
	last       []api.Record
	timer      *time.Timer
	ended      bool
}

func (l *limiter) record(r api.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if r.Time.IsZero() {
		r.Time = now
	}
	r.Stream, r.Node = l.stream, l.node
	if now.Sub(l.window) >= logWindow {
		l.note()
		l.window, l.records, l.bytes = now, 0, 0
	}
	l.records++
	l.bytes += len(r.Message)
	if l.records <= windowRecords && l.bytes <= windowBytes {
		l.out(r)
		return
	}
	l.suppressed++
	if len(l.last) == lastWords {
		l.last = slices.Delete(l.last, 0, 1)
	}
	l.last = append(l.last, r)
	if l.timer == nil && !l.ended {
		l.timer = time.AfterFunc(logWindow-now.Sub(l.window), l.expire)
	}
}

func (l *limiter) suppressing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.suppressed > 0
}

func (l *limiter) expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer = nil
	if !l.ended {
		l.note()
	}
}

// note says how many records were suppressed.
func (l *limiter) note() {
	if l.suppressed > 0 {
		l.out(api.Record{
			Time: time.Now(), Level: "warn", Stream: l.stream, Node: l.node,
			Message: fmt.Sprintf("%d suppressed: it logs more than %d records or %d KiB a second", l.suppressed, windowRecords, windowBytes>>10),
		})
	}
	l.suppressed, l.last = 0, nil
}

// end shows the last words of the process.
func (l *limiter) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	if l.timer != nil {
		l.timer.Stop()
	}
	last := l.last
	l.suppressed -= len(last)
	l.note()
	for _, r := range last {
		l.out(r)
	}
}

// bucket is a token bucket that says how long to wait.
type bucket struct {
	rate, burst float64
	tokens      float64
	last        time.Time
}

func (b *bucket) take(now time.Time) (wait time.Duration) {
	if b.last.IsZero() {
		b.tokens = b.burst
	} else {
		b.tokens = min(b.burst, b.tokens+now.Sub(b.last).Seconds()*b.rate)
	}
	b.last = now
	b.tokens--
	if b.tokens >= 0 {
		return 0
	}
	return time.Duration(-b.tokens / b.rate * float64(time.Second))
}
