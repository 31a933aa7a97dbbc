// Package effect runs pieces of GLSL over pictures in OpenGL: what stands
// behind tatolab.stream's GlslPixelEffect. Everything in it is to be called on
// the thread of a current context (package offscreen).
package effect

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/go-gl/gl/v3.3-core/gl"

	"tatolab.com/tatolab/gl/shader"
)

// Dial is a value that a program may be given at each picture.
type Dial struct {
	Name string `json:"name"`
	Type string `json:"type"` // float, int, vec2, vec4
}

// dialTypes is how many numbers each type of dial has.
var dialTypes = map[string]int{"float": 1, "int": 1, "vec2": 2, "vec4": 4}

const (
	declarations = `uniform sampler2D streamlib_source;
uniform ivec2 streamlib_extent;
uniform float streamlib_elapsed_seconds;
vec4 streamlib_source_at(ivec2 at) {
	return texelFetch(streamlib_source, clamp(at, ivec2(0), streamlib_extent - 1), 0);
}
vec4 streamlib_source_uv(vec2 uv) { return texture(streamlib_source, uv); }
`
	// The names are prefixed: the user's own must not meet them. The first
	// line is empty so that text which ends in the middle of a line, or in a
	// comment, is ended.
	ending = `
out vec4 streamlib_output;
void main() {
	ivec2 at = ivec2(gl_FragCoord.xy);
	streamlib_output = effect(texelFetch(streamlib_source, at, 0), at);
}
`
	signature = "vec4 effect(vec4 source, ivec2 at)"
)

// Program is a compiled effect.
type Program struct {
	program         *shader.Program
	extent, elapsed int32
	dials           []Dial
	uniforms        []int32 // of dials
}

// Compile compiles the effect that source defines. A mistake in it is told
// with the lines of source itself.
func Compile(source string, dials []Dial) (*Program, error) {
	var head strings.Builder
	head.WriteString(declarations)
	if len(dials) > 0 {
		head.WriteString("uniform struct {\n")
		for _, d := range dials {
			if dialTypes[d.Type] == 0 {
				return nil, fmt.Errorf("dial %s is a %q; a dial is a float, int, vec2 or vec4", d.Name, d.Type)
			}
			fmt.Fprintf(&head, "\t%s %s;\n", d.Type, d.Name)
		}
		head.WriteString("} dials;\n")
	}
	program, err := shader.New(head.String() + source + ending)
	if err != nil {
		var wrong *shader.CompileError
		if !errors.As(err, &wrong) {
			return nil, err
		}
		// One line more: New puts the version in front.
		return nil, errors.New(explain(wrong.Log, source, 1+strings.Count(head.String(), "\n")))
	}
	p := &Program{
		program: program, dials: dials,
		extent: program.Uniform("streamlib_extent"), elapsed: program.Uniform("streamlib_elapsed_seconds"),
	}
	for _, d := range dials {
		p.uniforms = append(p.uniforms, program.Uniform("dials."+d.Name))
	}
	return p, nil
}

// message is a driver's: Mesa "0:12(5): error: …", NVIDIA "0(12) : error …".
var message = regexp.MustCompile(`^\s*\d+(?::(\d+)\((\d+)\)|\((\d+)\))\s*:\s*(.*)$`)

// explain rewrites a compiler's log to the lines of source, which stands
// behind `before` lines of what was compiled, and shows each line named.
func explain(log, source string, before int) string {
	lines := strings.Split(source, "\n")
	var out []string
	outside := false
	told := map[int]bool{} // lines: what follows the first mistake in one is its consequence
	for _, text := range strings.Split(log, "\n") {
		m := message.FindStringSubmatch(text)
		if m == nil {
			if text = strings.TrimSpace(text); text != "" {
				out = append(out, text)
			}
			continue
		}
		number, _ := strconv.Atoi(m[1] + m[3])
		number -= before
		if number < 1 || number > len(lines) {
			// In the wrapping: `effect` missing or of another type, a
			// brace that was not closed.
			outside = true
			out = append(out, "at the end: "+m[4])
			continue
		}
		if told[number] {
			continue
		}
		told[number] = true
		out = append(out, fmt.Sprintf("line %d: %s", number, m[4]))
		out = append(out, "    "+strings.TrimRight(strings.ReplaceAll(lines[number-1], "\t", " "), " \r"))
		if column, _ := strconv.Atoi(m[2]); column > 0 {
			out = append(out, "    "+strings.Repeat(" ", column-1)+"^")
		}
	}
	if outside || !strings.Contains(source, "effect") {
		out = append(out, "(an effect defines "+signature+")")
	}
	return strings.Join(out, "\n")
}

// Values are the numbers for the dials of a program, by name.
type Values map[string][]float64

// set gives the program, which is in use, its dials.
func (p *Program) set(values Values) error {
	for i, d := range p.dials {
		v, ok := values[d.Name]
		if !ok {
			return fmt.Errorf("dial %s has no value", d.Name)
		}
		if len(v) != dialTypes[d.Type] {
			return fmt.Errorf("dial %s is a %s of %d numbers, not of %d", d.Name, d.Type, dialTypes[d.Type], len(v))
		}
		at := p.uniforms[i] // -1, which OpenGL ignores, if the source does not use it
		switch d.Type {
		case "float":
			gl.Uniform1f(at, float32(v[0]))
		case "int":
			gl.Uniform1i(at, int32(v[0]))
		case "vec2":
			gl.Uniform2f(at, float32(v[0]), float32(v[1]))
		case "vec4":
			gl.Uniform4f(at, float32(v[0]), float32(v[1]), float32(v[2]), float32(v[3]))
		}
	}
	return nil
}
