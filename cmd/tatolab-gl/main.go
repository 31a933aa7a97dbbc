// Command tatolab-gl draws the effects of a stream; tatolabd starts it.
package main

import (
	"os"

	"tatolab.com/tatolab/gl/effectserver"
)

func main() { os.Exit(effectserver.Main()) }
