//go:build !faults

package runtime

// fault does nothing. A build with the tag "faults" breaks the runtime on
// purpose while it works for one stream; only tests make one.
func fault(string) {}
