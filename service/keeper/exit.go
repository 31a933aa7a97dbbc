package keeper

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Exit is how an instance ended.
type Exit struct {
	Code   int         `json:"code"`             // exit status; meaningful without Signal
	Signal unix.Signal `json:"signal,omitempty"` // what killed it, 0 if it exited
	Core   bool        `json:"core,omitempty"`   // a core was dumped
	OOM    bool        `json:"oom,omitempty"`    // killed by the kernel for want of memory in the stream's cgroup
	Killed bool        `json:"killed,omitempty"` // by Kill or Close

	// Ended are processes the instance left behind and the keeper ended;
	// Stuck are those that would not go. Each is "command (pid)".
	Ended []string `json:"ended,omitempty"`
	Stuck []string `json:"stuck,omitempty"`

	// Lost says why nothing else is known: the keeper itself is gone.
	Lost string `json:"lost,omitempty"`
}

// signalText are the descriptions of strsignal(3) for signals that mean a
// fault of the program, which read better than the signal's name.
var signalText = map[unix.Signal]string{
	unix.SIGSEGV: "segmentation fault",
	unix.SIGBUS:  "bus error",
	unix.SIGABRT: "aborted",
	unix.SIGILL:  "illegal instruction",
	unix.SIGFPE:  "floating point exception",
	unix.SIGSYS:  "bad system call",
	unix.SIGTRAP: "trace trap",
}

// Cause says why the instance ended, in words: "exit status 3", "segmentation
// fault (core dumped)", "killed (out of memory)", "killed by signal SIGTERM".
func (e Exit) Cause() string {
	switch {
	case e.Lost != "":
		return e.Lost
	case e.Signal == 0:
		return fmt.Sprintf("exit status %d", e.Code)
	case e.OOM:
		return "killed (out of memory)"
	}
	text, fault := signalText[e.Signal]
	if !fault {
		text = "killed by signal " + signalName(e.Signal)
	}
	if e.Core {
		text += " (core dumped)"
	}
	return text
}

// Fault says whether a signal means a fault of the program itself.
func Fault(s unix.Signal) bool { return signalText[s] != "" }

func signalName(s unix.Signal) string {
	if name := unix.SignalName(s); name != "" {
		return name
	}
	return fmt.Sprint(int(s)) // real-time signals have no name
}

// LeftBehind says what the instance left behind, "" if nothing.
func (e Exit) LeftBehind() string {
	switch {
	case len(e.Stuck) > 0:
		return fmt.Sprintf("it left processes that cannot be ended: %s", list(e.Stuck))
	case len(e.Ended) > 0:
		return fmt.Sprintf("it left processes that were ended: %s", list(e.Ended))
	}
	return ""
}

// list is the first few of names, and how many more there are.
func list(names []string) string {
	const show = 5
	if len(names) > show {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:show], ", "), len(names)-show)
	}
	return strings.Join(names, ", ")
}
