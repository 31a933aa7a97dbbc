// Package display finds the display that a window is to open on. A session may
// begin after the runtime, so the environment a process was started with is
// not the last word.
package display

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"
)

// managerAnswer is how long the user manager may take to answer.
const managerAnswer = time.Second

// pass is how to open windows of a kept stream on a display that only a terminal
// knows.
const pass = "`tatolab run -d --env DISPLAY` gives it that of a terminal"

// Find sets DISPLAY and XAUTHORITY to those of a display that opens: those
// this process was started with, else those of the user manager. The error
// says what was tried.
func Find(ctx context.Context, started Environment, opens func(display string) bool) error {
	if started.Display != "" && try(started, opens) {
		return nil
	}
	manager, err := Manager(ctx)
	switch {
	case err == nil && manager.Display != "" && manager != started && try(manager, opens):
		return nil
	case started.Display != "" && manager.Display != "" && manager.Display != started.Display:
		return fmt.Errorf("cannot open display %s, nor %s of the user manager", started.Display, manager.Display)
	case started.Display != "":
		return fmt.Errorf("cannot open display %s", started.Display)
	case manager.Display != "":
		return fmt.Errorf("cannot open display %s of the user manager", manager.Display)
	case started.Wayland != "" || manager.Wayland != "":
		return fmt.Errorf("the Wayland session %s offers no X display, which windows need: install Xwayland (package xwayland) and log in anew",
			cmp.Or(started.Wayland, manager.Wayland))
	case err != nil: // no user manager to ask
		return errors.New("the stream has no DISPLAY, and no user manager answers; " + pass)
	}
	return errors.New("neither the stream nor the user manager has a DISPLAY; " + pass)
}

// try tries e, which stays this process's environment if it opens.
func try(e Environment, opens func(string) bool) bool {
	os.Setenv("DISPLAY", e.Display)
	if e.Authority != "" {
		os.Setenv("XAUTHORITY", e.Authority)
	} else {
		os.Unsetenv("XAUTHORITY")
	}
	return opens(e.Display)
}

// Environment is what programs of a session find their display by.
type Environment struct {
	Display   string // DISPLAY
	Authority string // XAUTHORITY
	Wayland   string // WAYLAND_DISPLAY
}

// Own returns the environment of this process.
func Own() Environment {
	return Environment{os.Getenv("DISPLAY"), os.Getenv("XAUTHORITY"), os.Getenv("WAYLAND_DISPLAY")}
}

// Manager returns that of the user manager (org.freedesktop.systemd1(5)),
// which sessions tell theirs.
func Manager(ctx context.Context) (Environment, error) {
	ctx, cancel := context.WithTimeout(ctx, managerAnswer)
	defer cancel()
	var e Environment
	address := os.Getenv("DBUS_SESSION_BUS_ADDRESS")
	if address == "" {
		folder := os.Getenv("XDG_RUNTIME_DIR")
		if folder == "" {
			return e, errors.New("XDG_RUNTIME_DIR is not set")
		}
		address = "unix:path=" + folder + "/bus"
	}
	bus, err := dbus.Connect(address, dbus.WithContext(ctx))
	if err != nil {
		return e, fmt.Errorf("no session bus: %w", err)
	}
	defer bus.Close()
	var value dbus.Variant
	call := bus.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1").CallWithContext(ctx,
		"org.freedesktop.DBus.Properties.Get", dbus.FlagNoAutoStart, "org.freedesktop.systemd1.Manager", "Environment")
	if err := call.Store(&value); err != nil {
		return e, fmt.Errorf("no user manager: %w", err)
	}
	pairs, ok := value.Value().([]string)
	if !ok {
		return e, fmt.Errorf("the user manager's environment is a %s", value.Signature())
	}
	for _, pair := range pairs {
		switch name, value, _ := strings.Cut(pair, "="); name {
		case "DISPLAY":
			e.Display = value
		case "XAUTHORITY":
			e.Authority = value
		case "WAYLAND_DISPLAY":
			e.Wayland = value
		}
	}
	return e, nil
}
