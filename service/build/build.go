// Package build says which build this is. Every process of one runtime must be
// of the same build: the id is checked in each handshake, so that a package
// upgrade under a running runtime mixes nothing.
package build

import "runtime/debug"

// Version is the release, set by the linker (-X).
var Version = "0.1.0"

// Stamp is set by the Makefile to a hash of the sources; empty in `go test`
// and `go run`, where the version-control revision stands in.
var Stamp string

// ID identifies the build of this program.
func ID() string {
	if Stamp != "" {
		return Version + "+" + Stamp
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				return Version + "+" + s.Value[:12]
			}
		}
	}
	return Version + "+dev"
}
