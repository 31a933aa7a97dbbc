// Package daemon is tatolabd, wired top to bottom.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/dbus"
	"tatolab.com/tatolab/python"
	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/blame"
	"tatolab.com/tatolab/service/build"
	"tatolab.com/tatolab/service/cgroup"
	"tatolab.com/tatolab/service/config"
	"tatolab.com/tatolab/service/hotplug"
	"tatolab.com/tatolab/service/keeper"
	"tatolab.com/tatolab/service/localapi"
	"tatolab.com/tatolab/service/logstore"
	"tatolab.com/tatolab/service/runtime"
	"tatolab.com/tatolab/service/systemd"
)

const (
	// drainLimit is how long clients may take to read their last words.
	drainLimit = 2 * time.Second
	// leftoverLimit is how long a start waits for processes of the last run.
	leftoverLimit = 5 * time.Second
	// statusEvery is how often the status line for systemd is looked at.
	statusEvery = time.Second
)

// Main runs the runtime until it is told to stop, and returns the exit status.
func Main() int {
	err := run()
	var locked *systemd.LockedError
	var bad *badConfig
	switch {
	case err == nil:
		return 0
	case errors.As(err, &locked):
		fmt.Fprintln(os.Stderr, "error:", err)
		return systemd.ExitLocked
	case errors.As(err, &bad):
		fmt.Fprintln(os.Stderr, "error:", err)
		return systemd.ExitBadConfig
	}
	fmt.Fprintln(os.Stderr, "error:", err)
	return 1
}

// badConfig is the error of a configuration that cannot be read.
type badConfig struct{ error }

func run() error {
	service, err := systemd.FromEnvironment()
	if err != nil {
		return err
	}
	paths, err := config.Find(os.Getenv)
	if err != nil {
		return err
	}
	conf, err := config.Load(paths.Config)
	if err != nil {
		return &badConfig{err}
	}
	// Caught before anything is there to clean up, so that no signal is
	// missed in between.
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// Before anything is added for the runtime's own use.
	environ := os.Environ()

	lock, err := systemd.AcquireLock(paths.Lock)
	if err != nil {
		return err
	}
	defer func() { lock.Close() }()
	if err := paths.Create(); err != nil {
		return err
	}
	// Before anything of the last run is looked at: a start that is refused, because
	// systemd has the socket, must not use up what that left as evidence.
	listener, err := service.Listen(ctx, paths.Socket)
	if err != nil {
		return err
	}
	defer listener.Close()
	page, verdict, err := blame.Open(paths.State, filepath.Join(paths.Runtime, "service-result"))
	if err != nil {
		return err
	}
	defer page.Close()
	logs := logstore.Open(logstore.Options{
		Dir: paths.Logs, Journal: logstore.StderrIsJournal(),
		Warn: func(message string) { slog.Warn(message) },
	})
	defer logs.Close()
	slog.SetDefault(slog.New(logs.Handler(os.Stderr, conf.Log.Level.Slog())))
	bootstrap, err := python.Lend(paths.Lent)
	if err != nil {
		return err
	}
	defer func() {
		if lock.Held() {
			os.RemoveAll(paths.Lent)
		}
	}()
	if err := service.EnterScope(ctx); err != nil {
		slog.Debug("no scope", "reason", err)
	}
	tree, err := cgroup.Delegated()
	if err != nil {
		slog.Debug("no control groups", "reason", err)
	}

	keepers, err := keeper.AcquireLock(filepath.Join(paths.Runtime, "keepers.lock"), leftoverLimit)
	if errors.Is(err, keeper.ErrLeftovers) {
		slog.Warn(err.Error())
	} else if err != nil {
		return err
	}
	defer keepers.Close()

	var bus *dbus.Bus
	rt, err := runtime.New(runtime.Options{
		Paths: paths, Config: conf, Logs: logs, Bootstrap: bootstrap, Environ: environ,
		Guard: page.Do, Verdict: verdict,
		How: service.How(), Lingers: systemd.Lingers, Cgroups: tree, KeeperLock: keepers,
		Bus: func() string { return busStatus(bus) },
	})
	if err != nil {
		return err
	}
	if conf.DBus.Enabled {
		bus = dbus.New(ctx, rt, func(message string) { slog.Info(message) })
		defer rt.Subscribe(func(c runtime.Change) { bus.Changed(c.Stream, c.Kind == runtime.Removed) })()
		bus.Start()
		defer bus.Close()
	}
	server := localapi.New(rt)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	// What this run has in the runtime folder, should that be removed. Snapshots of
	// attached streams are not brought back: what runs has imported them.
	restore := func() error {
		if !lock.Held() {
			fresh, err := systemd.AcquireLock(paths.Lock)
			if err != nil {
				return fmt.Errorf("the runtime folder was removed, and no client can connect: %w", err)
			}
			lock.Close()
			lock = fresh
		}
		_, err := python.Lend(paths.Lent)
		return errors.Join(paths.Create(), err)
	}
	guarded := make(chan struct{})
	go func() {
		listener.Guard(ctx, restore, func(message string) { slog.Warn(message) })
		close(guarded)
	}()
	defer func() { cancel(); <-guarded }()
	go systemd.WatchSleep(ctx, func(sleeping bool) {
		if sleeping {
			slog.Info("the machine is being suspended")
		} else {
			slog.Info("the machine is awake again")
		}
	})
	go watchCameras(ctx, bus)
	go service.Watch(ctx, selfCheck(rt), func(err error) { slog.Error("the self-check failed", "error", err) })

	slog.Info("tatolabd runs", "version", build.Version, "socket", paths.Socket, "how", service.How(), logstore.ID(logstore.RuntimeStarted))
	if verdict.Crashed {
		slog.Error("the last run ended in a crash", "cause", verdict.Cause, logstore.ID(logstore.RuntimeCrashed))
	}
	if err := service.Ready(statusLine(rt)); err != nil {
		slog.Warn("cannot tell systemd", "error", err)
	}
	go rt.Load(ctx)
	go keepStatus(ctx, service, rt)

	err = wait(ctx, signals, served, service, rt)
	_ = service.Stopping("stopping")
	slog.Info("tatolabd stops", logstore.ID(logstore.RuntimeStopping))
	// A second signal ends what takes too long; but not SIGHUP, which a terminal that
	// is closed sends twice.
	go func() {
		for s := range signals {
			if s != unix.SIGHUP {
				os.Exit(128 + int(unix.SIGTERM))
			}
		}
	}()
	rt.Close()
	drain, stop := context.WithTimeout(context.Background(), drainLimit)
	defer stop()
	_ = server.Shutdown(drain)
	page.MarkClean()
	return err
}

// wait returns when the runtime has to end: nil when it was told to.
func wait(ctx context.Context, signals <-chan os.Signal, served <-chan error, service *systemd.Service, rt *runtime.Runtime) error {
	for {
		select {
		case s := <-signals:
			// A terminal that closes ends what runs in it; a service has no
			// terminal, there it means: read the configuration again.
			if s != unix.SIGHUP || service.Unit() == "" {
				return nil
			}
			_ = service.Reloading()
			if err := rt.ReloadConfig(); err != nil {
				slog.Error("the configuration stays as it was", "error", err)
			}
			_ = service.Ready(statusLine(rt))
		case err := <-served:
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

// watchCameras tells of cameras that are plugged in and out.
func watchCameras(ctx context.Context, bus *dbus.Bus) {
	err := hotplug.Watch(ctx, "/dev", func(come, gone []string) {
		for _, path := range gone {
			slog.Info("a video device is gone", "device", path)
		}
		for _, path := range come {
			slog.Info("a video device is there", "device", path)
		}
		if bus != nil {
			bus.CamerasChanged()
		}
	})
	if err != nil {
		slog.Warn(err.Error())
	}
}

func busStatus(bus *dbus.Bus) string {
	if bus == nil {
		return "switched off by [dbus] enabled = false"
	}
	return bus.Status()
}

// selfCheck asks what every command asks: a runtime that cannot list its
// streams is stuck.
func selfCheck(rt *runtime.Runtime) func(context.Context) error {
	return func(ctx context.Context) error {
		answered := make(chan struct{})
		go func() { rt.Check(); close(answered) }()
		select {
		case <-answered:
			return nil
		case <-ctx.Done():
			return errors.New("the runtime does not answer")
		}
	}
}

// keepStatus keeps the line that `systemctl --user status` shows current.
func keepStatus(ctx context.Context, service *systemd.Service, rt *runtime.Runtime) {
	last := ""
	for tick := time.NewTicker(statusEvery); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
			if line := statusLine(rt); line != last {
				last = line
				_ = service.Status(line)
			}
		}
	}
}

func statusLine(rt *runtime.Runtime) string {
	running, failed := 0, 0
	for _, s := range rt.Streams() {
		switch s.State {
		case api.Attached, api.Kept:
			running++
		case api.Failed:
			failed++
		}
	}
	line := fmt.Sprintf("%d streams", running)
	if running == 1 {
		line = "1 stream"
	}
	if failed > 0 {
		line += fmt.Sprintf(", %d failed", failed)
	}
	return line
}

// PrintVersion prints the version.
func PrintVersion(w io.Writer) {
	fmt.Fprintf(w, "tatolabd %s (%s)\n", build.Version, build.ID())
}

// PrintHelp prints how it is started.
func PrintHelp(w io.Writer) {
	fmt.Fprint(w, `tatolabd - the Tatolab runtime

Runs in the foreground, in a terminal or as a service of systemd, and keeps
live streams running. It takes no arguments: tatolabd.toml configures it,
`+"`tatolab`"+` controls it. SIGINT and SIGTERM end it; as a service, SIGHUP reads
the configuration again.
`)
}
