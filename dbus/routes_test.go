package dbus

import (
	"encoding/json"
	"encoding/xml"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/godbus/dbus/v5/introspect"
)

// What the local API can do, the bus can do, or docs/dbus.md says why not; and
// that page names only what is there.
func TestEveryRouteHasAMemberOrAReason(t *testing.T) {
	data, err := os.ReadFile("../service/localapi/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	var api struct {
		Paths map[string]map[string]json.RawMessage `json:"paths"`
	}
	if err := json.Unmarshal(data, &api); err != nil {
		t.Fatal(err)
	}
	routes := map[string]bool{}
	for path, methods := range api.Paths {
		for method := range methods {
			routes[strings.ToUpper(method)+" "+path] = false
		}
	}
	if len(routes) < 10 {
		t.Fatalf("the API has only %d routes", len(routes))
	}

	members := map[string]bool{"ObjectManager.GetManagedObjects": true, "Properties.GetAll": true}
	for _, file := range []string{ManagerXML, StreamXML} {
		var node introspect.Node
		if err := xml.Unmarshal([]byte(file), &node); err != nil {
			t.Fatal(err)
		}
		for _, iface := range node.Interfaces {
			short := iface.Name[strings.LastIndex(iface.Name, ".")+1:]
			for _, method := range iface.Methods {
				members[short+"."+method.Name] = true
			}
			for _, property := range iface.Properties {
				members[short+"."+property.Name] = true
			}
		}
	}

	page, err := os.ReadFile("../docs/dbus.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| `([A-Z]+ /[^`]*)` \\| ([^|]*) \\|$")
	name := regexp.MustCompile("`([A-Z]\\w+\\.[A-Z]\\w+)`")
	for _, match := range row.FindAllStringSubmatch(string(page), -1) {
		route, cell := match[1], match[2]
		if _, ok := routes[route]; !ok {
			t.Errorf("docs/dbus.md has a row for %s, which the local API has not", route)
		}
		routes[route] = true
		named := name.FindAllStringSubmatch(cell, -1)
		for _, member := range named {
			if !members[member[1]] {
				t.Errorf("%s: there is no member %s", route, member[1])
			}
		}
		if len(named) == 0 && !strings.HasPrefix(cell, "none: ") {
			t.Errorf("%s: neither a member nor a reason: %q", route, cell)
		}
	}
	for route, documented := range routes {
		if !documented {
			t.Errorf("docs/dbus.md says nothing of %s", route)
		}
	}
}
