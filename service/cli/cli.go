// Package cli is the `tatolab` command: a client of the local API and nothing
// else. commands.go is the one table that help, man page and completions are
// printed from; every verb has a file; print.go holds the rules of output.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"

	"tatolab.com/tatolab/service/client"
	"tatolab.com/tatolab/service/name"
	"tatolab.com/tatolab/service/spelling"
)

// Exit codes.
const (
	exitOK          = 0
	exitError       = 1
	exitUsage       = 2
	exitInterrupted = 130
)

// command is one verb.
type command struct {
	name, args string // "run", "[TARGET]"
	short      string // one line: what it does
	long       string // paragraphs of the man page
	examples   [][2]string
	min, max   int       // number of arguments
	complete   []subject // what each argument is; the last one stands for more
	// setup declares the flags and returns what is done with them.
	setup func(*pflag.FlagSet) action
}

// action does a verb.
type action func(ctx context.Context, e *environment, args []string) error

// environment is what a verb has beside its arguments.
type environment struct {
	print   *printer
	runtime *client.Client
}

// ask makes the action of a verb that asks the runtime one thing, and shows what
// it answers or prints it as JSON.
func ask[T any](f *pflag.FlagSet, question func(context.Context, *environment, []string) (*T, error), show func(*environment, *T)) action {
	asJSON := f.Bool("json", false, jsonUsage)
	return func(ctx context.Context, e *environment, args []string) error {
		answer, err := question(ctx, e, args)
		if err != nil {
			return err
		}
		if *asJSON {
			return e.print.json(answer)
		}
		show(e, answer)
		return nil
	}
}

const jsonUsage = "print JSON"

// usageError is a wrong way of calling; it exits 2.
type usageError struct {
	message string
	verb    string
}

func (e *usageError) Error() string { return e.message }

func usagef(format string, args ...any) error {
	return &usageError{message: fmt.Sprintf(format, args...)}
}

// errSilent fails without a word: everything has been said.
var errSilent = errors.New("")

// Main runs the command line and returns its exit code.
func Main(args []string, stdout, stderr io.Writer) int {
	e := &environment{print: newPrinter(stdout, stderr), runtime: client.Local()}
	err := e.run(context.Background(), args)
	if err == nil {
		err = e.print.lost()
	}
	var usage *usageError
	switch {
	case err == nil:
		return exitOK
	case err == errSilent:
		return exitError
	case errors.As(err, &usage):
		e.print.failure(err)
		verb := "tatolab"
		if usage.verb != "" {
			verb += " " + usage.verb
		}
		e.print.hint("`%s --help` tells how it is used", verb)
		return exitUsage
	}
	e.print.failure(err)
	return exitError
}

func (e *environment) run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return usagef("which verb?\n\n%s", strings.TrimRight(overview(), "\n"))
	}
	verb, args := args[0], args[1:]
	switch verb {
	case "--help", "-h", "help":
		if verb == "help" && len(args) > 0 {
			verb, args = args[0], []string{"--help"}
			break
		}
		e.print.text(overview())
		return nil
	case "--version":
		verb = "version"
	case completeVerb:
		return e.candidates(ctx, args)
	}
	c := find(verb)
	if c == nil && strings.HasPrefix(verb, "-") {
		return usagef("%s stands before the verb: flags come after it", verb)
	}
	if c == nil {
		if near := nearest(verb); near != "" {
			return usagef("there is no verb %q; did you mean %q?", verb, near)
		}
		return usagef("there is no verb %q", verb)
	}
	flags := pflag.NewFlagSet(c.name, pflag.ContinueOnError)
	flags.Usage = func() {}
	do := c.setup(flags)
	err := flags.Parse(args)
	if errors.Is(err, pflag.ErrHelp) {
		e.print.text(help(c))
		return nil
	}
	if err == nil {
		switch n := flags.NArg(); {
		case n < c.min:
			err = fmt.Errorf("%s is missing", strings.Fields(c.args)[n])
		case n > c.max:
			err = fmt.Errorf("%q is one argument too many", flags.Arg(c.max))
		}
	}
	if err != nil {
		return &usageError{message: fmt.Sprintf("tatolab %s: %v", c.name, err), verb: c.name}
	}
	err = do(ctx, e, flags.Args())
	var usage *usageError
	if errors.As(err, &usage) && usage.verb == "" {
		usage.verb = c.name
		usage.message = fmt.Sprintf("tatolab %s: %s", c.name, usage.message)
	}
	return err
}

// streamName is the name of a stream as it may be typed: cast, as it was when the
// stream was loaded. What can be none is refused, before it becomes a path.
func streamName(typed string) (string, error) {
	cast, err := name.Cast(typed)
	if err != nil || strings.Contains(typed, "/") {
		return "", usagef("%q is no name of a stream; `tatolab streams` lists them", typed)
	}
	return cast, nil
}

// nearest is the verb most like a misspelt one, "" if none is near.
func nearest(word string) string {
	var verbs []string
	for _, c := range commands() {
		verbs = append(verbs, c.name)
	}
	return spelling.Nearest(word, verbs)
}

// isTerminal tells whether w is one.
func isTerminal(w io.Writer) bool {
	columns, _ := terminalSize(w)
	return columns > 0
}
