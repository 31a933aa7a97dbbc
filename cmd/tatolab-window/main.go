// Command tatolab-window is the process of a DisplayWindow node. tatolabd
// starts it.
package main

import (
	"os"
	"runtime"

	"tatolab.com/tatolab/gl/displaywindow"
)

// The window system is to be called from the process's first thread, which main
// is on only if it never leaves it.
func init() { runtime.LockOSThread() }

func main() { os.Exit(displaywindow.Main()) }
