package v4l2

import (
	"time"

	go4vl "github.com/vladimirvivien/go4vl/v4l2"
	"golang.org/x/sys/unix"
)

// Bounds of what is believed of a driver's timestamp. (The kernel's vivid
// stamps with the end of a frame it has filled at its beginning, most of an
// interval ahead.)
const (
	maxAge   = 2 * time.Second
	maxAhead = 5 * time.Millisecond // clocks that drivers extrapolate run ahead a little
)

// clock checks the timestamps of one stream. After the first that is wrong it
// uses the time of arrival for good: two clocks in turn are worse than either.
type clock struct {
	own  bool
	last int64
}

// stamp returns the CLOCK_MONOTONIC time of a frame that the driver stamped with t,
// by the clock its flags name, and that arrived at now; all in nanoseconds. It
// always moves forward.
func (c *clock) stamp(t int64, flags uint32, now int64) int64 {
	monotonic := flags&go4vl.BufFlagTimestampMask == go4vl.BufFlagTimestampMonotonic
	if !monotonic || t <= c.last || t < now-int64(maxAge) || t > now+int64(maxAhead) {
		c.own = true
	}
	if c.own || t > now {
		t = now
	}
	if t <= c.last {
		t = c.last + 1
	}
	c.last = t
	return t
}

// monotonicNow is CLOCK_MONOTONIC in nanoseconds.
func monotonicNow() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // the clock is always there
	}
	return t.Nano()
}
