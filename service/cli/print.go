package cli

// The rules of output, all of them:
//
//   - What was asked for goes to stdout: tables, JSON, logs, bags. Nothing else.
//   - What the person should know besides (a note, progress) goes to stderr, in
//     plain words and without a prefix.
//   - A failure is one line `error: …` on stderr, then what belongs to it as it
//     is (the traceback of the user's own code), then `hint: …` lines that say
//     what to do next. No other line begins so. Both go on in lower case, and end
//     without a full stop.
//   - Colour, redrawing and progress only where the stream is a terminal, and no
//     colour when NO_COLOR is set to anything (no-color.org) or TERM is dumb.
//   - Columns are two spaces apart, and no line ends in a space.
//   - JSON and text come from the same struct of package api.
//   - Text from elsewhere (logs, names of devices) is stripped of control
//     characters on a terminal.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/client"
)

// Colours (ECMA-48 select graphic rendition).
const (
	plain  = "\x1b[0m"
	bold   = "\x1b[1m"
	dim    = "\x1b[2m"
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	cyan   = "\x1b[36m"
)

const (
	// progressAfter is how long something may take before progress is shown.
	progressAfter = time.Second
	// readerCheck is how long the watch for a reader that leaves outlives its
	// command.
	readerCheck = time.Second
)

type printer struct {
	mu              sync.Mutex
	out, err        io.Writer
	outTTY, errTTY  bool
	outColor, color bool  // of stdout, of stderr
	broken          error // the first thing that went wrong in writing a result
	// traces is the last record with a traceback, by node: a node that fails
	// again and again for one reason is not to bury what else there is to read.
	traces map[string]string
}

func newPrinter(out, err io.Writer) *printer {
	p := &printer{out: out, err: err, outTTY: isTerminal(out), errTTY: isTerminal(err)}
	allowed := os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	p.outColor, p.color = p.outTTY && allowed, p.errTTY && allowed
	return p
}

func paint(on bool, colour, text string) string {
	if !on || text == "" {
		return text
	}
	return colour + text + plain
}

// text prints a result as it is.
func (p *printer) text(s string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !strings.HasSuffix(s, "\n") {
		s += "\n"
	}
	if _, err := io.WriteString(p.out, s); err != nil && p.broken == nil {
		p.broken = fmt.Errorf("cannot write the result: %w", err)
	}
}

// lost tells what of a result could not be written, because the disk is full,
// say. A pipe whose reader left needs no word: the kernel ends the command.
func (p *printer) lost() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.broken
}

// line prints one line of result.
func (p *printer) line(format string, args ...any) { p.text(fmt.Sprintf(format, args...)) }

// whileRead returns a context that ends when nobody reads the pipe any more that
// the result goes to. A command that follows would otherwise outlive `head -1`
// until there is something more to print, which may be never.
func (p *printer) whileRead(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	if f, ok := p.out.(*os.File); ok {
		out := []unix.PollFd{{Fd: int32(f.Fd())}} // errors and hang-ups are always told
		go func() {
			for ctx.Err() == nil {
				n, err := unix.Poll(out, int(readerCheck.Milliseconds()))
				if n > 0 || err != nil && err != unix.EINTR {
					cancel()
				}
			}
		}()
	}
	return ctx, cancel
}

// json prints v for a program.
func (p *printer) json(v any) error {
	return p.encode(v, "  ")
}

func (p *printer) encode(v any, indent string) error {
	text, err := marshal(v, indent)
	if err != nil {
		return fmt.Errorf("cannot print: %w", err)
	}
	p.text(text)
	return p.lost()
}

// marshal is JSON as a person writes it: <, > and & need no escape outside HTML.
func marshal(v any, indent string) (string, error) {
	var b strings.Builder
	to := json.NewEncoder(&b)
	to.SetEscapeHTML(false)
	to.SetIndent("", indent)
	err := to.Encode(v)
	return strings.TrimSuffix(b.String(), "\n"), err
}

// json1 prints v on one line, for output of several.
func (p *printer) json1(v any) error {
	return p.encode(v, "")
}

// note tells the person something, on stderr.
func (p *printer) note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintln(p.err, paint(p.color, dim, p.clean(fmt.Sprintf(format, args...), p.errTTY)))
}

// hint says what to do next.
func (p *printer) hint(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for line := range strings.Lines(fmt.Sprintf(format, args...)) {
		fmt.Fprintln(p.err, paint(p.color, cyan, "hint:")+" "+p.clean(strings.TrimSuffix(line, "\n"), p.errTTY))
	}
}

// failure prints an error: its line, its detail, its hints.
func (p *printer) failure(err error) {
	message, detail, hint := err.Error(), "", ""
	var refused *api.Error
	var unreachable *client.Unreachable
	switch {
	case errors.As(err, &refused):
		detail, hint = refused.Detail, refused.Hint
		if refused.Code == api.NoEnvironment && hint == "" && !haveUV() {
			hint = "without uv, there: " + withoutUV
		}
	case errors.As(err, &unreachable):
		hint = unreachable.Hint
	}
	p.mu.Lock()
	fmt.Fprintln(p.err, paint(p.color, red+bold, "error:")+" "+p.clean(message, p.errTTY))
	if detail != "" {
		fmt.Fprintln(p.err, p.clean(strings.TrimRight(detail, "\n"), p.errTTY))
	}
	p.mu.Unlock()
	if hint != "" {
		p.hint("%s", hint)
	}
}

// done prints the answer to a change: what was done, unless there was nothing
// to do, and what else there is to know.
func (p *printer) done(d *api.Done, format string, args ...any) {
	if !d.Unchanged {
		p.line(format, args...)
	}
	if d.Note != "" {
		p.note("%s", d.Note)
	}
	if d.Hint != "" {
		p.hint("%s", d.Hint)
	}
}

// progress says what takes so long, once it does and while somebody looks; the
// returned function takes it away.
func (p *printer) progress(what string) (stop func()) {
	if !p.errTTY {
		return func() {}
	}
	shown := false
	timer := time.AfterFunc(progressAfter, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		shown = true
		fmt.Fprint(p.err, paint(p.color, dim, what+" …"))
	})
	return func() {
		timer.Stop()
		p.mu.Lock()
		defer p.mu.Unlock()
		if shown {
			fmt.Fprint(p.err, "\r\x1b[K")
		}
	}
}

// table prints rows below a header.
func (p *printer) table(header []string, rows [][]string) { p.text(p.formatTable(header, rows)) }

// rows prints a table without a header.
func (p *printer) rows(rows [][]string) { p.text(p.formatTable(nil, rows)) }

func (p *printer) formatTable(header []string, rows [][]string) string {
	var width []int
	for _, row := range append([][]string{header}, rows...) {
		width = append(width, make([]int, max(0, len(row)-len(width)))...)
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	write := func(row []string, colour string) {
		var line strings.Builder
		for i, cell := range row {
			fmt.Fprintf(&line, "%-*s", width[i]+2, strings.Map(printable, cell))
		}
		b.WriteString(paint(p.outColor, colour, strings.TrimRight(line.String(), " ")))
		b.WriteByte('\n')
	}
	if header != nil {
		write(header, bold)
	}
	for _, row := range rows {
		write(row, "")
	}
	return b.String()
}

// printable keeps a row of a table on one line, whatever a folder is called.
func printable(r rune) rune {
	if unicode.IsControl(r) {
		return '?'
	}
	return r
}

// record prints a record of a log. Lines after the first are indented, so that
// a traceback stays together.
func (p *printer) record(r *api.Record, layout string) {
	var b, below strings.Builder
	b.WriteString(paint(p.outColor, dim, r.Time.Local().Format(layout)))
	level := fmt.Sprintf("%-5s", strings.ToUpper(r.Level))
	switch r.Level {
	case "error":
		level = paint(p.outColor, red, level)
	case "warn":
		level = paint(p.outColor, yellow, level)
	case "info":
		level = paint(p.outColor, green, level)
	default:
		level = paint(p.outColor, dim, level)
	}
	b.WriteString(" " + level)
	if r.Node != "" {
		b.WriteString(" " + paint(p.outColor, cyan, r.Node))
	}
	b.WriteString("  ")
	trace, _ := r.Fields["traceback"].(string)
	if trace != "" && p.traces[r.Node] == r.Message+trace {
		first, _, _ := strings.Cut(r.Message, "\n")
		p.text(b.String() + p.clean(first, p.outTTY) + " (as before)")
		return
	}
	if trace != "" {
		if p.traces == nil {
			p.traces = map[string]string{}
		}
		p.traces[r.Node] = r.Message + trace
	}
	b.WriteString(strings.ReplaceAll(strings.TrimRight(p.clean(r.Message, p.outTTY), "\n"), "\n", "\n    "))
	for _, key := range slices.Sorted(maps.Keys(r.Fields)) {
		text, err := marshal(r.Fields[key], "")
		if err != nil {
			continue
		}
		s, isText := r.Fields[key].(string)
		switch {
		case isText && strings.Contains(s, "\n"): // a traceback: below, as it is
			// It ends with the error, which is there already: "setup: ValueError: …".
			if _, said, _ := strings.Cut(r.Message, ": "); strings.Contains(said, "\n") {
				s = strings.TrimSuffix(strings.TrimRight(s, "\n"), strings.TrimRight(said, "\n"))
			}
			below.WriteString("\n    " + strings.ReplaceAll(strings.TrimRight(p.clean(s, p.outTTY), "\n"), "\n", "\n    "))
			continue
		case isText && s != "" && !strings.ContainsAny(s, " \"=\t"):
			text = s
		}
		b.WriteString(" " + paint(p.outColor, dim, key+"=") + p.clean(text, p.outTTY))
	}
	p.text(b.String() + below.String())
}

// Layouts of the time of a record: of a log that is watched, and of one that
// is read later.
const (
	clockLayout = "15:04:05.000"
	dateLayout  = "2006-01-02 15:04:05.000"
)

// clean takes control characters out, which could move the cursor or worse;
// line ends and tabs stay.
func (p *printer) clean(s string, terminal bool) string {
	if !terminal {
		return s
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return -1
		}
		return r
	}, s)
}

// terminalSize is the number of columns and lines of w, 0 if it is no terminal.
func terminalSize(w io.Writer) (columns, lines int) {
	f, ok := w.(*os.File)
	if !ok {
		return 0, 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0
	}
	return max(int(size.Col), 1), max(int(size.Row), 1)
}
