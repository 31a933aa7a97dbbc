package host_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/datapath"
	"tatolab.com/tatolab/nodes/host"
	"tatolab.com/tatolab/nodes/host/hosttest"
	"tatolab.com/tatolab/service/control"
)

// relay is a node that publishes what it reads, and misbehaves on request.
type relay struct {
	host   *host.Host
	config struct {
		FailSetup bool `json:"fail_setup"`
		FailRun   bool `json:"fail_run"`
		EndRun    bool `json:"end_run"`
		Stuck     bool `json:"stuck"`
		Say       int  `json:"say"` // characters
	}
}

func (r *relay) Setup(h *host.Host) error {
	r.host = h
	if err := h.Config(&r.config); err != nil {
		return err
	}
	if r.config.FailSetup {
		return errors.New("no setup today")
	}
	return nil
}

func (r *relay) Run(ctx context.Context) error {
	switch {
	case r.config.FailRun:
		return errors.New("ran into a wall")
	case r.config.EndRun:
		return nil
	case r.config.Stuck:
		select {}
	}
	if long := strings.Repeat("x", r.config.Say); long != "" {
		r.host.Log("info", long, nil)
		r.host.Log("info", "it was said", nil)
		r.host.Waiting("long", long)
	}
	var bag datapath.Bag
	for ctx.Err() == nil {
		r.host.Wait(time.Second)
		for !r.host.Paused() && r.host.Input("in").Read(&bag) {
			if _, err := r.host.Output("out").Publish(bag.Data, bag.Timestamp); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *relay) Teardown() { r.host.Log("info", "torn down", map[string]any{"well": true}) }

// The test binary is the node's process too.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "relay" {
		os.Exit(host.Main(&relay{}, host.Ports{
			Outputs: map[string][]datapath.Format{"out": nil},
			Inputs:  map[string][]datapath.Format{"in": nil},
		}))
	}
	os.Exit(m.Run())
}

func spec() control.Spec {
	return control.Spec{
		Instance: "s/relay#1", Stream: "s", Node: "relay", Type: "test:Relay",
		Inputs: []control.Input{{Port: "in", Profile: "ordered"}}, Outputs: []string{"out"},
	}
}

func prepare(t *testing.T, s control.Spec, config map[string]any) *hosttest.Process {
	return hosttest.Prepare(t, s, config, os.Args[0], "relay")
}

// feed joins an output of the test's to the node's input.
func feed(p *hosttest.Process, id uint64) *datapath.Output {
	p.Helper()
	o, err := datapath.NewOutput(datapath.OutputOptions{Owner: "test/source/out"})
	p.Must(err)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	p.Must(err)
	theirs := os.NewFile(uintptr(pair[0]), "link")
	p.Tell(&control.Message{Kind: control.Link, ID: id, Port: "in", Name: "source/out", Direction: control.In, Profile: "ordered", File: theirs})
	theirs.Close()
	p.Must(o.AddLink(id, os.NewFile(uintptr(pair[1]), "link")))
	for deadline := time.Now().Add(hosttest.Patience); o.Readers() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			p.Fatal("the node does not join its link: ", p.Transcript())
		}
	}
	return o
}

// A reader that was linked before start and does not join is waited for, and
// not for ever.
func TestReadersAreAwaited(t *testing.T) {
	p := prepare(t, spec(), nil)
	p.Launch((*exec.Cmd).Start)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	p.Must(err)
	theirs := os.NewFile(uintptr(pair[0]), "link")
	defer unix.Close(pair[1])
	p.Tell(&control.Message{Kind: control.Link, ID: 100, Port: "out", Name: "relay/out", Direction: control.Out, File: theirs})
	theirs.Close()
	p.Tell(&control.Message{Kind: control.Start})
	p.Said("1 readers have not joined within 2s: they miss the first bags")
	out := p.Link("out", datapath.Ordered)
	source := feed(p, 101)
	flow(p, source)
	if _, err := source.Publish(bag(7), datapath.Now()); err != nil {
		t.Fatal(err)
	}
	if got := p.Frame().Bag["n"]; got != int64(7) {
		t.Errorf("sent 7, got %v", got)
	}
	source.Close()
	p.Unlink(out)
	p.Stop()
}

// flow waits until what goes into the node comes out: a bag that it publishes
// before its reader has joined is nobody's.
func flow(p *hosttest.Process, source *datapath.Output) {
	p.Helper()
	publish := func(n byte) {
		_, err := source.Publish(bag(n), datapath.Now())
		p.Must(err)
	}
	for deadline := time.Now().Add(hosttest.Patience); ; {
		publish(0)
		if p.Next(100*time.Millisecond) != nil {
			break
		}
		if time.Now().After(deadline) {
			p.Fatal("nothing comes out: ", p.Transcript())
		}
	}
	for publish(1); p.Frame().Bag["n"] != int64(1); {
	}
}

// bag is the msgpack map {"n": n}.
func bag(n byte) []byte { return []byte{0x81, 0xa1, 'n', n} }

// Links on both sides, told of as the protocol wants; unlinked, lost, paused.
func TestLinks(t *testing.T) {
	p := prepare(t, spec(), nil)
	p.Start((*exec.Cmd).Start)
	if m := p.AwaitKind(control.Hello); m.Protocol != control.Protocol || m.PID != p.Cmd.Process.Pid {
		t.Errorf("hello of protocol %d, pid %d", m.Protocol, m.PID)
	}
	out := p.Link("out", datapath.Ordered)
	source := feed(p, 100)
	if m := p.AwaitKind(control.Page); m.ID != 100 {
		t.Errorf("the page is of link %d", m.ID)
	}
	flow(p, source)
	pass := func(n byte) {
		t.Helper()
		if _, err := source.Publish(bag(n), datapath.Now()); err != nil {
			t.Fatal(err)
		}
		if got := p.Frame().Bag["n"]; got != int64(n) {
			t.Errorf("sent %d, got %v", n, got)
		}
	}
	for n := range byte(10) {
		pass(n)
	}
	if m := p.AwaitKind(control.Ring); m.Port != "out" {
		t.Errorf("the ring is of port %q", m.Port)
	}

	p.Tell(&control.Message{Kind: control.Pause})
	p.Tell(&control.Message{Kind: control.Unlink, ID: 42}) // is answered after the pause
	p.Await("unlinked 42, which never was", func(m *control.Message) bool { return m.Kind == control.Unlinked && m.ID == 42 })
	if _, err := source.Publish(bag(11), datapath.Now()); err != nil {
		t.Fatal(err)
	}
	if f := p.Next(300 * time.Millisecond); f != nil {
		t.Error("a paused node works")
	}
	p.Tell(&control.Message{Kind: control.Resume})
	if got := p.Frame().Bag["n"]; got != int64(11) {
		t.Errorf("after the pause comes %v", got)
	}

	source.Close() // its producer dies
	if m := p.AwaitKind(control.Lost); m.ID != 100 {
		t.Errorf("link %d was lost", m.ID)
	}
	source = feed(p, 101)
	pass(12)
	p.Tell(&control.Message{Kind: control.Unlink, ID: 101})
	p.Await("unlinked 101", func(m *control.Message) bool { return m.Kind == control.Unlinked && m.ID == 101 })
	p.Tell(&control.Message{Kind: control.Unlink, ID: 4711})
	p.Await("unlinked 4711, which never was", func(m *control.Message) bool { return m.Kind == control.Unlinked && m.ID == 4711 })
	source.Close()
	p.Unlink(out)

	p.Tell(&control.Message{Kind: "of the future", Name: "x"})
	p.Tell(&control.Message{Kind: control.Link, ID: 9, Port: "nowhere", Name: "a/b", Direction: control.In, File: os.Stdin})
	p.Said(`cannot join link a/b: there is no port "nowhere"`)
	p.Stop()
	for _, kind := range []string{control.Stopping, control.Stopped} {
		p.AwaitKind(kind)
	}
	if m := p.Said("torn down"); m.Fields["well"] != true || m.TimeNS == 0 {
		t.Errorf("the record is %+v", m)
	}
}

// What ends a node otherwise than by stop.
func TestEnds(t *testing.T) {
	exit := func(p *hosttest.Process) int {
		t.Helper()
		select {
		case err := <-p.Exited:
			p.Exited <- err
			return p.Cmd.ProcessState.ExitCode()
		case <-time.After(hosttest.Patience):
			t.Fatal("it does not end: ", p.Transcript())
			return 0
		}
	}
	expect := func(p *hosttest.Process, kind, phase, says string, status int) {
		t.Helper()
		m := p.AwaitKind(kind)
		if got := exit(p); m.Phase != phase || !strings.Contains(m.Message, says) || got != status {
			t.Errorf("%s in %q: %q, exit %d, want %q in %q and %d", kind, m.Phase, m.Message, got, says, phase, status)
		}
	}
	t.Run("setup fails", func(t *testing.T) {
		p := prepare(t, spec(), map[string]any{"fail_setup": true})
		p.Launch((*exec.Cmd).Start)
		p.Tell(&control.Message{Kind: control.Start})
		expect(p, control.Failed, "setup", "no setup today", 1)
	})
	t.Run("run fails", func(t *testing.T) {
		p := prepare(t, spec(), map[string]any{"fail_run": true})
		p.Start((*exec.Cmd).Start)
		expect(p, control.Error, "process", "ran into a wall", 1)
		p.Said("torn down")
	})
	t.Run("run ends of its own will", func(t *testing.T) {
		p := prepare(t, spec(), map[string]any{"end_run": true})
		p.Start((*exec.Cmd).Start)
		expect(p, control.Stopped, "", "", 0)
	})
	t.Run("stuck", func(t *testing.T) {
		p := prepare(t, spec(), map[string]any{"stuck": true})
		p.Start((*exec.Cmd).Start)
		p.Tell(&control.Message{Kind: control.Stop})
		if status := exit(p); status != 4 {
			t.Errorf("exit %d", status)
		}
	})
	t.Run("what it has to say cannot be sent", func(t *testing.T) {
		p := prepare(t, spec(), map[string]any{"say": 10000})
		// The least that a socket can have: some 4 KiB.
		p.Must(unix.SetsockoptInt(int(p.Cmd.ExtraFiles[0].Fd()), unix.SOL_SOCKET, unix.SO_SNDBUF, 1))
		p.Start((*exec.Cmd).Start)
		p.Said("it was said") // a record more or less does not matter
		if status := exit(p); status != 1 {
			t.Errorf("exit %d", status)
		}
		lines := strings.Split(p.Output(), "\n")
		if len(lines) < 2 || !strings.HasSuffix(lines[0], "xxx (cannot send log: message too long)") || lines[1] != "cannot send condition: message too long" {
			t.Errorf("it printed %s", p.Output())
		}
	})
	t.Run("stop before start", func(t *testing.T) {
		p := prepare(t, spec(), nil)
		p.Launch((*exec.Cmd).Start)
		p.AwaitKind(control.Loaded)
		p.Stop()
		p.AwaitKind(control.Stopped)
	})
	t.Run("the runtime dies", func(t *testing.T) {
		p := prepare(t, spec(), nil)
		p.Start((*exec.Cmd).Start)
		p.Hangup()
		if status := exit(p); status != 3 {
			t.Errorf("exit %d", status)
		}
	})
	t.Run("another build", func(t *testing.T) {
		s := spec()
		s.Build = "9.9.9+other"
		p := prepare(t, s, nil)
		p.Launch((*exec.Cmd).Start)
		if m := p.AwaitKind(control.Hello); m.Build == s.Build {
			t.Error("it lies about its build")
		}
		if status := exit(p); status != 2 || !strings.Contains(p.Output(), "9.9.9+other") {
			t.Errorf("exit %d, and it printed %s", status, p.Output())
		}
	})
	t.Run("a port it does not have", func(t *testing.T) {
		s := spec()
		s.Outputs = []string{"sideways"}
		p := prepare(t, s, nil)
		p.Launch((*exec.Cmd).Start)
		expect(p, control.Failed, "load", `no output "sideways"`, 1)
	})
	t.Run("by hand", func(t *testing.T) {
		out, err := exec.Command(os.Args[0], "relay").CombinedOutput()
		if err == nil || !strings.Contains(string(out), "started by tatolabd") {
			t.Errorf("%v: %s", err, out)
		}
	})
}
