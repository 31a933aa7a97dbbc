package dbus

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	systemdbus "github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/graph"
)

// Limits of GetLog. The bus ends a connection that sends more than 128 MiB.
const (
	defaultRecords = 1000
	maxLogBytes    = 16 << 20
)

// streams is com.tatolab.Runtime1.Stream of every stream: which one is in the
// path of the message.
type streams struct{ s *session }

// target is the stream a call is for.
func (s *session) target(msg godbus.Message) (string, *godbus.Error) {
	path, _ := msg.Headers[godbus.FieldPath].Value().(godbus.ObjectPath)
	if name, ok := nameOf(path); ok {
		return name, nil
	}
	return "", wrong(unknownObject, fmt.Sprintf("there is no object %s", path))
}

// do runs one of the runtime's verbs on the stream a call is for.
func (o *streams) do(msg godbus.Message, verb func(ctx context.Context, name string) (*api.Done, error)) *godbus.Error {
	name, refusal := o.s.target(msg)
	if refusal != nil {
		return refusal
	}
	if !o.s.begin() {
		return leaving()
	}
	defer o.s.work.Done()
	// What a client asked for is done though it, or the bus, goes away.
	_, err := verb(o.s.bus.ctx, name)
	// The signal of the change comes before the reply.
	o.s.announce(name)
	return failure(err)
}

func (o *streams) Stop(msg godbus.Message) *godbus.Error  { return o.do(msg, o.s.bus.service.Stop) }
func (o *streams) Start(msg godbus.Message) *godbus.Error { return o.do(msg, o.s.bus.service.Start) }
func (o *streams) Restart(msg godbus.Message) *godbus.Error {
	return o.do(msg, o.s.bus.service.Restart)
}
func (o *streams) Remove(msg godbus.Message) *godbus.Error { return o.do(msg, o.s.bus.service.Remove) }

func (o *streams) Expose(msg godbus.Message, node, port, level string) *godbus.Error {
	return o.do(msg, func(ctx context.Context, name string) (*api.Done, error) {
		return o.s.bus.service.Expose(ctx, name, graph.End{Node: node, Port: port}, graph.Level(level))
	})
}

func (o *streams) ApplyChanges(msg godbus.Message, changes string, given map[string]godbus.Variant) *godbus.Error {
	if err := readOptions(given).check(); err != nil {
		return err
	}
	return o.do(msg, func(ctx context.Context, name string) (*api.Done, error) {
		return o.s.bus.service.ApplyChanges(ctx, name, []byte(changes))
	})
}

func (o *streams) GetLog(msg godbus.Message, given map[string]godbus.Variant) ([]map[string]godbus.Variant, *godbus.Error) {
	name, refusal := o.s.target(msg)
	if refusal != nil {
		return nil, refusal
	}
	filter := api.LogFilter{Last: defaultRecords}
	options := readOptions(given)
	options.take("node", &filter.Node)
	options.take("level", &filter.Level)
	options.take("last", &filter.Last)
	if err := options.check(); err != nil {
		return nil, err
	}
	if filter.Last <= 0 {
		return nil, failure(api.Errorf(api.BadRequest, "last is %d, no number of records", filter.Last))
	}
	// Log takes "" for the runtime's own; here a stream is asked.
	if _, err := o.s.bus.service.Stream(name); err != nil {
		return nil, failure(err)
	}
	records, err := o.s.bus.service.Log(name, filter)
	if err != nil {
		return nil, failure(err)
	}
	list, size := []map[string]godbus.Variant{}, 0
	for _, record := range slices.Backward(records) {
		entry := map[string]godbus.Variant{
			"time": variant(record.Time.Format("2006-01-02T15:04:05.000000Z07:00")), "level": variant(record.Level),
			"stream": variant(record.Stream), "node": variant(record.Node), "message": variant(record.Message),
		}
		size += len(record.Message) + 128
		if len(record.Fields) > 0 {
			fields := map[string]godbus.Variant{}
			for _, key := range slices.Sorted(maps.Keys(record.Fields)) {
				fields[text(key)] = variant(record.Fields[key])
				size += len(key) + 64
				if value, ok := record.Fields[key].(string); ok {
					size += len(value)
				}
			}
			entry["fields"] = godbus.MakeVariant(fields)
		}
		if size > maxLogBytes {
			break
		}
		list = append(list, entry)
	}
	slices.Reverse(list)
	return list, nil
}

func (o *streams) GetStatistics(msg godbus.Message) (map[string]godbus.Variant, *godbus.Error) {
	name, refusal := o.s.target(msg)
	if refusal != nil {
		return nil, refusal
	}
	g, err := o.s.bus.service.Graph(name)
	if err != nil {
		return nil, failure(err)
	}
	nodes := map[string]godbus.Variant{}
	for _, n := range g.Nodes {
		outputs := []map[string]godbus.Variant{}
		for _, out := range n.Outputs {
			outputs = append(outputs, map[string]godbus.Variant{
				"port": variant(out.Port), "sent": variant(out.Sent), "rate": variant(out.Rate),
				"age_ms": variant(out.AgeMS), "pool_bytes": variant(out.PoolBytes),
			})
		}
		nodes[text(n.Name)] = godbus.MakeVariant(map[string]godbus.Variant{
			"state": variant(string(n.State)), "pid": variant(uint32(n.PID)), "restarts": variant(uint32(n.Restarts)),
			"cpu_ms": variant(n.CPUms), "rss_bytes": variant(n.RSS), "outputs": godbus.MakeVariant(outputs),
		})
	}
	links := []map[string]godbus.Variant{}
	for _, l := range g.Links {
		links = append(links, map[string]godbus.Variant{
			"source": variant(l.Source.String()), "target": variant(l.Target.String()), "state": variant(string(l.State)),
			"sent": variant(l.Sent), "received": variant(l.Received), "dropped": variant(l.Dropped),
			"rate": variant(l.Rate), "latency_p50_ms": variant(l.LatencyP50MS), "latency_p99_ms": variant(l.LatencyP99MS),
		})
	}
	return map[string]godbus.Variant{
		"cpu_ms": variant(g.Usage.CPUms), "memory_bytes": variant(g.Usage.Memory), "processes": variant(uint32(g.Usage.Processes)),
		"nodes": godbus.MakeVariant(nodes), "links": godbus.MakeVariant(links),
	}, nil
}

// variant is a value for the bus: text made fit for it, numbers and truth
// values as they are, anything else as JSON.
func variant(value any) godbus.Variant {
	switch value := value.(type) {
	case string:
		return godbus.MakeVariant(text(value))
	case bool, int64, uint64, uint32, float64:
		return godbus.MakeVariant(value)
	case int:
		return godbus.MakeVariant(int64(value))
	}
	data, err := json.Marshal(value)
	if err != nil {
		return godbus.MakeVariant(text(fmt.Sprint(value)))
	}
	return godbus.MakeVariant(text(string(data)))
}

// streamProperties is org.freedesktop.DBus.Properties of a stream's object.
type streamProperties struct{ s *session }

func (p streamProperties) all(msg godbus.Message) (map[string]godbus.Variant, *godbus.Error) {
	name, refusal := p.s.target(msg)
	if refusal != nil {
		return nil, refusal
	}
	stream, err := p.s.bus.service.Stream(name)
	if err != nil {
		return nil, wrong(unknownObject, err.Error())
	}
	return p.s.bus.view(stream).properties(), nil
}

func (p streamProperties) Get(msg godbus.Message, iface, name string) (godbus.Variant, *godbus.Error) {
	all, err := p.all(msg)
	if err != nil {
		return godbus.Variant{}, err
	}
	return get(streamInterface, all, iface, name)
}

func (p streamProperties) GetAll(msg godbus.Message, iface string) (map[string]godbus.Variant, *godbus.Error) {
	all, err := p.all(msg)
	if err != nil {
		return nil, err
	}
	return getAll(streamInterface, all, iface)
}

func (p streamProperties) Set(msg godbus.Message, iface, name string, _ godbus.Variant) *godbus.Error {
	all, err := p.all(msg)
	if err != nil {
		return err
	}
	return set(streamInterface, all, iface, name)
}

// get, getAll and set are Properties of an object whose own interface has the
// properties all. The standard interfaces have none.
func get(own string, all map[string]godbus.Variant, iface, name string) (godbus.Variant, *godbus.Error) {
	all, err := getAll(own, all, iface)
	if err != nil {
		return godbus.Variant{}, err
	}
	value, ok := all[name]
	if !ok {
		return godbus.Variant{}, wrong(unknownProperty, fmt.Sprintf("interface %s has no property %s", iface, name))
	}
	return value, nil
}

func getAll(own string, all map[string]godbus.Variant, iface string) (map[string]godbus.Variant, *godbus.Error) {
	switch iface {
	case own, "":
		return all, nil
	case propertiesInterface, introspectInterface, objectManagerInterface, peerInterface:
		return map[string]godbus.Variant{}, nil
	}
	return nil, wrong(unknownInterface, fmt.Sprintf("there is no interface %s here", iface))
}

func set(own string, all map[string]godbus.Variant, iface, name string) *godbus.Error {
	if _, err := get(own, all, iface, name); err != nil {
		return err
	}
	return wrong(propertyReadOnly, fmt.Sprintf("property %s cannot be set", name))
}

// streamIntrospection is org.freedesktop.DBus.Introspectable of the streams and
// of the path they are below.
type streamIntrospection struct{ s *session }

func (i streamIntrospection) Introspect(msg godbus.Message) (string, *godbus.Error) {
	if path, _ := msg.Headers[godbus.FieldPath].Value().(godbus.ObjectPath); path == StreamsPath {
		var children []string
		for _, stream := range i.s.bus.service.Streams() {
			children = append(children, systemdbus.PathBusEscape(stream.Name))
		}
		xml, err := describe("", nil, children...)
		return xml, failure(err)
	}
	name, refusal := i.s.target(msg)
	if refusal != nil {
		return "", refusal
	}
	if _, err := i.s.bus.service.Stream(name); err != nil {
		return "", wrong(unknownObject, err.Error())
	}
	xml, err := describeStream()
	return xml, failure(err)
}
