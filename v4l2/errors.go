package v4l2

import (
	"errors"
	"fmt"
	"strings"
)

// What a caller has to tell apart.
var (
	// ErrGone: the device has been unplugged, or its driver unbound.
	ErrGone = errors.New("the device is gone")
	// ErrNotFound: no device answers to the name.
	ErrNotFound = errors.New("not found")
	// ErrDenied: the device may not be opened by this user.
	ErrDenied = errors.New("permission denied")
	// ErrTimeout: no frame within the time given.
	ErrTimeout = errors.New("no frame")
	// ErrSourceChanged: what a receiver receives has another size, rate or
	// standard, or has come or gone. Configure sets the device to it.
	ErrSourceChanged = errors.New("the source has changed")
	// ErrNoSignal: a receiver has nothing to receive.
	ErrNoSignal = errors.New("no signal")
	// ErrKeeps: an output device keeps to another size or format.
	ErrKeeps = errors.New("it keeps to")
	// ErrWoken: Wake was called.
	ErrWoken = errors.New("woken")
)

// BusyError says that another program streams from the device.
type BusyError struct {
	Path, Card string
	Holders    []Holder // who has it open; empty: none that can be seen
}

func (e *BusyError) Error() string {
	who := "another user's process"
	if len(e.Holders) > 0 {
		names := make([]string, len(e.Holders))
		for i, h := range e.Holders {
			names[i] = h.String()
		}
		who = strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s (%s) is held by %s", e.Path, e.Card, who)
}

// denied is the advice that goes with EACCES.
func denied(path string) error {
	return fmt.Errorf("%w to open %s: join the group that owns it (`sudo usermod -aG video $USER`, then log in again), or work at the seat of this machine, where logind gives access",
		ErrDenied, path)
}
