// Command tatolab is the command line of the Tatolab runtime.
package main

import (
	"os"

	"tatolab.com/tatolab/service/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:], os.Stdout, os.Stderr)) }
