package localapi_test

import "golang.org/x/sys/unix"

// inq is how many bytes wait to be read from fd (SIOCINQ, unix(7)).
func inq(fd uintptr) int {
	n, err := unix.IoctlGetInt(int(fd), unix.SIOCINQ)
	if err != nil {
		return -1
	}
	return n
}
