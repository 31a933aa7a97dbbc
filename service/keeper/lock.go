package keeper

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// AcquireLock waits until the keepers of the last runtime are gone, and with
// them everything they kept, so that nothing of it holds a device which the
// next one opens. Options.Lock hands the lock on to keepers: each holds it by
// a descriptor of its own, so the kernel lets go of it when the last one ends,
// however that was.
//
// With ErrLeftovers the lock is good, but after limit processes of the last
// runtime were still there: they are stuck in the kernel.
func AcquireLock(path string, limit time.Duration) (*os.File, error) {
	lock, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open the lock of the keepers: %w", err)
	}
	for deadline := time.Now().Add(limit); ; time.Sleep(killInterval) {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(deadline) {
			break
		}
	}
	left := errors.Is(err, unix.EWOULDBLOCK)
	if err == nil || left {
		// Shared: a keeper that is stuck, and this runtime's own, hold it
		// side by side.
		err = unix.Flock(int(lock.Fd()), unix.LOCK_SH)
	}
	if err != nil {
		lock.Close()
		return nil, fmt.Errorf("cannot lock %s: %w", path, err)
	}
	if left {
		return lock, ErrLeftovers
	}
	return lock, nil
}

// ErrLeftovers tells that processes of the last runtime do not end.
var ErrLeftovers = errors.New("processes of the last runtime are still there, stuck in the kernel: what they hold, a camera say, stays busy")
