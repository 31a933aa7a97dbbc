package dbus

import (
	_ "embed"
	"encoding/xml"

	"github.com/godbus/dbus/v5/introspect"
	"github.com/godbus/dbus/v5/prop"
)

// Names of the bus. They are a contract: other people's programs hold them.
const (
	BusName     = "com.tatolab.Runtime1"
	Path        = "/com/tatolab/Runtime1"
	StreamsPath = Path + "/streams"

	managerInterface       = BusName + ".Manager"
	streamInterface        = BusName + ".Stream"
	errorPrefix            = BusName + ".Error."
	propertiesInterface    = "org.freedesktop.DBus.Properties"
	introspectInterface    = "org.freedesktop.DBus.Introspectable"
	objectManagerInterface = "org.freedesktop.DBus.ObjectManager"
	peerInterface          = "org.freedesktop.DBus.Peer"
)

// ManagerXML and StreamXML are the interfaces as they are installed.
var (
	//go:embed com.tatolab.Runtime1.Manager.xml
	ManagerXML string
	//go:embed com.tatolab.Runtime1.Stream.xml
	StreamXML string
)

// objectManager is org.freedesktop.DBus.ObjectManager of the D-Bus specification.
var objectManager = introspect.Interface{
	Name: objectManagerInterface,
	Methods: []introspect.Method{{Name: "GetManagedObjects", Args: []introspect.Arg{
		{Name: "objects", Type: "a{oa{sa{sv}}}", Direction: "out"},
	}}},
	Signals: []introspect.Signal{
		{Name: "InterfacesAdded", Args: []introspect.Arg{
			{Name: "object", Type: "o"}, {Name: "interfaces", Type: "a{sa{sv}}"},
		}},
		{Name: "InterfacesRemoved", Args: []introspect.Arg{
			{Name: "object", Type: "o"}, {Name: "interfaces", Type: "as"},
		}},
	},
}

// describe is the answer of Introspect: the interfaces of an XML file, the
// standard ones, and child nodes.
func describe(file string, standard []introspect.Interface, children ...string) (string, error) {
	var node introspect.Node
	if file != "" {
		if err := xml.Unmarshal([]byte(file), &node); err != nil {
			return "", err
		}
	}
	node.Interfaces = append(node.Interfaces, introspect.IntrospectData, introspect.PeerData)
	node.Interfaces = append(node.Interfaces, standard...)
	for _, child := range children {
		node.Children = append(node.Children, introspect.Node{Name: child})
	}
	text, err := xml.Marshal(&node)
	return introspect.IntrospectDeclarationString + string(text), err
}

func describeManager() (string, error) {
	return describe(ManagerXML, []introspect.Interface{prop.IntrospectData, objectManager}, "streams")
}

func describeStream() (string, error) {
	return describe(StreamXML, []introspect.Interface{prop.IntrospectData})
}
