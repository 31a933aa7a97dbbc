package keeper

import (
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The lock of the last runtime's keepers is had when the last of them has
// ended, and not before.
func TestLockOutlivesTheRuntimeThatTookIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keepers.lock")
	last, err := AcquireLock(path, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	k, err := Start(Options{Stream: "garage", Lock: last})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	last.Close() // that runtime is gone, its keeper is not
	unix.Kill(k.PID(), unix.SIGSTOP)
	next, err := AcquireLock(path, 100*time.Millisecond)
	if err != ErrLeftovers {
		t.Fatalf("the keeper lives: %v, want %v", err, ErrLeftovers)
	}
	next.Close()
	unix.Kill(k.PID(), unix.SIGCONT)
	time.AfterFunc(100*time.Millisecond, func() { k.Close() })
	began := time.Now()
	next, err = AcquireLock(path, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	next.Close()
	if waited := time.Since(began); waited < 100*time.Millisecond {
		t.Errorf("had it after %s, before the keeper was closed", waited)
	}
}
