package datapath

import (
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLitmus holds the fences of the protocol: "store mine, load yours" on both
// sides must not leave both sides stale (store buffering). Each side counts up
// and notes what it saw of the other, without ever waiting for it, so that
// every step is a trial. The same without fences is logged, to show that this
// machine would be caught.
func TestLitmus(t *testing.T) {
	if info, _ := debug.ReadBuildInfo(); info != nil && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("under the race detector an atomic store is a release, and no fence")
	}
	const rounds = 1_000_000
	trials := 10
	if soaking {
		trials = 200
	}
	m, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(m)
	x, y := word(m, 0), word(m, 2048)
	sawX, sawY := make([]uint64, rounds+2), make([]uint64, rounds+2)
	trial := func(step func(mine, yours *uint64, i uint64) uint64) (stale int) {
		*x, *y = 0, 0
		clear(sawX)
		clear(sawY)
		var begin atomic.Int32
		var done sync.WaitGroup
		side := func(mine, yours *uint64, saw []uint64) {
			defer done.Done()
			runtime.LockOSThread()
			for begin.Add(1); begin.Load() < 2; {
			}
			for i := 1; i <= rounds; i++ {
				saw[i] = step(mine, yours, uint64(i))
			}
		}
		done.Add(2)
		go side(x, y, sawY)
		go side(y, x, sawX)
		done.Wait()
		for i := 1; i <= rounds; i++ {
			// The first step of the other side that step i did not see
			// must have seen step i.
			if j := sawY[i] + 1; j <= uint64(rounds) && sawX[j] < uint64(i) {
				stale++
			}
		}
		return stale
	}
	var fenced, plain int
	for range trials {
		fenced += trial(func(mine, yours *uint64, i uint64) uint64 {
			atomic.StoreUint64(mine, i)
			return atomic.LoadUint64(yours)
		})
		plain += trial(func(mine, yours *uint64, i uint64) uint64 {
			*mine = i
			return *yours
		})
	}
	t.Logf("both sides stale in %d steps: %d times with the fence, %d without", trials*rounds, fenced, plain)
	if fenced != 0 {
		t.Errorf("the fence does not hold: both sides stale %d times", fenced)
	}
}
