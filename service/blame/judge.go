package blame

import (
	"encoding/binary"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// evidence is what the last run left.
type evidence struct {
	first  bool     // there was no last run
	clean  bool     // MarkClean was called
	marked []string // streams that were being worked for
	output string   // of the crash
	result string   // of the service manager: "$SERVICE_RESULT $EXIT_CODE $EXIT_STATUS"
}

// readPage reads marks. A page that makes no sense has none.
func (e *evidence) readPage(page []byte) {
	e.first = false
	if len(page) != pageSize || string(page[:len(magic)]) != magic {
		return
	}
	e.clean = binary.NativeEndian.Uint32(page[cleanAt:]) == 1
	for at := slotsAt; at+slotSize <= pageSize; at += slotSize {
		marks := binary.NativeEndian.Uint32(page[at:])
		length := int(binary.NativeEndian.Uint32(page[at+4:]))
		if marks > 0 && length > 0 && length <= nameLength {
			e.marked = append(e.marked, string(page[at+nameAt:at+nameAt+length]))
		}
	}
}

func (e *evidence) judge() Verdict {
	if e.first || e.clean {
		return Verdict{Clean: true}
	}
	cause, crashed, named := e.cause()
	v := Verdict{Crashed: crashed, Cause: cause}
	switch {
	case !crashed:
	case named != "":
		v.Guilty = []string{named}
	case len(e.marked) == 1:
		v.Guilty = e.marked
	default:
		v.Suspects = e.marked
	}
	return v
}

// What a Go program that crashes prints. A signal is followed by a line with
// where it came from.
var (
	headline  = regexp.MustCompile(`(?m)^(panic: |SIG[A-Z]+: ).*`)
	fault     = regexp.MustCompile(`(?m)^\[signal (SIG[A-Z]+: [a-z ]+)`)
	sentBy    = regexp.MustCompile(`(?m)^PC=\S+ m=\S+ sigcode=(-?\d+)`)
	goroutine = regexp.MustCompile(`(?m)^goroutine [1-9]\d* .*\[.*\]:$`)
	label     = regexp.MustCompile(`labels:\{(?:.*, )?"?` + labelKey + `"?: ("(?:[^"\\]|\\.)*"|[^\s,}]+)`)
)

// maxCause is how much of a panic's text is shown, in bytes.
const maxCause = 200

// cause says how the process ended, whether that is a crash, and which stream
// the trace names.
func (e *evidence) cause() (cause string, crashed bool, named string) {
	result, _, status := e.service()
	head := headline.FindString(e.output)
	head = strings.ToValidUTF8(head[:min(len(head), maxCause)], "")
	switch {
	case result == "watchdog":
		return "it did not answer, and the watchdog of systemd ended it", true, ""
	case strings.HasPrefix(head, "SIGQUIT: "):
		return "somebody asked it for a trace and its end (SIGQUIT)", false, ""
	case strings.HasPrefix(head, "SIG") && sent(e.output):
		// The signal came from outside, so the goroutine that was hit has
		// nothing to do with it.
		return head, true, ""
	case head != "":
		return head, true, stream(e.output)
	case goroutine.MatchString(e.output):
		return fatal(e.output), true, stream(e.output)
	}
	// Nothing was printed.
	switch result {
	case "core-dump":
		return "it was ended by signal SIG" + status, true, ""
	case "signal":
		if status == "KILL" {
			return "it was killed (SIGKILL)", false, ""
		}
		return "it was ended by signal SIG" + status, true, ""
	case "oom-kill":
		return "it was killed for want of memory", false, ""
	case "exit-code":
		return "it ended with exit status " + status, false, ""
	}
	return "it was killed, or the machine went down", false, ""
}

// fatal words a fatal error of Go's runtime. Its own words ("fatal error: …")
// go to standard error only; the trace begins after them.
func fatal(output string) string {
	what := "fatal error"
	if m := fault.FindStringSubmatch(output); m != nil {
		what += ": " + strings.TrimSuffix(m[1], " code")
	} else if strings.Contains(output, "\nruntime.newstack(") {
		what += ": stack overflow"
	}
	trace := output[goroutine.FindStringIndex(output)[1]:]
	for line := range strings.Lines(strings.TrimLeft(trace, "\n")) {
		if line == "\n" {
			break // the next goroutine
		}
		at := strings.LastIndexByte(line, '(')
		if at < 0 || line[0] == '\t' || strings.HasPrefix(line, "runtime.") || strings.HasPrefix(line, "sync.") || strings.HasPrefix(line, "internal/") {
			continue // where Go's own code found it
		}
		return what + " in " + line[:at]
	}
	return what
}

func (e *evidence) service() (result, code, status string) {
	f := append(strings.Fields(e.result), "", "", "")
	return f[0], f[1], f[2]
}

// sent says whether a fatal signal was sent by a process (kill(2), tgkill(2))
// rather than raised by the kernel for a fault: si_code is not positive then,
// see sigaction(2).
func sent(output string) bool {
	m := sentBy.FindStringSubmatch(output)
	if m == nil {
		return false
	}
	code, err := strconv.Atoi(m[1])
	return err == nil && code <= 0
}

// stream is the stream that the goroutine that crashed worked for, which is the
// first in the trace. "" means none.
func stream(output string) string {
	m := label.FindStringSubmatch(goroutine.FindString(output))
	if m == nil {
		return ""
	}
	if name, err := strconv.Unquote(m[1]); err == nil {
		return name
	}
	return m[1]
}

// String is for the log.
func (v Verdict) String() string {
	switch {
	case v.Clean:
		return "clean"
	case len(v.Guilty) > 0:
		return fmt.Sprintf("%s; counted against %s", v.Cause, strings.Join(v.Guilty, ", "))
	case len(v.Suspects) > 0:
		return fmt.Sprintf("%s; one of %s may be the reason", v.Cause, strings.Join(v.Suspects, ", "))
	}
	return v.Cause
}
