// Command tatolabd is the Tatolab runtime. The processes it starts are the
// same program under a verb of its own.
package main

import (
	"fmt"
	"os"

	"tatolab.com/tatolab/nodes/camera"
	"tatolab.com/tatolab/nodes/testpattern"
	"tatolab.com/tatolab/nodes/unavailable"
	"tatolab.com/tatolab/nodes/virtualcamera"
	"tatolab.com/tatolab/service/daemon"
	"tatolab.com/tatolab/service/keeper"
)

func main() {
	if len(os.Args) < 2 {
		os.Exit(daemon.Main())
	}
	args := os.Args[2:]
	switch os.Args[1] {
	case "keeper":
		os.Exit(keeper.Main())
	case "camera":
		os.Exit(camera.Main(args))
	case "testpattern":
		os.Exit(testpattern.Main(args))
	case "virtualcamera":
		os.Exit(virtualcamera.Main(args))
	case "unavailable":
		os.Exit(unavailable.Main(args))
	case "--version", "version":
		daemon.PrintVersion(os.Stdout)
	case "--help", "-h", "help":
		daemon.PrintHelp(os.Stdout)
	default:
		fmt.Fprintf(os.Stderr, "tatolabd: there is no verb %q. tatolabd is started without any; `tatolab` is the command line\n", os.Args[1])
		os.Exit(2)
	}
}
