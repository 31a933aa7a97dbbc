package localapi

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"tatolab.com/tatolab/service/api"
)

var update = flag.Bool("update", false, "write openapi.json anew")

// TestOpenAPI holds the document to the routes and to the structs, both ways.
func TestOpenAPI(t *testing.T) {
	var want bytes.Buffer
	encoder := json.NewEncoder(&want)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", " ")
	if err := encoder.Encode(document()); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("openapi.json", want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(want.Bytes(), OpenAPI) {
		t.Fatal("openapi.json is not what routes.go and package api say; write it with `go test ./service/localapi -run TestOpenAPI -update`")
	}
}

type object = map[string]any

func document() object {
	schemas := object{}
	paths := object{}
	for _, r := range routes {
		operation := object{"summary": r.summary, "responses": object{
			"200":     object{"description": "It worked", "content": content(r, schemas)},
			"default": object{"description": "It did not", "content": object{"application/json": object{"schema": schema(reflect.TypeFor[api.Error](), schemas)}}},
		}}
		var parameters []any
		for _, m := range regexp.MustCompile(`\{(\w+)\}`).FindAllStringSubmatch(r.path, -1) {
			parameters = append(parameters, object{"name": m[1], "in": "path", "required": true, "schema": object{"type": "string"}})
		}
		for _, p := range r.query {
			parameter := object{"name": p.name, "in": "query", "description": p.summary, "schema": object{"type": p.kind}}
			if p.required {
				parameter["required"] = true
			}
			parameters = append(parameters, parameter)
		}
		if parameters != nil {
			operation["parameters"] = parameters
		}
		if r.body != nil {
			operation["requestBody"] = object{"required": true, "content": object{"application/json": object{"schema": schema(reflect.TypeOf(r.body), schemas)}}}
		}
		item, _ := paths[r.path].(object)
		if item == nil {
			item = object{}
			paths[r.path] = item
		}
		item[strings.ToLower(r.method)] = operation
	}
	return object{
		"openapi": "3.1.0",
		"info": object{"title": "Tatolab local API", "version": api.HTTPVersion,
			"description": "Served on the Unix socket $XDG_RUNTIME_DIR/streamlib/local-api.sock, to the same user only. A field that a request does not have is refused by name; a reader of answers ignores fields it does not know."},
		"servers":    []any{object{"url": "http://localhost"}},
		"paths":      paths,
		"components": object{"schemas": schemas},
	}
}

func content(r route, schemas object) object {
	switch {
	case r.answer == picture{}:
		return object{"image/png": object{}}
	case r.lines:
		c := object{"application/x-ndjson": object{"schema": schema(reflect.TypeOf(r.answer), schemas)}}
		if _, ok := r.body.(api.Load); ok {
			c["application/json"] = object{"schema": schema(reflect.TypeFor[api.Done](), schemas)}
		}
		return c
	}
	return object{"application/json": object{"schema": schema(reflect.TypeOf(r.answer), schemas)}}
}

// schema describes t; structs become components.
func schema(t reflect.Type, schemas object) object {
	switch t {
	case reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case reflect.TypeFor[json.RawMessage]():
		return object{}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return schema(t.Elem(), schemas)
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return object{"type": "integer"}
	case reflect.Float64:
		return object{"type": "number"}
	case reflect.Slice:
		return object{"type": "array", "items": schema(t.Elem(), schemas)}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": schema(t.Elem(), schemas)}
	case reflect.Interface:
		return object{}
	case reflect.Struct:
		name := t.Name()
		if t.PkgPath() == "tatolab.com/tatolab/service/graph" {
			name = "Compiled" + name
		}
		reference := object{"$ref": "#/components/schemas/" + name}
		if _, done := schemas[name]; done {
			return reference
		}
		properties, required := object{}, []string{}
		schemas[name] = object{}
		fields(t, func(f reflect.StructField) {
			key, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			s := schema(f.Type, schemas)
			if f.Type.Kind() == reflect.Pointer && !strings.HasPrefix(options, "omit") {
				s = object{"anyOf": []any{s, object{"type": "null"}}}
			}
			properties[key] = s
			if !strings.HasPrefix(options, "omit") {
				required = append(required, key)
			}
		})
		o := object{"type": "object", "properties": properties}
		if len(required) > 0 {
			o["required"] = required
		}
		schemas[name] = o
		return reference
	}
	panic(fmt.Sprintf("no schema for %s", t))
}

// fields visits the fields of t as encoding/json sees them.
func fields(t reflect.Type, visit func(reflect.StructField)) {
	for i := range t.NumField() {
		if f := t.Field(i); f.Anonymous {
			fields(f.Type, visit)
		} else {
			visit(f)
		}
	}
}
