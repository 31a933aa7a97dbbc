package runtime

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os/exec"
	"strings"
	"time"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/config"
)

const (
	// cameraLimit is how long listing the cameras may take: drivers can hang, so
	// a process of its own asks them.
	cameraLimit = 5 * time.Second
	// cameraKillLimit is how long that process may take to end when it is killed.
	cameraKillLimit = time.Second
)

// Cameras lists the capture devices of this machine and who holds them.
func (r *Runtime) Cameras() ([]api.Camera, error) {
	ctx, cancel := context.WithTimeout(context.Background(), cameraLimit)
	defer cancel()
	var out, problems bytes.Buffer
	cmd := exec.CommandContext(ctx, self, "camera", "--list")
	cmd.Stdout, cmd.Stderr = &out, &problems
	ended := make(chan error, 1)
	go func() { ended <- cmd.Run() }()
	select {
	case err := <-ended:
		if err != nil && ctx.Err() == nil {
			return nil, api.Errorf(api.Internal, "cannot list the cameras: %v: %s", err, strings.TrimSpace(problems.String()))
		}
	case <-time.After(cameraLimit + cameraKillLimit):
		// Stuck in a driver it cannot be killed, and Run waits for it: that is
		// left to its goroutine.
	}
	if ctx.Err() != nil {
		return nil, api.Errorf(api.Internal, "cannot list the cameras: a driver did not answer within %s", cameraLimit)
	}
	cameras := []api.Camera{}
	if err := json.Unmarshal(out.Bytes(), &cameras); err != nil {
		return nil, api.Errorf(api.Internal, "cannot list the cameras: %v", err)
	}
	return cameras, nil
}

// ReloadConfig reads the configuration again. What it says of limits holds for
// streams loaded from now on, and for the groups of those that run.
func (r *Runtime) ReloadConfig() error {
	conf, err := config.Load(r.Paths.Config)
	if err != nil {
		return api.Errorf(api.BadRequest, "cannot read the configuration: %v", err).WithHint("what held before holds on")
	}
	r.mu.Lock()
	r.Config = conf
	groups := map[string]*group{}
	for name, g := range r.groups {
		groups[name] = g
	}
	r.mu.Unlock()
	for name, g := range groups {
		if err := g.Limit(limits(conf, name)); err != nil {
			r.say(slog.LevelWarn, "", name, "", err.Error())
		}
	}
	r.log.Info("the configuration was read again")
	return nil
}
