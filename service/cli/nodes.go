package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"tatolab.com/tatolab/service/api"
)

func nodesCommand() *command {
	return &command{
		name: "nodes", short: "list the node classes a project can use",
		long: "Lists the node classes a project can use, its own and the built-in ones: ports with their delivery profiles, and the configuration. With --json, configurations as JSON schema.",
		setup: func(f *pflag.FlagSet) action {
			dir := f.String("dir", ".", "the project's `FOLDER`")
			return ask(f, func(ctx context.Context, e *environment, _ []string) (*api.Catalog, error) {
				project, err := projectFolder(*dir)
				if err != nil {
					return nil, err
				}
				defer e.print.progress("reading the nodes of " + project)()
				return e.runtime.Nodes(ctx, project)
			}, (*environment).showCatalog)
		},
	}
}

func (e *environment) showCatalog(catalog *api.Catalog) {
	for i := range catalog.Nodes {
		if i > 0 {
			e.print.line("")
		}
		e.showNodeClass(&catalog.Nodes[i])
	}
	for _, missing := range catalog.Errors {
		e.print.note("nodes of %s are missing: %s", missing.Module, missing.Error)
	}
}

func (e *environment) showNodeClass(n *api.CatalogNode) {
	e.print.line("%s  %s", paint(e.print.outColor, bold, n.Type), n.Execution)
	if first, _, _ := strings.Cut(n.Description, "\n"); first != "" {
		e.print.line("  %s", first)
	}
	var rows [][]string
	for _, p := range n.Inputs {
		rows = append(rows, []string{"  in", p.Name, p.Profile, p.Description})
	}
	for _, p := range n.Outputs {
		rows = append(rows, []string{"  out", p.Name, "", p.Description})
	}
	properties, _ := n.ConfigSchema["properties"].(map[string]any)
	for _, key := range slices.Sorted(maps.Keys(properties)) {
		property, _ := properties[key].(map[string]any)
		kind, _ := property["type"].(string)
		if choices, ok := property["enum"].([]any); ok {
			kind = strings.Trim(fmt.Sprint(choices), "[]")
		}
		least, limited := property["minimum"].(float64)
		if most, both := property["maximum"].(float64); limited && both {
			kind += fmt.Sprintf(" %s to %s", number(least), number(most))
		}
		about, _ := property["description"].(string)
		if value, ok := property["default"]; ok {
			if text, err := json.Marshal(value); err == nil {
				kind += " = " + string(text)
			}
		}
		rows = append(rows, []string{"  config", key, kind, about})
	}
	if len(rows) > 0 {
		e.print.rows(rows)
	}
}

// number is written as a person does: 2147483647, not 2.147483647e+09.
func number(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
