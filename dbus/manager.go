package dbus

import (
	"context"

	godbus "github.com/godbus/dbus/v5"

	"tatolab.com/tatolab/service/api"
)

// manager is com.tatolab.Runtime1.Manager and org.freedesktop.DBus.ObjectManager.
type manager struct{ s *session }

// GetManagedObjects lists the streams. Signals that were due come before it, so
// that who subscribed first knows everything.
func (m *manager) GetManagedObjects() (map[godbus.ObjectPath]map[string]map[string]godbus.Variant, *godbus.Error) {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	m.s.tellPending()
	objects := map[godbus.ObjectPath]map[string]map[string]godbus.Variant{}
	for name, told := range m.s.known {
		objects[pathOf(name)] = told.interfaces()
	}
	return objects, nil
}

// RunStream replies when the stream is loaded or refused. Calls run beside one another,
// so nobody else waits for it.
func (m *manager) RunStream(sender godbus.Sender, project, target string, given map[string]godbus.Variant) (godbus.ObjectPath, *godbus.Error) {
	req := api.Load{Project: project, Target: target}
	o := readOptions(given)
	o.take("name", &req.Name)
	o.take("file", &req.File)
	o.take("keep", &req.Keep)
	o.take("env", &req.Env)
	if err := o.check(); err != nil {
		return "", err
	}
	if !m.s.begin() {
		return "", leaving()
	}
	defer m.s.work.Done()
	var name string
	var err error
	if req.Keep {
		var done *api.Done
		if done, err = m.s.bus.service.Keep(m.s.bus.ctx, req); err == nil {
			name = done.Stream.Name
		}
	} else {
		name, err = m.s.attachFor(string(sender), req)
	}
	if err != nil {
		return "", failure(err)
	}
	m.s.announce(name)
	return pathOf(name), nil
}

func (m *manager) GetStream(name string) (godbus.ObjectPath, *godbus.Error) {
	if _, err := m.s.bus.service.Stream(name); err != nil {
		return "", failure(err)
	}
	m.s.announce(name)
	return pathOf(name), nil
}

// Sizes of ListCameras: a(sa(uuad)).
type (
	cameraFormat struct {
		FourCC string
		Sizes  []cameraSize
	}
	cameraSize struct {
		Width, Height uint32
		Rates         []float64
	}
)

func (m *manager) ListCameras() ([]map[string]godbus.Variant, *godbus.Error) {
	cameras, err := m.s.bus.service.Cameras()
	if err != nil {
		return nil, failure(err)
	}
	list := []map[string]godbus.Variant{}
	for _, c := range cameras {
		formats := []cameraFormat{}
		for _, f := range c.Formats {
			format := cameraFormat{text(f.FourCC), []cameraSize{}}
			for _, size := range f.Sizes {
				rates := append([]float64{}, size.Rates...)
				format.Sizes = append(format.Sizes, cameraSize{uint32(size.Width), uint32(size.Height), rates})
			}
			formats = append(formats, format)
		}
		list = append(list, map[string]godbus.Variant{
			"id": variant(c.ID), "path": variant(c.Path), "card": variant(c.Card), "driver": variant(c.Driver),
			"bus": variant(c.Bus), "holder": variant(c.Holder), "error": variant(c.Error),
			"formats": godbus.MakeVariant(formats),
		})
	}
	return list, nil
}

func (m *manager) Reload() *godbus.Error {
	return failure(m.s.bus.service.ReloadConfig())
}

// managerProperties is org.freedesktop.DBus.Properties of the manager's object.
type managerProperties struct{ s *session }

func (p managerProperties) all() map[string]godbus.Variant {
	release, socket := p.s.bus.service.About()
	return map[string]godbus.Variant{"Version": variant(release), "LocalApiSocket": variant(socket)}
}

func (p managerProperties) Get(iface, name string) (godbus.Variant, *godbus.Error) {
	return get(managerInterface, p.all(), iface, name)
}

func (p managerProperties) GetAll(iface string) (map[string]godbus.Variant, *godbus.Error) {
	return getAll(managerInterface, p.all(), iface)
}

func (p managerProperties) Set(iface, name string, _ godbus.Variant) *godbus.Error {
	return set(managerInterface, p.all(), iface, name)
}

// managerIntrospection is org.freedesktop.DBus.Introspectable of the manager's object.
type managerIntrospection struct{}

func (managerIntrospection) Introspect() (string, *godbus.Error) {
	xml, err := describeManager()
	return xml, failure(err)
}

// attachFor loads an attached stream for a client, and keeps watch: the stream
// goes when the client leaves the bus, and at the end of the session.
func (s *session) attachFor(sender string, req api.Load) (name string, err error) {
	client, release, err := s.watch(sender)
	if err != nil {
		return "", err
	}
	attachment, err := s.bus.attach(client.ctx, req)
	if err == nil {
		name, err = loaded(client.ctx, attachment)
		if err != nil {
			attachment.Close()
		}
	}
	if err != nil {
		release()
		return "", err
	}
	// The caller of attachFor counts as work, so the session has not ended.
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		defer release()
		defer attachment.Close()
		for {
			select {
			case _, ok := <-attachment.Events():
				// Log records are not for the bus: GetLog has them.
				if !ok {
					return
				}
			case <-client.ctx.Done():
				return
			}
		}
	}()
	return name, nil
}

// loaded waits for the first event of an attachment.
func loaded(ctx context.Context, a Attachment) (name string, err error) {
	select {
	case event, ok := <-a.Events():
		switch {
		case ok && event.Kind == api.EventLoaded && event.Stream != nil:
			return event.Stream.Name, nil
		case ok && event.Error != nil:
			return "", event.Error
		}
		return "", api.Errorf(api.Unloadable, "the stream ended before it was loaded: %s", event.Message)
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// client is a program on the bus that streams are attached to.
type client struct {
	ctx    context.Context // ends when its name is gone
	cancel context.CancelFunc
	uses   int
}

// watch begins to watch for the end of a client; release ends it. A client
// that left before is noticed too.
func (s *session) watch(sender string) (c *client, release func(), err error) {
	s.clientsMu.Lock()
	c = s.clients[sender]
	if c == nil {
		c = &client{}
		c.ctx, c.cancel = context.WithCancel(s.ctx)
		s.clients[sender] = c
	}
	c.uses++
	s.clientsMu.Unlock()
	match := []godbus.MatchOption{
		godbus.WithMatchSender("org.freedesktop.DBus"), godbus.WithMatchInterface("org.freedesktop.DBus"),
		godbus.WithMatchMember("NameOwnerChanged"), godbus.WithMatchArg(0, sender),
	}
	ctx, cancel := context.WithTimeout(s.ctx, callTimeout)
	defer cancel()
	release = func() {
		// One rule per use: the bus counts them.
		ctx, cancel := context.WithTimeout(s.ctx, callTimeout)
		defer cancel()
		_ = s.conn.RemoveMatchSignalContext(ctx, match...)
		s.clientsMu.Lock()
		defer s.clientsMu.Unlock()
		if c.uses--; c.uses == 0 {
			c.cancel()
			if s.clients[sender] == c {
				delete(s.clients, sender)
			}
		}
	}
	err = s.conn.AddMatchSignalContext(ctx, match...)
	var there bool
	if err == nil {
		err = s.conn.BusObject().CallWithContext(ctx, "org.freedesktop.DBus.NameHasOwner", 0, sender).Store(&there)
	}
	if err == nil && !there {
		err = context.Canceled
	}
	if err != nil {
		release()
		return nil, nil, api.Errorf(api.Unloadable, "cannot attach a stream to %s: %v", sender, err)
	}
	return c, release, nil
}

func (s *session) clientGone(sender string) {
	s.clientsMu.Lock()
	defer s.clientsMu.Unlock()
	if c := s.clients[sender]; c != nil {
		c.cancel()
	}
}
