package cli

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/client"
	"tatolab.com/tatolab/service/graph"
)

// completeVerb is what the shells' scripts call: the words after `tatolab` up to
// the one being completed, which may be empty. It is not in the table, being
// for programs. It answers lines of "word<TAB>description", or ":files" or
// ":folders" for the shell to complete those itself.
const completeVerb = "__complete"

// completeTimeout is how long a key press may wait for the runtime.
const completeTimeout = time.Second

// subject is what an argument or a flag's value is.
type subject string

const (
	subjectNone    subject = ""
	subjectStream  subject = "stream"
	subjectNode    subject = "node" // of the stream named before it
	subjectPort    subject = "port" // of the node named before it
	subjectAddress subject = "address"
	subjectFile    subject = ":files"
	subjectFolder  subject = ":folders"
	subjectShell   subject = "shell"
	subjectLevel   subject = "level"
	subjectTarget  subject = "target"
)

// flagSubjects says what the values of flags are, by name.
var flagSubjects = map[string]subject{
	"dir": subjectFolder, "file": subjectFile, "output": subjectFile, "node": subjectNode, "level": subjectLevel,
}

var shells = []string{"bash", "zsh", "fish"}

func completionCommand() *command {
	return &command{
		name: "completion", args: "SHELL", short: "print the completion script of a shell",
		long: "Prints the script that lets bash, zsh or fish complete verbs, flags and the names of streams. Packages install it; from a source build, load it in the shell's start file.",
		examples: [][2]string{
			{"source <(tatolab completion bash)", "in ~/.bashrc"},
			{"tatolab completion fish | source", "in ~/.config/fish/config.fish"},
		},
		min: 1, max: 1, complete: []subject{subjectShell},
		setup: func(*pflag.FlagSet) action {
			return func(_ context.Context, e *environment, args []string) error {
				script, ok := completionScripts[args[0]]
				if !ok {
					return usagef("there is no completion for %q; there is for %s", args[0], strings.Join(shells, ", "))
				}
				e.print.text(script)
				return nil
			}
		},
	}
}

// candidate is a word that may stand where one is being typed.
type candidate struct{ word, about string }

func (e *environment) candidates(ctx context.Context, words []string) error {
	if len(words) == 0 {
		words = []string{""}
	}
	ctx, cancel := context.WithTimeout(ctx, completeTimeout)
	defer cancel()
	prefix := words[len(words)-1]
	for _, c := range complete(ctx, words) {
		switch {
		case strings.HasPrefix(c.word, ":"):
			e.print.line("%s", c.word)
		case strings.HasPrefix(c.word, prefix) && c.about != "":
			e.print.line("%s\t%s", c.word, c.about)
		case strings.HasPrefix(c.word, prefix):
			e.print.line("%s", c.word)
		}
	}
	return nil
}

func complete(ctx context.Context, words []string) []candidate {
	var all []candidate
	last := words[len(words)-1]
	if len(words) == 1 {
		for _, c := range commands() {
			all = append(all, candidate{c.name, c.short})
		}
		return all
	}
	c := find(words[0])
	if c == nil {
		return nil
	}
	flags := c.flags()
	if strings.HasPrefix(last, "-") {
		flags.VisitAll(func(f *pflag.Flag) {
			all = append(all, candidate{"--" + f.Name, f.Usage})
		})
		return append(all, candidate{"--help", "how it is used"})
	}
	var args []string
	for i := 1; i < len(words)-1; i++ {
		f := flagOf(flags, words[i])
		switch {
		case f != nil && f.NoOptDefVal == "" && !strings.Contains(words[i], "="):
			if i == len(words)-2 {
				return values(ctx, flagSubjects[f.Name], args)
			}
			i++
		case !strings.HasPrefix(words[i], "-"):
			args = append(args, words[i])
		}
	}
	if len(args) >= c.max || len(c.complete) == 0 {
		return nil
	}
	return values(ctx, c.complete[min(len(args), len(c.complete)-1)], args)
}

func flagOf(flags *pflag.FlagSet, word string) *pflag.Flag {
	if name, ok := strings.CutPrefix(word, "--"); ok {
		name, _, _ = strings.Cut(name, "=")
		return flags.Lookup(name)
	}
	if len(word) == 2 && word[0] == '-' {
		return flags.ShorthandLookup(word[1:])
	}
	return nil
}

// values are the candidates for a subject; without a runtime there are fewer.
func values(ctx context.Context, what subject, args []string) []candidate {
	switch what {
	case subjectFile, subjectFolder:
		return []candidate{{string(what), ""}}
	case subjectTarget:
		var all []candidate
		files, _ := filepath.Glob("*.py")
		for _, f := range files {
			all = append(all, candidate{f, ""})
		}
		return all
	case subjectShell:
		return plainCandidates(shells)
	case subjectLevel:
		return plainCandidates(api.Levels)
	case subjectNone:
		return nil
	}
	c := client.Local()
	if what == subjectStream || what == subjectAddress {
		streams, err := c.Streams(ctx)
		if err != nil {
			return nil
		}
		var all []candidate
		for _, s := range streams.Streams {
			if what == subjectStream {
				all = append(all, candidate{s.Name, string(s.State) + ", " + s.Project})
				continue
			}
			if g, err := c.Graph(ctx, s.Name); err == nil {
				for _, x := range g.Exposed {
					all = append(all, candidate{graph.Source{Stream: s.Name, Node: x.Node, Port: x.Port}.String(), string(x.Level)})
				}
			}
		}
		return all
	}
	if len(args) == 0 {
		return nil
	}
	g, err := c.Graph(ctx, args[0])
	if err != nil {
		return nil
	}
	var all []candidate
	for _, n := range g.Nodes {
		switch {
		case what == subjectNode:
			all = append(all, candidate{n.Name, n.Type})
		case len(args) > 1 && n.Name == args[1]:
			for _, port := range outputsOf(g, n.Name) {
				all = append(all, candidate{port, ""})
			}
		}
	}
	return all
}

// outputsOf lists the outputs of a node that the graph knows of.
func outputsOf(g *api.Graph, node string) []string {
	var ports []string
	for _, n := range g.Nodes {
		for _, o := range n.Outputs {
			if n.Name == node {
				ports = append(ports, o.Port)
			}
		}
	}
	for _, l := range g.Links {
		if !l.Source.Remote() && l.Source.Node == node {
			ports = append(ports, l.Source.Port)
		}
	}
	for _, x := range g.Exposed {
		if x.Node == node {
			ports = append(ports, x.Port)
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

func plainCandidates(words []string) []candidate {
	var all []candidate
	for _, w := range words {
		all = append(all, candidate{w, ""})
	}
	return all
}

// completionScripts only carry words between the shell and `tatolab
// __complete`, so that they never differ from the binary.
var completionScripts = map[string]string{
	"bash": fmt.Sprintf(`# bash completion for tatolab
_tatolab() {
    local line cur=${COMP_WORDS[COMP_CWORD]}
    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
            :files) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
            :folders) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
            *) COMPREPLY+=("${line%%%%$'\t'*}") ;;
        esac
    done < <("${COMP_WORDS[0]}" %[1]s "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _tatolab tatolab
`, completeVerb),
	"zsh": fmt.Sprintf(`#compdef tatolab
# zsh completion for tatolab
_tatolab() {
    local line
    local -a found
    for line in "${(@f)$("${words[1]}" %[1]s "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
        case $line in
            '') ;;
            :files) _files ;;
            :folders) _files -/ ;;
            *) found+=("${${line%%%%$'\t'*}//:/\\:}:${line#*$'\t'}") ;;
        esac
    done
    (( $#found )) && _describe -t words word found
}
if [ "$funcstack[1]" = _tatolab ]; then _tatolab "$@"; else compdef _tatolab tatolab; fi
`, completeVerb),
	"fish": fmt.Sprintf(`# fish completion for tatolab
function __tatolab_complete
    set -l words (commandline -opc) (commandline -ct)
    for line in ($words[1] %[1]s $words[2..-1] 2>/dev/null)
        switch $line
            case :files
                __fish_complete_path (commandline -ct)
            case :folders
                __fish_complete_directories (commandline -ct)
            case '*'
                echo $line
        end
    end
end
complete -c tatolab -f -a '(__tatolab_complete)'
`, completeVerb),
}
