package systemd

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/godbus/dbus/v5"
)

// scopeWait is how long the user manager may take to move the process.
const (
	scopeWait  = 2 * time.Second
	scopeCheck = 5 * time.Millisecond
)

// EnterScope gives a runtime in a terminal what the service unit has: a
// control group that is delegated to it, for those of its streams. It asks
// the user manager for a transient scope, tatolabd-PID.scope, and returns when
// this process is in it. Under systemd it does nothing. ErrNoManager, and any
// other error, means that streams have to be held together in another way.
//
// https://systemd.io/CGROUP_DELEGATION, "scope units".
func (s *Service) EnterScope(ctx context.Context) error {
	if s.unit != "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, scopeWait)
	defer cancel()
	conn, err := dialManager(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	type property struct {
		Name  string
		Value dbus.Variant
	}
	type auxiliary struct {
		Name       string
		Properties []property
	}
	name := fmt.Sprintf("tatolabd-%d.scope", os.Getpid())
	call := conn.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1").CallWithContext(ctx,
		"org.freedesktop.systemd1.Manager.StartTransientUnit", 0, name, "fail", []property{
			{"Description", dbus.MakeVariant("Tatolab runtime in a terminal")},
			{"PIDs", dbus.MakeVariant([]uint32{uint32(os.Getpid())})},
			{"Delegate", dbus.MakeVariant(true)},
			// Nothing to look at is left when it has failed.
			{"CollectMode", dbus.MakeVariant("inactive-or-failed")},
		}, []auxiliary{})
	if call.Err != nil {
		return fmt.Errorf("cannot have a control group of the user's service manager: %w", call.Err)
	}
	// The reply names a job; that the process has been moved is its end.
	for ownUnit() != name {
		select {
		case <-ctx.Done():
			return fmt.Errorf("cannot have a control group of the user's service manager: %s was asked for, and this process is still in %s", name, ownUnit())
		case <-time.After(scopeCheck):
		}
	}
	return nil
}
