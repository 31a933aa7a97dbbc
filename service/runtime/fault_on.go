//go:build faults

package runtime

import (
	"os"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// fault breaks the runtime in the way that TATOLAB_FAULT gives for the stream:
// "NAME=panic NAME=fatal NAME=segv NAME=hang".
func fault(stream string) {
	for f := range strings.FieldsSeq(os.Getenv("TATOLAB_FAULT")) {
		name, kind, _ := strings.Cut(f, "=")
		if name != stream {
			continue
		}
		switch kind {
		case "panic":
			panic("a fault was asked for")
		case "fatal":
			debug.SetMaxStack(1 << 20) // the default of 1 GiB takes its time
			var grow func(int) int
			grow = func(n int) int { return n + grow(n+1) }
			grow(0) // the stack overflows, which no recover stops
		case "segv":
			unix.Kill(os.Getpid(), unix.SIGSEGV)
			select {}
		case "hang":
			select {}
		}
	}
}
