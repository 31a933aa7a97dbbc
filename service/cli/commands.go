package cli

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/spf13/pflag"
)

// commands is the one table of verbs, in the order of the manual.
func commands() []*command {
	return []*command{
		newCommand(), devCommand(), runCommand(),
		streamsCommand(), stopCommand(), startCommand(), restartCommand(), rmCommand(),
		statusCommand(), graphCommand(), topCommand(), logsCommand(),
		exposeCommand(), setCommand(), pauseCommand(), resumeCommand(), readCommand(), snapshotCommand(),
		camerasCommand(), nodesCommand(),
		doctorCommand(), versionCommand(), completionCommand(),
	}
}

func find(name string) *command {
	for _, c := range commands() {
		if c.name == name {
			return c
		}
	}
	return nil
}

// flags returns the flags of c, for what prints them.
func (c *command) flags() *pflag.FlagSet {
	f := pflag.NewFlagSet(c.name, pflag.ContinueOnError)
	c.setup(f)
	return f
}

func (c *command) synopsis() string {
	s := "tatolab " + c.name
	if c.args != "" {
		s += " " + c.args
	}
	if c.flags().HasFlags() {
		s += " [FLAGS]"
	}
	return s
}

// overview is `tatolab --help`.
func overview() string {
	var b strings.Builder
	b.WriteString("tatolab - run live streams on this machine\n\nUsage: tatolab VERB [ARGUMENTS] [FLAGS]\n\nVerbs:\n")
	for _, c := range commands() {
		fmt.Fprintf(&b, "  %-11s %s\n", c.name, c.short)
	}
	b.WriteString("\n`tatolab VERB --help` tells more of one verb, `man tatolab` of all.\n")
	return b.String()
}

// help is `tatolab VERB --help`: the verb's part of the man page.
func help(c *command) string {
	var b strings.Builder
	fmt.Fprintf(&b, "tatolab %s - %s\n\nUsage: %s\n\n%s\n", c.name, c.short, c.synopsis(), wrap(strings.TrimSpace(c.long), helpWidth))
	if f := c.flags(); f.HasFlags() {
		b.WriteString("\nFlags:\n")
		f.VisitAll(func(f *pflag.Flag) {
			name, usage := describe(f)
			if f.Shorthand == "" {
				name = "    " + name
			}
			if utf8.RuneCountInString(name) < helpIndent-3 {
				name = fmt.Sprintf("%-*s", helpIndent-2, name)
			} else {
				name += "\n" + strings.Repeat(" ", helpIndent)
			}
			indented := strings.ReplaceAll(wrap(usage, helpWidth-helpIndent), "\n", "\n"+strings.Repeat(" ", helpIndent))
			fmt.Fprintf(&b, "  %s%s\n", name, indented)
		})
	}
	if len(c.examples) > 0 {
		b.WriteString("\nExamples:\n")
		for _, e := range c.examples {
			line := "  " + e[0]
			if e[1] != "" {
				line = fmt.Sprintf("  %-44s # %s", e[0], e[1])
			}
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

// describe writes a flag as it is typed, and what it does.
func describe(f *pflag.Flag) (typed, usage string) {
	kind, usage := pflag.UnquoteUsage(f)
	typed = "--" + f.Name
	if f.Shorthand != "" {
		typed = "-" + f.Shorthand + ", " + typed
	}
	if kind != "" && f.NoOptDefVal == "" {
		typed += " " + kind
	}
	return typed, usage
}

// Columns of --help: the width of its text, and where the text of flags begins.
const (
	helpWidth  = 80
	helpIndent = 28
)

// wrap breaks paragraphs into lines of at most width columns.
func wrap(text string, width int) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		column := 0
		for word := range strings.FieldsSeq(line) {
			length := utf8.RuneCountInString(word)
			switch {
			case column == 0:
			case column+1+length > width:
				b.WriteByte('\n')
				column = 0
			default:
				b.WriteByte(' ')
				column++
			}
			b.WriteString(word)
			column += length
		}
		if strings.HasSuffix(line, "\n") {
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// The parts of the manual that belong to no verb.
const (
	manAbout = `Streams are graphs of nodes that people write in Python; the runtime, tatolabd, runs them. tatolab asks the runtime to load, stop and forget streams, and shows what they do. It never runs a stream itself: it is a client of the local API on the runtime's control socket.

An attached stream lives as long as the command that loaded it; a kept stream belongs to the machine, and is loaded again whenever the runtime starts.`

	manOutput = `Results go to standard output, notes and errors to standard error. An error is a line that begins with "error:", followed by "hint:" lines that say what to do next. Colour is used on a terminal only, and not when NO_COLOR is set. With --json the output is made for programs; it carries a version.`
)

var manExit = [][2]string{
	{"0", "It worked. Also: run or dev were ended with Ctrl-C, or the stream was stopped by another command."},
	{"1", "It did not; the error says why. Also: the runtime went away under run."},
	{"2", "The command line was wrong."},
	{"130", "A second Ctrl-C ended run or dev at once."},
}

var manEnvironment = [][2]string{
	{"XDG_RUNTIME_DIR", "The runtime's control socket is streamlib/local-api.sock below it. Must be set."},
	{"NO_COLOR", "No colour, if set to anything."},
}

// manPage is tatolab(1) in the man macros, groff_man(7).
func manPage() string {
	var b strings.Builder
	b.WriteString(".TH TATOLAB 1 \"\" \"Tatolab\" \"User Commands\"\n.SH NAME\ntatolab \\- run live streams on this machine\n.SH SYNOPSIS\n")
	for _, c := range commands() {
		fmt.Fprintf(&b, ".B tatolab %s\n%s\n.br\n", c.name, roff(strings.TrimPrefix(strings.TrimPrefix(c.synopsis(), "tatolab "+c.name), " ")))
	}
	b.WriteString(".SH DESCRIPTION\n" + paragraphs(manAbout) + ".SH VERBS\n")
	for _, c := range commands() {
		fmt.Fprintf(&b, ".SS %s\n%s", roff(c.synopsis()), paragraphs(c.long))
		c.flags().VisitAll(func(f *pflag.Flag) {
			typed, usage := describe(f)
			fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(typed), roff(usage))
		})
		if len(c.examples) > 0 {
			b.WriteString(".PP\nExamples:\n")
			for _, e := range c.examples {
				fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(e[0]), roff(e[1]))
			}
		}
	}
	list := func(title string, items [][2]string) {
		fmt.Fprintf(&b, ".SH %s\n", title)
		for _, item := range items {
			fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(item[0]), roff(item[1]))
		}
	}
	b.WriteString(".SH OUTPUT\n" + paragraphs(manOutput))
	list("EXIT STATUS", manExit)
	list("ENVIRONMENT", manEnvironment)
	b.WriteString(".SH SEE ALSO\n.BR systemctl (1),\n.BR journalctl (1),\n.BR loginctl (1)\n")
	return b.String()
}

// paragraphs turns the text of a command into man macros.
func paragraphs(text string) string {
	var b strings.Builder
	for block := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		b.WriteString(".PP\n" + roff(block) + "\n")
	}
	return b.String()
}

// roff escapes text for the man macros.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, `-`, `\-`, "`", "").Replace(s)
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}
