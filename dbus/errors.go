package dbus

import (
	"strings"

	godbus "github.com/godbus/dbus/v5"

	"tatolab.com/tatolab/service/api"
)

// Errors of the D-Bus specification.
const (
	invalidArgs      = "org.freedesktop.DBus.Error.InvalidArgs"
	failed           = "org.freedesktop.DBus.Error.Failed"
	unknownObject    = "org.freedesktop.DBus.Error.UnknownObject"
	unknownInterface = "org.freedesktop.DBus.Error.UnknownInterface"
	unknownProperty  = "org.freedesktop.DBus.Error.UnknownProperty"
	propertyReadOnly = "org.freedesktop.DBus.Error.PropertyReadOnly"
)

// ours are the codes that have an error name of their own on the bus.
var ours = map[api.Code]bool{
	api.NameInUse: true, api.NoSuchStream: true, api.NotKept: true, api.NoSuchPort: true, api.NotExposed: true,
	api.NoEnvironment: true, api.CompileFailed: true, api.InvalidName: true, api.RecordFailed: true, api.Unloadable: true,
}

// failure is err as a D-Bus error. The hint stands in a line of its own:
// clients show one string.
func failure(err error) *godbus.Error {
	if err == nil {
		return nil
	}
	e := api.AsError(err)
	message := e.Message
	if e.Detail != "" {
		message += "\n" + strings.TrimRight(e.Detail, "\n")
	}
	if e.Hint != "" {
		message += "\n" + e.Hint
	}
	name := failed
	switch {
	case ours[e.Code]:
		name = errorPrefix + string(e.Code)
	case e.Code == api.BadRequest:
		name = invalidArgs
	}
	return wrong(name, message)
}

func wrong(name, message string) *godbus.Error {
	return godbus.NewError(name, []any{text(message)})
}

// text makes s fit for the bus, whose strings are valid UTF-8 without NUL. A
// path or the output of a node may be anything, and the bus would end the connection.
func text(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

func leaving() *godbus.Error { return wrong(failed, "the runtime is leaving the bus") }
