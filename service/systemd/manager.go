package systemd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"time"

	systemdbus "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

// sleepRetry is the wait before the system bus is tried again.
const sleepRetry = 10 * time.Second

// ErrNoManager means that this user has no service manager.
var ErrNoManager = errors.New("this user has no service manager (systemd --user)")

// dialManager connects to the user manager at its private socket, as systemctl
// does: it is there before the bus is, and where there is none.
func dialManager(ctx context.Context) (*dbus.Conn, error) {
	dir := os.Getenv("XDG_RUNTIME_DIR")
	if !filepath.IsAbs(dir) {
		return nil, ErrNoManager
	}
	socket := filepath.Join(dir, "systemd", "private")
	if _, err := os.Stat(socket); err != nil {
		return nil, ErrNoManager
	}
	conn, err := dbus.Dial("unix:path="+dbus.EscapeBusAddressValue(socket), dbus.WithContext(ctx))
	if err != nil {
		// A socket that a former manager left behind.
		return nil, fmt.Errorf("%w: %w", ErrNoManager, err)
	}
	if err := conn.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Getuid()))}); err != nil {
		conn.Close()
		return nil, fmt.Errorf("cannot speak to the user's service manager: %w", err)
	}
	return conn, nil
}

// managerProperty reads one property of an object of the user manager.
func managerProperty(ctx context.Context, path dbus.ObjectPath, iface, name string, value any) error {
	ctx, cancel := context.WithTimeout(ctx, managerAnswer)
	defer cancel()
	conn, err := dialManager(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	call := conn.Object("org.freedesktop.systemd1", path).
		CallWithContext(ctx, "org.freedesktop.DBus.Properties.Get", 0, iface, name)
	var variant dbus.Variant
	if err := call.Store(&variant); err != nil {
		return fmt.Errorf("cannot ask the user's service manager for %s: %w", name, err)
	}
	return variant.Store(value)
}

// unitPath is the object of a unit.
func unitPath(unit string) dbus.ObjectPath {
	return dbus.ObjectPath("/org/freedesktop/systemd1/unit/" + systemdbus.PathBusEscape(unit))
}

// restarting tells whether the manager stops this service only to start it
// again (`systemctl --user restart`, an upgrade).
func (s *Service) restarting() bool {
	if s.unit == "" {
		return false
	}
	var job struct {
		ID   uint32
		Path dbus.ObjectPath
	}
	err := managerProperty(context.Background(), unitPath(s.unit), "org.freedesktop.systemd1.Unit", "Job", &job)
	if err != nil || job.ID == 0 {
		return false
	}
	var kind string
	err = managerProperty(context.Background(), job.Path, "org.freedesktop.systemd1.Job", "JobType", &kind)
	return err == nil && kind == "restart"
}

// socketUnitActive tells whether the user manager listens for the runtime.
// Where it cannot be asked it is not active.
func socketUnitActive(ctx context.Context) bool {
	var state string
	err := managerProperty(ctx, unitPath(SocketUnit), "org.freedesktop.systemd1.Unit", "ActiveState", &state)
	return err == nil && (state == "active" || state == "activating")
}

// lingerFolder is where logind keeps a file for each user that lingers.
const lingerFolder = "/var/lib/systemd/linger"

// Lingers tells whether this user's services go on after the last logout
// (loginctl enable-linger). known is false where there is no logind to say.
func Lingers() (lingers, known bool) {
	u, err := user.Current()
	if err != nil {
		return false, false
	}
	for _, sign := range []string{"/run/systemd/system", "/run/systemd/seats"} { // sd_booted(3), and logind
		if _, err := os.Stat(sign); err != nil {
			return false, false
		}
	}
	_, err = os.Stat(filepath.Join(lingerFolder, u.Username))
	return err == nil, err == nil || errors.Is(err, os.ErrNotExist)
}

// WatchSleep calls slept with true before the machine is suspended and with
// false after it woke up, until ctx ends. Without a system bus or logind it
// waits for them.
func WatchSleep(ctx context.Context, slept func(sleeping bool)) {
	for ctx.Err() == nil {
		// The reason does not matter: without logind nobody suspends.
		_ = watchSleep(ctx, slept)
		select {
		case <-ctx.Done():
		case <-time.After(sleepRetry):
		}
	}
}

func watchSleep(ctx context.Context, slept func(bool)) error {
	conn, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil {
		return err
	}
	defer conn.Close()
	err = conn.AddMatchSignalContext(ctx,
		dbus.WithMatchSender("org.freedesktop.login1"),
		dbus.WithMatchInterface("org.freedesktop.login1.Manager"),
		dbus.WithMatchMember("PrepareForSleep"))
	if err != nil {
		return err
	}
	signals := make(chan *dbus.Signal, 8)
	conn.Signal(signals)
	for {
		select {
		case <-ctx.Done():
			return nil
		case signal, ok := <-signals:
			if !ok {
				return errors.New("the system bus is gone")
			}
			var sleeping bool
			if signal.Name == "org.freedesktop.login1.Manager.PrepareForSleep" && dbus.Store(signal.Body, &sleeping) == nil {
				slept(sleeping)
			}
		}
	}
}
