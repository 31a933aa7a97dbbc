package dbus

import (
	"fmt"
	"maps"
	"slices"

	godbus "github.com/godbus/dbus/v5"
)

// options reads an a{sv}: take each known key, then check that none is left.
type options struct {
	rest map[string]godbus.Variant
	err  *godbus.Error
}

func readOptions(given map[string]godbus.Variant) *options {
	return &options{rest: maps.Clone(given)}
}

// take stores the value of key into value, a pointer. Integers of every width
// are taken for one another: shells and bindings differ in what they send.
func (o *options) take(key string, value any) {
	variant, ok := o.rest[key]
	if !ok {
		return
	}
	delete(o.rest, key)
	if err := variant.Store(value); err != nil && o.err == nil {
		o.err = wrong(invalidArgs, fmt.Sprintf("option %q: %s is not what it takes (%s)",
			key, variant, godbus.SignatureOf(value)))
	}
}

func (o *options) check() *godbus.Error {
	if o.err != nil {
		return o.err
	}
	for _, key := range slices.Sorted(maps.Keys(o.rest)) {
		return wrong(invalidArgs, fmt.Sprintf("there is no option %q", key))
	}
	return nil
}
