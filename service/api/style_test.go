package api

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// spoken are texts that are promised word by word.
var spoken = []string{
	"%s has no .venv/bin/python. Run uv sync in %s.",
	"no runtime is running on this machine: nothing answers at %s. Start one by running `tatolabd` in a terminal.",
}

// sentence is how a text begins that would stand alone: with a capital that is not
// part of a name such as XDG_RUNTIME_DIR or OpenGL.
var sentence = regexp.MustCompile(`^[A-Z][a-z']*( |$)`)

// Errors and hints follow a prefix or another text: they begin in lower case, and
// end without a full stop.
func TestStyleOfErrorsAndHints(t *testing.T) {
	files, texts := token.NewFileSet(), 0
	look := func(e ast.Expr) {
		first, last := ends(e)
		if first == "" && last == "" || slices.Contains(spoken, first) {
			return
		}
		texts++
		if sentence.MatchString(first) || strings.HasSuffix(last, ".") {
			t.Errorf("%s: %q … %q", files.Position(e.Pos()), first, last)
		}
	}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "build" || d.Name() != ".." && strings.HasPrefix(d.Name(), ".") && len(d.Name()) > 2) {
			return fs.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				at := -1
				switch name(n.Fun) {
				case "WithHint", "hint", "fmt.Errorf", "errors.New", "usagef":
					at = 0
				case "api.Errorf":
					at = 1
				}
				if at >= 0 && at < len(n.Args) {
					look(n.Args[at])
				}
			case *ast.KeyValueExpr:
				if k := name(n.Key); k == "Hint" || k == "Message" {
					look(n.Value)
				}
			case *ast.AssignStmt:
				for i, left := range n.Lhs {
					if l := name(left); (l == "hint" || strings.HasSuffix(l, "Hint")) && len(n.Rhs) == len(n.Lhs) {
						look(n.Rhs[i])
					}
				}
			}
			return true
		})
		return nil
	})
	if err != nil || texts < 100 {
		t.Errorf("%d texts seen, %v", texts, err)
	}
}

// name of what is called or assigned to: "fmt.Errorf" of a package, "WithHint" of
// any method.
func name(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		if of, ok := e.X.(*ast.Ident); ok && slices.Contains([]string{"fmt", "errors", "api"}, of.Name) {
			return of.Name + "." + e.Sel.Name
		}
		return e.Sel.Name
	}
	return ""
}

// ends are the literals that a text begins and ends with, "" for what is known only
// when it runs.
func ends(e ast.Expr) (first, last string) {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, _ := strconv.Unquote(e.Value)
		return text, text
	case *ast.BinaryExpr:
		first, _ = ends(e.X)
		_, last = ends(e.Y)
	case *ast.CallExpr:
		if name(e.Fun) == "fmt.Sprintf" {
			return ends(e.Args[0])
		}
	}
	return first, last
}
