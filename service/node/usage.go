package node

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// userHZ is the unit of CPU times in /proc, in ticks a second: sysconf
// (_SC_CLK_TCK) is 100 on every architecture Linux still runs on.
const userHZ = 100

// Usage is the CPU time the process has used, with children it has waited for,
// and the memory it holds, in bytes. Both are 0 once it has ended.
func (n *Node) Usage() (cpu time.Duration, rss int64) {
	select {
	case <-n.exited:
		return 0, 0
	default:
	}
	// See proc(5): the command in parentheses may hold anything, fields are
	// counted from the last parenthesis on.
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n.PID()))
	if err != nil {
		return 0, 0
	}
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	field := func(number int) int64 { // as numbered in proc(5)
		if number-3 >= len(fields) {
			return 0
		}
		v, _ := strconv.ParseInt(string(fields[number-3]), 10, 64)
		return v
	}
	const utime, stime, cutime, cstime, rssPages = 14, 15, 16, 17, 24
	ticks := field(utime) + field(stime) + field(cutime) + field(cstime)
	return time.Duration(ticks) * (time.Second / userHZ), field(rssPages) * int64(os.Getpagesize())
}
