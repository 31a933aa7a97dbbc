// Package camera is the node CameraSource: it holds one V4L2 camera and
// publishes its pictures. A camera that is unplugged, busy or silent does not
// end the node: it says so and goes on trying, for the same camera.
package camera

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"tatolab.com/tatolab/datapath"
	"tatolab.com/tatolab/nodes/host"
	"tatolab.com/tatolab/v4l2"
	"tatolab.com/tatolab/v4l2/pixel"
	"tatolab.com/tatolab/v4l2/watch"
)

// Port is the node's one output.
const Port = "video"

const (
	// idleAfter is how long the camera streams on after the last reader.
	idleAfter = 2 * time.Second
	// silentAfter is how long no frame may come before it is said. It is
	// less than the 2 s in which people are promised to be told.
	silentAfter = 1800 * time.Millisecond
	// silentFrames is the same for slow cameras, in frames.
	silentFrames = 3
	// firstFrame is how long a camera may take to deliver its first frame
	// before it is opened again. Some need two or three seconds.
	firstFrame = 5 * time.Second
	// stuckAfter is how long one call of the driver may take before it is said.
	stuckAfter = 2 * time.Second
	// lookInterval is how often things without an event are looked at.
	lookInterval = 500 * time.Millisecond
	// Between attempts to open it, doubling. Frames are to be back within 3 s.
	firstRetry = 100 * time.Millisecond
	lastRetry  = 1500 * time.Millisecond
	// rareLook is how often those things are looked at, and attempts are made,
	// that an event in /dev precedes: a camera that comes, goes, or may be opened.
	rareLook = 30 * time.Second
	// summaryInterval is how often lost frames are told of, at most.
	summaryInterval = time.Minute
)

// config is CameraSourceConfig.
type config struct {
	DeviceID  string  `json:"device_id"`
	MaxWidth  int     `json:"max_width"`
	MaxHeight int     `json:"max_height"`
	FPS       float64 `json:"fps"`
	// Controls of the device by name, as v4l2-ctl writes them; they can be
	// changed while the camera runs.
	Controls map[string]setting `json:"controls"`
}

// setting is the value of a control: a whole number, true or false.
type setting int

func (s *setting) UnmarshalJSON(data []byte) error {
	switch string(data) {
	case "true":
		*s = 1
		return nil
	case "false":
		*s = 0
		return nil
	}
	n, err := strconv.ParseInt(string(data), 10, 32)
	if err != nil {
		return fmt.Errorf("the value of a control is a whole number, true or false, not %s", data)
	}
	*s = setting(n)
	return nil
}

// controls as the driver takes them.
func (c config) controls() map[string]int {
	values := map[string]int{}
	for name, value := range c.Controls {
		values[name] = int(value)
	}
	return values
}

var defaults = config{MaxWidth: 1920, MaxHeight: 1080}

func (c config) check() error {
	err := cmp.Or(
		host.Between("max_width", float64(c.MaxWidth), 1, math.MaxInt32),
		host.Between("max_height", float64(c.MaxHeight), 1, math.MaxInt32),
	)
	if err == nil && c.FPS != 0 { // absent
		err = host.Between("fps", c.FPS, 0.001, 1000)
	}
	return err
}

// node is the camera node. All but the marked fields belong to the goroutine
// of Run.
type node struct {
	host   *host.Host
	config config
	video  *host.Video

	before    *v4l2.Camera // the one in use, once there was one
	condition string       // what the runtime was told last, "" for all is well
	told      string       // with which words

	frames        int          // that the camera has delivered
	passed        pixel.Passed // what became of them
	lost, damaged int          // frames, since the last summary
	summary       time.Time
	ownClock      bool // has been said

	controls map[string]int         // as configured last
	found    map[string]int         // what those set so far were before
	change   atomic.Pointer[change] // what is to become of controls, nil for nothing

	watchdog *time.Timer  // fires when Run hangs
	stuck    atomic.Bool  // it has fired
	devices  *watch.Watch // nil if there can be none

	mu     sync.Mutex
	device *v4l2.Device // guarded by mu; for Wake
}

// Main is `tatolabd camera [DEVICE]`. DEVICE is for people who look at the list
// of processes; what counts is in the spec. `tatolabd camera --list` prints
// the cameras there are, as JSON.
func Main(args []string) int {
	if len(args) > 0 && args[0] == "--list" {
		return list()
	}
	// One goroutine works. Could others use its processor while it waits in the
	// driver, Go's monitor would look for that every 20 µs, for 10 ms.
	runtime.GOMAXPROCS(1)
	n := &node{}
	return host.Main(n, host.Ports{
		Outputs: map[string][]datapath.Format{Port: {datapath.RGBA}},
		Changed: n.wake,
	})
}

// Setup checks the configuration. The camera is opened by Run: that it is not
// there yet must not fail the node.
func (n *node) Setup(h *host.Host) error {
	n.host = h
	n.config = defaults
	if err := h.Config(&n.config); err != nil {
		return err
	}
	n.video = host.NewVideo(h.Output(Port))
	n.controls, n.found = n.config.controls(), map[string]int{}
	return n.config.check()
}

// change is a change of the controls, and who wants to know what came of it.
type change struct {
	controls map[string]int
	done     func(error)
}

// Configure has Run set new controls, at the latest when the camera is there
// again; nothing else changes while the node runs.
func (n *node) Configure(raw json.RawMessage, done func(error)) {
	var c config
	if err := host.Decode(raw, &c); err != nil {
		done(err)
		return
	}
	n.change.Store(&change{c.controls(), done})
	n.wake()
}

// Teardown has nothing to do: Run has closed the device.
func (n *node) Teardown() {}

// wake makes Run look at what has changed. Any goroutine may call it.
func (n *node) wake() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.device != nil {
		n.device.Wake()
	}
}

// use makes d the device that wake wakes; nil for none.
func (n *node) use(d *v4l2.Device) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.device = d
}

// Run holds the camera until ctx is done, opening it again whenever it fails.
func (n *node) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, n.wake)()
	defer n.sum()
	n.summary = time.Now()
	n.watchdog = time.AfterFunc(stuckAfter, n.hangs)
	defer n.watchdog.Stop()
	var err error
	if n.devices, err = watch.New("/dev"); err != nil {
		n.host.Log("info", err.Error()+": it is looked for them instead", nil)
	} else {
		defer n.devices.Close()
	}

	retry := firstRetry
	for {
		worked, err := n.session(ctx)
		if ctx.Err() != nil {
			return nil
		}
		n.report(err)
		if worked {
			retry = firstRetry
		}
		limit := lastRetry
		if n.devices != nil && (errors.Is(err, v4l2.ErrNotFound) || errors.Is(err, v4l2.ErrDenied)) {
			limit = rareLook
		}
		if n.rest(ctx, min(retry, limit)) {
			// What belongs to the change, a stable name or a permission, comes a
			// little later: the attempts begin anew.
			retry = firstRetry
			select {
			case <-ctx.Done():
			case <-time.After(firstRetry):
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		retry = min(2*retry, rareLook)
	}
}

// rest waits for some time, or until ctx is done or the devices there are have
// changed, of which it tells. The watchdog sleeps meanwhile.
func (n *node) rest(ctx context.Context, length time.Duration) (devices bool) {
	n.watchdog.Stop()
	defer n.alive()
	var changed <-chan struct{}
	if n.devices != nil {
		changed = n.devices.Changed
	}
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-changed:
		return true
	}
	return false
}

// errSilent: the camera does not deliver, though its driver reports no error.
var errSilent = errors.New("no frame")

// session opens the camera and publishes until it fails or ctx is done. worked
// tells that it delivered.
func (n *node) session(ctx context.Context) (worked bool, err error) {
	camera, err := v4l2.Find(n.config.DeviceID, n.before)
	if err != nil {
		return false, err
	}
	device, err := v4l2.Open(camera)
	if err != nil {
		return false, err
	}
	defer device.Close()
	n.use(device)
	defer n.use(nil)
	for {
		n.alive()
		delivered, err := n.capture(ctx, device)
		worked = worked || delivered
		switch {
		case errors.Is(err, v4l2.ErrSourceChanged):
			n.host.Log("info", err.Error(), nil)
		case errors.Is(err, v4l2.ErrNoSignal):
			n.report(err)
			// Not every receiver tells of a signal.
			if err := n.idle(device, lastRetry); err != nil && !errors.Is(err, v4l2.ErrSourceChanged) {
				return worked, err
			}
		default:
			return worked, err
		}
		// A signal that comes and goes must not keep a core busy.
		if n.rest(ctx, firstRetry); ctx.Err() != nil {
			return worked, nil
		}
	}
}

// idle waits until something happens to a device that does not stream, but not
// longer than some time. The watchdog sleeps meanwhile.
func (n *node) idle(device *v4l2.Device, length time.Duration) error {
	n.watchdog.Stop()
	defer n.alive()
	err := device.Idle(length)
	if errors.Is(err, v4l2.ErrTimeout) || errors.Is(err, v4l2.ErrWoken) {
		return nil
	}
	return err
}

// capture configures the camera and publishes until it fails, has to be
// configured anew, or ctx is done.
func (n *node) capture(ctx context.Context, device *v4l2.Device) (delivered bool, err error) {
	mode, err := device.Configure(v4l2.Request{MaxWidth: n.config.MaxWidth, MaxHeight: n.config.MaxHeight, FPS: n.config.FPS})
	if err != nil {
		return false, err
	}
	converter, err := pixel.NewConverter(mode.Format)
	if err != nil {
		return false, err
	}
	defer func() {
		n.passed.Add(converter.Passed())
		converter.Close()
	}()
	camera := device.Camera()
	n.before, n.ownClock = &camera, false
	n.remarkOn(mode)

	s := stream{node: n, device: device, mode: mode, converter: converter, picture: host.Picture{
		Width: mode.Width, Height: mode.Height, FPS: mode.Interval.Rate(),
		Colour: datapath.Colour{
			Primaries: uint8(mode.Colour[0]), Transfer: uint8(mode.Colour[1]), Matrix: uint8(mode.Colour[2]), Range: 2,
		},
	}}
	s.fill = func(dst []byte) error { return s.converter.ToRGBA(dst, 4*s.mode.Width, s.frame.Planes...) }
	if !n.host.Active(Port) {
		s.delivers() // as far as can be known
	}
	for ctx.Err() == nil {
		n.alive()
		if err := s.step(ctx); err != nil {
			return s.worked, err
		}
	}
	return s.worked, nil
}

// stream is one opening of the camera.
type stream struct {
	*node
	device    *v4l2.Device
	mode      v4l2.Mode
	converter *pixel.Converter
	picture   host.Picture
	fill      func([]byte) error
	frame     v4l2.Frame // under fill

	streaming bool
	good      time.Time // when the last good frame came, or streaming began
	first     bool      // no good frame has come since then
	read      time.Time // when somebody last read
	worked    bool
	damage    error // of the last frame, nil if it was whole
	set       bool  // this opening has the controls
}

// setControls sets what is to be set. That a control is refused does not stop
// the pictures.
func (s *stream) setControls() {
	if !s.set {
		s.set = true
		if err := s.setTo(s.controls); err != nil {
			s.host.Log("warn", err.Error(), nil)
		}
	}
	if s.change.Load() == nil {
		return
	}
	next := s.change.Swap(nil)
	values := map[string]int{}
	for name, value := range next.controls {
		// What stays as it was is left alone: it may have been refused, which was
		// said, or have been changed by something else meanwhile.
		if before, set := s.controls[name]; !set || before != value {
			values[name] = value
		}
	}
	var back []string // to what they were before they were set
	for name := range s.controls {
		if _, still := next.controls[name]; !still {
			back = append(back, name)
		}
	}
	s.controls = next.controls
	next.done(s.setTo(values, back...))
}

// setTo sets controls to values, and others back to what they were before the
// first time.
func (s *stream) setTo(values map[string]int, back ...string) error {
	if len(values)+len(back) == 0 {
		return nil
	}
	list, err := s.device.Controls()
	if err != nil {
		return err
	}
	for _, c := range list {
		found, known := s.found[c.Name]
		if _, set := values[c.Name]; set && !known {
			s.found[c.Name] = c.Value
		}
		// One that was refused has not changed, and would be refused again.
		if known && found != c.Value && slices.Contains(back, c.Name) {
			values[c.Name] = found
		}
	}
	return s.device.SetControls(values)
}

// step does one round: start or stop as readers want, and one frame.
func (s *stream) step(ctx context.Context) error {
	now := time.Now()
	active := s.host.Active(Port)
	if active {
		s.read = now
	}
	s.setControls()
	switch {
	case active && !s.streaming:
		if err := s.device.Start(); err != nil {
			return err
		}
		s.streaming, s.first, s.good = true, true, now
	case s.streaming && !active && now.Sub(s.read) >= idleAfter:
		s.streaming = false
		return s.device.Stop()
	case !s.streaming:
		if s.stuck.Load() {
			s.delivers() // no frame is going to show it
		}
		if err := s.idle(s.device, rareLook); err != nil {
			return err
		}
		return s.device.Alive()
	}
	var err error
	s.frame, err = s.device.Next(lookInterval)
	switch {
	case err == nil:
		if err := s.deliver(active); err != nil {
			return err
		}
	case !errors.Is(err, v4l2.ErrTimeout) && !errors.Is(err, v4l2.ErrWoken):
		return err
	}
	return s.checkSilence()
}

// deliver publishes the frame in s.frame and gives its buffer back at once.
func (s *stream) deliver(active bool) error {
	s.frames++
	s.lost += s.frame.Lost
	var failed error
	if active {
		s.picture.TimestampNS = s.frame.TimestampNS
		failed = s.video.Publish(s.picture, s.fill)
	}
	if err := s.device.Requeue(s.frame); err != nil {
		return err
	}
	switch {
	case errors.Is(failed, pixel.ErrDamaged):
		s.damaged++
		s.damage = failed
	case failed != nil:
		return failed
	default:
		s.good, s.first, s.worked, s.damage = time.Now(), false, true, nil
		s.delivers()
	}
	if s.device.OwnClock() && !s.ownClock {
		s.ownClock = true
		s.host.Log("info", fmt.Sprintf("the timestamps of %s are not of the present or not in order: the time of arrival is used", s.device.Camera()), nil)
	}
	s.summarise()
	return nil
}

// checkSilence notices that frames have stopped.
func (s *stream) checkSilence() error {
	limit := silentAfter
	if s.mode.Interval.Num > 0 {
		limit = max(limit, time.Duration(silentFrames/s.mode.Interval.Rate()*float64(time.Second)))
	}
	silent := time.Since(s.good)
	if silent < limit {
		return nil
	}
	err := fmt.Errorf("%w from %s for %v", errSilent, s.device.Camera(), silent.Round(100*time.Millisecond))
	if s.damage != nil {
		err = fmt.Errorf("%w that is whole: the last is a %v", err, s.damage)
	}
	if s.first && silent < max(limit, firstFrame) {
		s.report(err) // but wait for it
		return nil
	}
	return err
}

// delivers tells that all is well, once.
func (s *stream) delivers() {
	if stuck := s.stuck.Swap(false); s.condition == "" && !stuck {
		return
	}
	s.host.Log("info", fmt.Sprintf("camera is back: %s", s.device.Camera()), nil)
	s.condition, s.told = "", ""
	s.host.Delivers(s.mode.String())
}

// remarkOn shows what the camera has been set to, and says where that is not
// what was asked for.
func (n *node) remarkOn(mode v4l2.Mode) {
	if n.condition == "" {
		n.host.Delivers(mode.String())
		n.host.Log("info", fmt.Sprintf("camera %s delivers %s", n.before, mode), nil)
	}
	rate := mode.Interval.Rate()
	switch want := n.config.FPS; {
	case want == 0:
	case !mode.RateControl:
		n.host.Log("info", fmt.Sprintf("%s has no control of its frame rate: fps %v is not applied", n.before, want), nil)
	case math.Abs(rate-want) > 0.01*want:
		n.host.Log("info", fmt.Sprintf("%s gives %.4g frames a second, not %v", n.before, rate, want), nil)
	}
	if mode.Width > n.config.MaxWidth || mode.Height > n.config.MaxHeight {
		n.host.Log("warn", fmt.Sprintf("%s gives %dx%d, though at most %dx%d was asked for", n.before, mode.Width, mode.Height, n.config.MaxWidth, n.config.MaxHeight), nil)
	}
}

// report tells the runtime, which logs it, why there are no pictures: once for
// each change of state, not for each attempt.
func (n *node) report(err error) {
	condition, message := "failed", "camera failed: "+err.Error()
	var busy *v4l2.BusyError
	switch {
	case errors.As(err, &busy):
		condition, message = "busy", "camera busy: "+err.Error()
		for _, h := range busy.Holders {
			if node := ownNode(h.PID); node != "" {
				message = fmt.Sprintf("camera busy: %s (%s) is held by %s: read %s/%s instead (remote_output), once it is exposed", busy.Path, busy.Card, node, node, Port)
			}
		}
	case errors.Is(err, v4l2.ErrDenied):
		condition, message = "denied", "camera not permitted: "+err.Error()
	case errors.Is(err, v4l2.ErrNoSignal):
		condition, message = "no-signal", "camera has "+err.Error()
	case errors.Is(err, v4l2.ErrNotFound) && n.before == nil:
		condition, message = "missing", "camera "+err.Error()
	case errors.Is(err, v4l2.ErrGone), errors.Is(err, errSilent), n.before != nil:
		condition, message = "lost", "camera lost: "+err.Error()
	}
	// What follows the loss of a camera, that it is not found, is the same state;
	// but the driver that did not answer has answered.
	stuck := n.stuck.Swap(false)
	if !stuck && condition == n.condition && (condition == "lost" || message == n.told) {
		return
	}
	n.condition, n.told = condition, message
	n.host.Waiting(condition, message)
}

// summarise tells of frames that went missing, now and then.
func (n *node) summarise() {
	if n.lost+n.damaged == 0 || time.Since(n.summary) < summaryInterval {
		return
	}
	n.host.Log("warn", "frames of the camera were lost", map[string]any{"lost": n.lost, "damaged": n.damaged})
	n.lost, n.damaged, n.summary = 0, 0, time.Now()
}

// sum writes down what was done, for who looks for what becomes of frames: however
// many readers there are, each picture published is one pass over its pixels.
func (n *node) sum() {
	n.host.Log("debug", "frames of the camera, in all", map[string]any{
		"frames": n.frames, "published": n.host.Output(Port).Sequence(),
		"converted": n.passed.Pictures, "bytes_read": n.passed.Read, "bytes_written": n.passed.Written,
	})
}

// alive puts the watchdog off.
func (n *node) alive() { n.watchdog.Reset(stuckAfter) }

// hangs tells that Run hangs in the driver, from where nothing can bring it back.
// Run itself reports when it is back: told first, marked then, so that this is
// not the later of the two; and woken, in case it was back already.
func (n *node) hangs() {
	n.host.Waiting("stuck", fmt.Sprintf("camera lost: its driver has not answered for %v", stuckAfter))
	n.stuck.Store(true)
	n.wake()
}
