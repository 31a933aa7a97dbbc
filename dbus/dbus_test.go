package dbus

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	godbus "github.com/godbus/dbus/v5"
	"github.com/godbus/dbus/v5/introspect"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"tatolab.com/tatolab/service/api"
)

const testWait = 20 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// daemon is a bus of the test's own.
type daemon struct {
	t    *testing.T
	path string
	cmd  *exec.Cmd
}

func startDaemon(t *testing.T, path string) *daemon {
	t.Helper()
	if _, err := exec.LookPath("dbus-daemon"); err != nil {
		t.Skip("there is no dbus-daemon here")
	}
	cmd := exec.Command("dbus-daemon", "--session", "--nofork", "--nopidfile", "--address=unix:path="+path)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	d := &daemon{t, path, cmd}
	t.Cleanup(d.stop)
	wait(t, "the bus", func() bool {
		conn, err := net.Dial("unix", path)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return d
}

func (d *daemon) stop() {
	if d.cmd != nil {
		d.cmd.Process.Kill()
		d.cmd.Wait()
		d.cmd = nil
		os.Remove(d.path)
	}
}

func wait(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testWait); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s in vain: %s", testWait, what)
		}
	}
}

// rig is a fake runtime on a bus, and a client of it.
type rig struct {
	t       *testing.T
	daemon  *daemon
	runtime *fake
	bus     *Bus
	*watcher
}

func newRig(t *testing.T) *rig {
	path := filepath.Join(t.TempDir(), "bus")
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path="+path)
	r := &rig{t: t, daemon: startDaemon(t, path), runtime: newFake()}
	r.bus = New(context.Background(), r.runtime, func(message string) { t.Log(message) })
	r.runtime.bus = r.bus
	r.bus.Start()
	t.Cleanup(r.bus.Close)
	if got := r.bus.Status(); got != BusName {
		t.Fatalf("after the start: %s", got)
	}
	r.watcher = newWatcher(t)
	return r
}

// watcher is a client that hears all signals of the runtime.
type watcher struct {
	t       *testing.T
	conn    *godbus.Conn
	signals chan *godbus.Signal
}

func newWatcher(t *testing.T) *watcher {
	t.Helper()
	conn, err := godbus.SessionBusPrivateNoAutoStartup(godbus.WithSignalHandler(godbus.NewSequentialSignalHandler()))
	if err == nil {
		if err = conn.Auth(nil); err == nil {
			err = conn.Hello()
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	w := &watcher{t, conn, make(chan *godbus.Signal, 1000)}
	conn.Signal(w.signals)
	if err := conn.AddMatchSignal(godbus.WithMatchPathNamespace(Path)); err != nil {
		t.Fatal(err)
	}
	return w
}

// next returns the next signal of a member.
func (w *watcher) next(member string) *godbus.Signal {
	w.t.Helper()
	for {
		select {
		case signal := <-w.signals:
			if strings.HasSuffix(signal.Name, "."+member) {
				return signal
			}
		case <-time.After(testWait):
			w.t.Fatalf("no %s came", member)
		}
	}
}

func (w *watcher) call(path godbus.ObjectPath, method string, args ...any) *godbus.Call {
	return w.conn.Object(BusName, path).Call(method, 0, args...)
}

func (w *watcher) run(project string, options map[string]any) (path godbus.ObjectPath, err error) {
	given := map[string]godbus.Variant{}
	for key, value := range options {
		given[key] = godbus.MakeVariant(value)
	}
	err = w.call(Path, managerInterface+".RunStream", project, "", given).Store(&path)
	return path, err
}

func (w *watcher) property(path godbus.ObjectPath, name string) any {
	w.t.Helper()
	v, err := w.conn.Object(BusName, path).GetProperty(streamInterface + "." + name)
	if err != nil {
		w.t.Fatal(err)
	}
	return v.Value()
}

func errorName(err error) string {
	var e godbus.Error
	if errors.As(err, &e) {
		return e.Name
	}
	return fmt.Sprint(err)
}

func TestIntrospectionEqualsTheFiles(t *testing.T) {
	r := newRig(t)
	path, err := r.run("/p", map[string]any{"name": "7.of-9"})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []struct {
		path     godbus.ObjectPath
		file     string
		standard int
		children []string
	}{
		{Path, ManagerXML, 4, []string{"streams"}},
		{StreamsPath, "<node/>", 2, []string{"_37_2eof_2d9"}},
		{path, StreamXML, 3, nil},
	} {
		var want introspect.Node
		if err := xml.Unmarshal([]byte(o.file), &want); err != nil {
			t.Fatal(err)
		}
		got, err := introspect.Call(r.conn.Object(BusName, o.path))
		if err != nil {
			t.Fatal(err)
		}
		standard := 0
		var own []introspect.Interface
		for _, iface := range got.Interfaces {
			if strings.HasPrefix(iface.Name, "org.freedesktop.DBus.") {
				standard++
				continue
			}
			own = append(own, iface)
		}
		if diff := cmp.Diff(want.Interfaces, own); diff != "" {
			t.Errorf("%s differs from its file:\n%s", o.path, diff)
		}
		var children []string
		for _, child := range got.Children {
			children = append(children, child.Name)
		}
		if standard != o.standard || !cmp.Equal(children, o.children) {
			t.Errorf("%s has %d standard interfaces and the children %v", o.path, standard, children)
		}
	}
	// The types of what properties return are those of the file.
	var node introspect.Node
	if err := xml.Unmarshal([]byte(StreamXML), &node); err != nil {
		t.Fatal(err)
	}
	call := r.call(path, propertiesInterface+".GetAll", streamInterface)
	if call.Err != nil {
		t.Fatal(call.Err)
	}
	all := call.Body[0].(map[string]godbus.Variant) // Store would lose the signatures
	for _, p := range node.Interfaces[0].Properties {
		if got := all[p.Name].Signature().String(); got != p.Type {
			t.Errorf("property %s is of type %s, in the file %s", p.Name, got, p.Type)
		}
		delete(all, p.Name)
	}
	if len(all) > 0 {
		t.Errorf("properties that are not in the file: %v", all)
	}
}

func TestAttachedStreamGoesWithItsClient(t *testing.T) {
	r := newRig(t)
	client := newWatcher(t)
	path, err := client.run("/home/you/motion-watcher", map[string]any{
		"name": "front_door", "env": map[string]string{"A": "b"}, "file": "stream.py",
	})
	if err != nil || path != StreamsPath+"/front_5fdoor" {
		t.Fatal(path, err)
	}
	added := r.next("InterfacesAdded")
	var object godbus.ObjectPath
	var interfaces map[string]map[string]godbus.Variant
	if err := godbus.Store(added.Body, &object, &interfaces); err != nil {
		t.Fatal(err)
	}
	if object != path || interfaces[streamInterface]["State"].Value() != "attached" {
		t.Errorf("%s, %v", object, interfaces)
	}
	r.runtime.mu.Lock()
	load := r.runtime.streams[0].load
	r.runtime.mu.Unlock()
	if load.Env["A"] != "b" || load.File != "stream.py" || load.Keep {
		t.Errorf("loaded as %+v", load)
	}
	// A second stream of the same client, stopped by hand: the first stays.
	second, err := client.run("/p", map[string]any{"name": "second"})
	if err != nil {
		t.Fatal(err)
	}
	if err := client.call(second, streamInterface+".Stop").Err; err != nil {
		t.Fatal(err)
	}
	if err := godbus.Store(r.next("InterfacesRemoved").Body, &object, new([]string)); err != nil || object != second {
		t.Error(object, err)
	}
	if got := r.property(path, "State"); got != "attached" {
		t.Errorf("the first stream is %v", got)
	}
	client.conn.Close()
	if err := godbus.Store(r.next("InterfacesRemoved").Body, &object, new([]string)); err != nil || object != path {
		t.Error(object, err)
	}
	if streams := r.runtime.Streams(); len(streams) != 0 {
		t.Errorf("left: %v", streams)
	}
}

func TestClientThatLeavesWhileItsStreamCompiles(t *testing.T) {
	r := newRig(t)
	client := newWatcher(t)
	client.conn.Object(BusName, Path).Go(managerInterface+".RunStream", 0, nil, "/slow", "", map[string]godbus.Variant{})
	wait(t, "the call", func() bool {
		r.bus.mu.Lock()
		s := r.bus.session
		r.bus.mu.Unlock()
		s.clientsMu.Lock()
		defer s.clientsMu.Unlock()
		return len(s.clients) == 1
	})
	// Others are served meanwhile.
	if _, err := r.run("/p", map[string]any{"name": "quick"}); err != nil {
		t.Fatal(err)
	}
	client.conn.Close()
	wait(t, "the end of the compilation", func() bool {
		r.bus.mu.Lock()
		s := r.bus.session
		r.bus.mu.Unlock()
		s.clientsMu.Lock()
		defer s.clientsMu.Unlock()
		return len(s.clients) == 1 // the other one's
	})
	close(r.runtime.compile)
	if streams := r.runtime.Streams(); len(streams) != 1 || streams[0].Name != "quick" {
		t.Errorf("%v", streams)
	}
}

func TestKeptStream(t *testing.T) {
	r := newRig(t)
	client := newWatcher(t)
	path, err := client.run("/p", map[string]any{"keep": true})
	if err != nil {
		t.Fatal(err)
	}
	client.conn.Close()
	changed := func() map[string]godbus.Variant {
		t.Helper()
		signal := r.next("PropertiesChanged")
		var iface string
		var values map[string]godbus.Variant
		if err := godbus.Store(signal.Body, &iface, &values, new([]string)); err != nil {
			t.Fatal(err)
		}
		if signal.Path != path || iface != streamInterface {
			t.Errorf("of %s %s", signal.Path, iface)
		}
		return values
	}
	for _, step := range []struct {
		method string
		state  string
		nodes  uint32
	}{{"Stop", "stopped", 0}, {"Start", "kept", 1}} {
		if err := r.call(path, streamInterface+"."+step.method).Err; err != nil {
			t.Fatal(err)
		}
		values := changed()
		if values["State"].Value() != step.state || values["NodeCount"].Value() != step.nodes || len(values) != 2 {
			t.Errorf("after %s: %v", step.method, values)
		}
		if got := r.property(path, "State"); got != step.state {
			t.Errorf("after %s it is %v", step.method, got)
		}
	}
	if err := r.call(path, streamInterface+".Restart").Err; err != nil {
		t.Fatal(err)
	}
	if err := r.call(path, streamInterface+".Expose", "camera", "video", "public").Err; err != nil {
		t.Fatal(err)
	}
	if values := changed(); fmt.Sprint(values["Exposed"].Value()) != "[[camera video public]]" || len(values) != 1 {
		t.Errorf("after Expose: %v", values)
	}
	if err := r.call(path, streamInterface+".ApplyChanges", `{"remove": ["camera"]}`, map[string]godbus.Variant{}).Err; err != nil {
		t.Fatal(err)
	}
	if values := changed(); values["NodeCount"].Value() != uint32(0) || len(values) != 1 {
		t.Errorf("after ApplyChanges: %v", values)
	}
	// The reply comes after the signal, so the removal is seen by who waits.
	if err := r.call(path, streamInterface+".Remove").Err; err != nil {
		t.Fatal(err)
	}
	r.next("InterfacesRemoved")
	if name := errorName(r.call(path, propertiesInterface+".GetAll", streamInterface).Err); name != unknownObject {
		t.Errorf("a removed stream: %s", name)
	}
	if name := errorName(r.call(path, streamInterface+".Start").Err); name != errorPrefix+"NoSuchStream" {
		t.Errorf("a removed stream: %s", name)
	}
}

func TestManager(t *testing.T) {
	r := newRig(t)
	if _, err := r.run("/p", map[string]any{"name": "a", "keep": true}); err != nil {
		t.Fatal(err)
	}
	var objects map[godbus.ObjectPath]map[string]map[string]godbus.Variant
	if err := r.call(Path, objectManagerInterface+".GetManagedObjects").Store(&objects); err != nil {
		t.Fatal(err)
	}
	if len(objects) != 1 || objects[StreamsPath+"/a"][streamInterface]["Name"].Value() != "a" {
		t.Errorf("%v", objects)
	}
	var path godbus.ObjectPath
	if err := r.call(Path, managerInterface+".GetStream", "a").Store(&path); err != nil || path != StreamsPath+"/a" {
		t.Error(path, err)
	}
	call := r.call(Path, managerInterface+".ListCameras")
	if call.Err != nil {
		t.Fatal(call.Err)
	}
	cameras := call.Body[0].([]map[string]godbus.Variant)
	if cameras[0]["card"].Value() != "Cam\uFFFD" || cameras[0]["formats"].Signature().String() != "a(sa(uuad))" {
		t.Errorf("%v", cameras)
	}
	if err := r.call(Path, managerInterface+".Reload").Err; err != nil {
		t.Error(err)
	}
	r.runtime.mu.Lock()
	if r.runtime.reloads != 1 {
		t.Errorf("%d reloads", r.runtime.reloads)
	}
	r.runtime.mu.Unlock()
	version, err := r.conn.Object(BusName, Path).GetProperty(managerInterface + ".Version")
	if err != nil || version.Value() != "1.2.3" {
		t.Error(version, err)
	}
}

func TestLogAndStatistics(t *testing.T) {
	r := newRig(t)
	path, err := r.run("/p", nil)
	if err != nil {
		t.Fatal(err)
	}
	var records []map[string]godbus.Variant
	if err := r.call(path, streamInterface+".GetLog", map[string]godbus.Variant{}).Store(&records); err != nil {
		t.Fatal(err)
	}
	if len(records) != 2 || records[1]["message"].Value() != "broken \uFFFD\uFFFD text" {
		t.Fatalf("%v", records)
	}
	fields := records[1]["fields"].Value().(map[string]godbus.Variant)
	if fields["frames"].Value() != int64(7) || fields["card"].Value() != "a\uFFFDb" || fields["list"].Value() != "[1,2]" {
		t.Errorf("%v", fields)
	}
	// Every integer type will do.
	for _, last := range []any{uint32(1), int32(1), int64(1), uint64(1), byte(1)} {
		given := map[string]godbus.Variant{"last": godbus.MakeVariant(last)}
		if err := r.call(path, streamInterface+".GetLog", given).Store(&records); err != nil || len(records) != 1 {
			t.Errorf("last as %T: %d records, %v", last, len(records), err)
		}
	}
	var figures map[string]godbus.Variant
	if err := r.call(path, streamInterface+".GetStatistics").Store(&figures); err != nil {
		t.Fatal(err)
	}
	nodes := figures["nodes"].Value().(map[string]godbus.Variant)
	camera := nodes["camera"].Value().(map[string]godbus.Variant)
	if figures["cpu_ms"].Value() != int64(250) || camera["pid"].Value() != uint32(4711) {
		t.Errorf("%v", figures)
	}
	links := figures["links"].Value().([]map[string]godbus.Variant)
	if links[0]["source"].Value() != "other/detector/motion" || links[0]["target"].Value() != "camera/trigger" {
		t.Errorf("%v", links)
	}
	var g struct {
		Nodes []struct{ Name, State, Type string }
		Links []struct{ State, Reason string }
	}
	if err := json.Unmarshal([]byte(r.property(path, "Graph").(string)), &g); err != nil {
		t.Fatal(err)
	}
	if len(g.Nodes) != 1 || g.Nodes[0].Name != "camera" || g.Nodes[0].State != "running" || g.Links[0].State != "awaiting_remote" {
		t.Errorf("%+v", g)
	}
	for _, figure := range []string{"sent", "rate", "pid", "cpu_ms"} {
		if strings.Contains(r.property(path, "Graph").(string), `"`+figure+`"`) {
			t.Errorf("the graph carries the figure %s", figure)
		}
	}
}

func TestErrors(t *testing.T) {
	r := newRig(t)
	path, err := r.run("/p", map[string]any{"name": "a"})
	if err != nil {
		t.Fatal(err)
	}
	for code := range ours {
		_, err := r.run("/projects/"+string(code), nil)
		if errorName(err) != errorPrefix+string(code) || !strings.HasSuffix(err.Error(), "\ntry another") {
			t.Errorf("%s comes as %s: %v", code, errorName(err), err)
		}
	}
	none := map[string]godbus.Variant{}
	given := func(key string, value any) map[string]godbus.Variant {
		return map[string]godbus.Variant{key: godbus.MakeVariant(value)}
	}
	for _, wrong := range []struct {
		path   godbus.ObjectPath
		method string
		args   []any
		want   string
	}{
		{Path, managerInterface + ".RunStream", []any{"/p", "", given("kept", true)}, invalidArgs},
		{Path, managerInterface + ".RunStream", []any{"/p", "", given("keep", "yes")}, invalidArgs},
		{Path, managerInterface + ".RunStream", []any{"/p"}, invalidArgs},
		{Path, managerInterface + ".GetStream", []any{"nobody"}, errorPrefix + "NoSuchStream"},
		{Path, propertiesInterface + ".Get", []any{managerInterface, "Colour"}, unknownProperty},
		{Path, propertiesInterface + ".Get", []any{"com.example", "Version"}, unknownInterface},
		{Path, propertiesInterface + ".Set", []any{managerInterface, "Version", godbus.MakeVariant("2")}, propertyReadOnly},
		{path, propertiesInterface + ".Set", []any{streamInterface, "State", godbus.MakeVariant("kept")}, propertyReadOnly},
		{path, streamInterface + ".Expose", []any{"nobody", "video", "public"}, errorPrefix + "NoSuchPort"},
		{path, streamInterface + ".GetLog", []any{given("last", 0)}, invalidArgs},
		{path, streamInterface + ".ApplyChanges", []any{"[]", none}, invalidArgs},
		{path, streamInterface + ".ApplyChanges", []any{"{}", given("force", true)}, invalidArgs},
		{StreamsPath, streamInterface + ".Stop", nil, unknownObject},
		{StreamsPath + "/a/b", streamInterface + ".Stop", nil, unknownObject},
		{StreamsPath + "/_", streamInterface + ".Stop", nil, unknownObject},
		{StreamsPath + "/_61", streamInterface + ".Stop", nil, unknownObject}, // "a", escaped without need
		{StreamsPath + "/nobody", introspectInterface + ".Introspect", nil, unknownObject},
	} {
		err := r.call(wrong.path, wrong.method, wrong.args...).Err
		if errorName(err) != wrong.want {
			t.Errorf("%s %s %v: %s (%v), want %s", wrong.path, wrong.method, wrong.args, errorName(err), err, wrong.want)
		}
	}
	if got := r.property(path, "State"); got != "attached" {
		t.Errorf("after all that it is %v", got)
	}
}

func TestPathsAreThoseOfSystemd(t *testing.T) {
	for name, label := range map[string]string{
		"garage": "garage", "motion_watcher": "motion_5fwatcher", "7of9": "_37of9", "a-b.c~d": "a_2db_2ec_7ed", "a1": "a1",
	} {
		path := pathOf(name)
		if string(path) != StreamsPath+"/"+label || !path.IsValid() {
			t.Errorf("%s is at %s", name, path)
		}
		if back, ok := nameOf(path); !ok || back != name {
			t.Errorf("%s leads to %q", path, back)
		}
	}
}

// A thousand changes a second must not become a thousand signals, and the last
// value must arrive.
func TestFloodOfChanges(t *testing.T) {
	r := newRig(t)
	path, err := r.run("/p", map[string]any{"keep": true})
	if err != nil {
		t.Fatal(err)
	}
	const changes = 2000
	began := time.Now()
	for i := range changes {
		if _, err := r.runtime.change("motion_watcher", func(s *fakeStream) {
			s.Reason = fmt.Sprint(i)
			s.graph.Nodes[0].Reason = fmt.Sprint(i)
		}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
	changed := time.Now()
	last, value, graphs := time.Time{}, "", 0
	signals := 0
	for value != fmt.Sprint(changes-1) || time.Since(last) < graphInterval+changeInterval {
		select {
		case signal := <-r.signals:
			if !strings.HasSuffix(signal.Name, ".PropertiesChanged") {
				continue
			}
			signals, last = signals+1, time.Now()
			var values map[string]godbus.Variant
			var invalidated []string
			if err := godbus.Store(signal.Body, new(string), &values, &invalidated); err != nil {
				t.Fatal(err)
			}
			if v, ok := values["FailedReason"]; ok {
				value = v.Value().(string)
			}
			if len(invalidated) == 1 && invalidated[0] == "Graph" {
				graphs++
			}
		case <-time.After(graphInterval + 2*changeInterval):
			if value != fmt.Sprint(changes-1) && time.Since(changed) > testWait {
				t.Fatalf("the last value told is %q", value)
			}
		}
	}
	took := time.Since(began)
	if most := int(took/changeInterval) + 2; signals > most {
		t.Errorf("%d signals in %s", signals, took)
	}
	if most := int(took/graphInterval) + 1; graphs > most || graphs == 0 {
		t.Errorf("the graph was invalidated %d times in %s", graphs, took)
	}
	if !strings.Contains(r.property(path, "Graph").(string), fmt.Sprintf(`"reason":"%d"`, changes-1)) {
		t.Error("the graph is an old one")
	}
}

func TestStreamThatIsReplacedBetweenTwoSignals(t *testing.T) {
	r := newRig(t)
	if _, err := r.run("/p", map[string]any{"keep": true}); err != nil {
		t.Fatal(err)
	}
	r.next("InterfacesAdded")
	r.runtime.remove("motion_watcher")
	if _, err := r.runtime.Keep(t.Context(), api.Load{Project: "/q"}); err != nil {
		t.Fatal(err)
	}
	r.next("InterfacesRemoved")
	r.next("InterfacesAdded")
}

func TestBusLostAndBack(t *testing.T) {
	r := newRig(t)
	if _, err := r.run("/p", map[string]any{"name": "kept", "keep": true}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.run("/p", map[string]any{"name": "attached"}); err != nil {
		t.Fatal(err)
	}
	r.daemon.stop()
	wait(t, "that the loss is noticed", func() bool { return r.bus.Status() != BusName })
	wait(t, "the end of the attached stream", func() bool { return len(r.runtime.Streams()) == 1 })
	if _, err := r.runtime.Stop(t.Context(), "kept"); err != nil {
		t.Fatal(err)
	}
	startDaemon(t, r.daemon.path)
	wait(t, "the name", func() bool { return r.bus.Status() == BusName })
	w := newWatcher(t)
	if got := w.property(StreamsPath+"/kept", "State"); got != "stopped" {
		t.Errorf("it is %v", got)
	}
	if err := w.call(StreamsPath+"/kept", streamInterface+".Start").Err; err != nil {
		t.Fatal(err)
	}
	w.next("PropertiesChanged")
}

func TestNoBus(t *testing.T) {
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", "")
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	b := New(t.Context(), newFake(), func(string) {})
	b.Start()
	if status := b.Status(); !strings.Contains(status, "there is no session bus") {
		t.Error(status)
	}
	b.Close()
}

func TestNameTaken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bus")
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path="+path)
	startDaemon(t, path)
	other := newWatcher(t)
	if _, err := other.conn.RequestName(BusName, 0); err != nil {
		t.Fatal(err)
	}
	b := New(t.Context(), newFake(), func(string) {})
	b.Start()
	defer b.Close()
	if status := b.Status(); !strings.Contains(status, fmt.Sprintf("taken by pid %d", os.Getpid())) {
		t.Error(status)
	}
	other.conn.Close()
	wait(t, "the free name", func() bool { return b.Status() == BusName })
}

// A bus that is stopped must not stop the runtime, nor its end.
func TestStoppedBus(t *testing.T) {
	r := newRig(t)
	if _, err := r.run("/p", map[string]any{"keep": true}); err != nil {
		t.Fatal(err)
	}
	if err := r.daemon.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer r.daemon.cmd.Process.Signal(syscall.SIGCONT)
	// More than a socket takes.
	long := strings.Repeat("x", 1<<20)
	for i := range 20 {
		if _, err := r.runtime.change("motion_watcher", func(s *fakeStream) { s.Reason = fmt.Sprint(long, i) }); err != nil {
			t.Fatal(err)
		}
		time.Sleep(changeInterval / 5)
	}
	closed := make(chan struct{})
	go func() {
		r.bus.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(testWait):
		t.Fatal("Close hangs with the bus")
	}
}

// Other people's clients.
func TestForeignClients(t *testing.T) {
	r := newRig(t)
	client := func(name string, args ...string) string {
		t.Helper()
		if _, err := exec.LookPath(name); err != nil {
			t.Skip(err)
		}
		out, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	address := "--address=" + os.Getenv("DBUS_SESSION_BUS_ADDRESS")
	out := client("busctl", address, "call", BusName, Path, managerInterface, "RunStream", "ssa{sv}", "/p", "", "2", "keep", "b", "true", "name", "s", "by-busctl")
	if out != "o \"/com/tatolab/Runtime1/streams/by_2dbusctl\"\n" {
		t.Error(out)
	}
	out = client("busctl", address, "tree", BusName)
	if !strings.Contains(out, StreamsPath+"/by_2dbusctl") {
		t.Error(out)
	}
	out = client("busctl", address, "introspect", BusName, StreamsPath+"/by_2dbusctl")
	for _, want := range []string{".GetLog", ".State", `"kept"`, "emits-invalidation", "const"} {
		if !strings.Contains(out, want) {
			t.Errorf("introspect shows no %s:\n%s", want, out)
		}
	}
	client("busctl", address, "call", BusName, StreamsPath+"/by_2dbusctl", streamInterface, "Stop")
	out = client("busctl", address, "get-property", BusName, StreamsPath+"/by_2dbusctl", streamInterface, "State")
	if out != "s \"stopped\"\n" {
		t.Error(out)
	}
	out = client("gdbus", "call", "--session", "--dest", BusName, "--object-path", Path, "--method", objectManagerInterface+".GetManagedObjects")
	if !strings.Contains(out, "'State': <'stopped'>") {
		t.Error(out)
	}
	client("gdbus", "call", "--session", "--dest", BusName, "--object-path", StreamsPath+"/by_2dbusctl", "--method", streamInterface+".Remove")
	if streams := r.runtime.Streams(); len(streams) != 0 {
		t.Errorf("%v", streams)
	}
}
