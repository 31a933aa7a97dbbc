package display

import (
	"testing"

	"github.com/godbus/dbus/v5"
)

// properties answers for org.freedesktop.systemd1.
type properties struct{ environment []string }

func (p properties) Get(_, name string) (dbus.Variant, *dbus.Error) {
	if name != "Environment" {
		return dbus.Variant{}, dbus.NewError("org.freedesktop.DBus.Error.UnknownProperty", nil)
	}
	return dbus.MakeVariant(p.environment), nil
}

// playManager takes the user manager's name on the session bus and returns
// what gives it up.
func playManager(t *testing.T, environment []string) func() {
	t.Helper()
	bus, err := dbus.ConnectSessionBus()
	if err != nil {
		t.Fatal(err)
	}
	if err := bus.Export(properties{environment}, "/org/freedesktop/systemd1", "org.freedesktop.DBus.Properties"); err != nil {
		t.Fatal(err)
	}
	if reply, err := bus.RequestName("org.freedesktop.systemd1", dbus.NameFlagDoNotQueue); err != nil || reply != dbus.RequestNameReplyPrimaryOwner {
		t.Fatalf("cannot play the user manager: %v %v", reply, err)
	}
	return func() { bus.Close() }
}
