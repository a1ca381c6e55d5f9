package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"
)

func (p *Process) completionCommand() *cli.Command {
	return &cli.Command{
		Name:      "completion",
		Usage:     "print a completion script for a shell",
		ArgsUsage: "bash|zsh|fish",
		Description: `bash: cnibox completion bash > /etc/bash_completion.d/cnibox
zsh:  cnibox completion zsh > "${fpath[1]}/_cnibox"
fish: cnibox completion fish > ~/.config/fish/completions/cnibox.fish`,
		Action: func(c *cli.Context) error {
			if c.Args().Len() != 1 {
				return usagef("cnibox completion bash", "want bash, zsh or fish")
			}
			words := p.words(c.App.Commands)
			switch c.Args().First() {
			case "bash":
				writeBash(p.Stdout, words)
			case "zsh":
				writeZsh(p.Stdout, words)
			case "fish":
				writeFish(p.Stdout, words)
			default:
				return usagef("cnibox completion bash", "%q: want bash, zsh or fish", c.Args().First())
			}
			return nil
		},
	}
}

// completed is one verb for completion scripts.
type completed struct {
	// path is the verb: "state export"; empty for the program itself.
	path  string
	usage string
	// words may follow, in addition to files.
	words []string
	flags []string
	files bool
}

// words returns the words that may follow each verb.
func (p *Process) words(cmds []*cli.Command) []completed {
	root := completed{}
	out := []completed{}
	var walk func([]*cli.Command)
	walk = func(cmds []*cli.Command) {
		for _, c := range cmds {
			w := completed{path: verbOf(c), usage: c.Usage, files: strings.Contains(c.ArgsUsage, "FILE")}
			for _, f := range c.Flags {
				w.flags = append(w.flags, "--"+f.Names()[0])
			}
			for _, s := range c.Subcommands {
				w.words = append(w.words, s.Name)
			}
			switch c.Name {
			case "completion":
				w.words = strings.Split(c.ArgsUsage, "|")
			case "help":
				for _, v := range cmds {
					w.words = append(w.words, v.Name)
				}
			}
			if strings.Contains(c.ArgsUsage, "ROLE") {
				w.words = append(w.words, p.roleNames()...)
			}
			out = append(out, w)
			walk(c.Subcommands)
		}
	}
	for _, c := range cmds {
		root.words = append(root.words, c.Name)
	}
	walk(cmds)
	return append([]completed{root}, out...)
}

func (p *Process) roleNames() []string {
	var out []string
	for _, r := range p.Table {
		out = append(out, r.Names...)
	}
	return out
}

func writeBash(w io.Writer, words []completed) {
	fmt.Fprint(w, `_cnibox() {
  local cur=${COMP_WORDS[COMP_CWORD]} path= word
  local i
  for ((i = 1; i < COMP_CWORD && i < 3; i++)); do
    word=${COMP_WORDS[i]}
    [[ $word == -* ]] && break
    path="${path:+$path }$word"
  done
  while :; do
    case "$path" in
`)
	for _, c := range words {
		files := ""
		if c.files {
			files = "; COMPREPLY+=($(compgen -f -- \"$cur\"))"
		}
		fmt.Fprintf(w, "    %s) COMPREPLY=($(compgen -W %s -- \"$cur\"))%s; return ;;\n",
			quoted(c.path), quoted(strings.Join(append(c.flags, c.words...), " ")), files)
	}
	fmt.Fprint(w, `    *" "*) path=${path% *} ;;
    *) return ;;
    esac
  done
}
complete -o filenames -F _cnibox cnibox
`)
}

// writeZsh wraps bash's script, because zsh can run it.
func writeZsh(w io.Writer, words []completed) {
	fmt.Fprint(w, "#compdef cnibox\nautoload -Uz bashcompinit && bashcompinit\n")
	writeBash(w, words)
}

func writeFish(w io.Writer, words []completed) {
	fmt.Fprintln(w, "complete -c cnibox -f")
	for _, c := range words {
		switch {
		case c.path == "":
			continue
		case !strings.Contains(c.path, " "):
			fmt.Fprintf(w, "complete -c cnibox -n __fish_use_subcommand -a %s -d %s\n", quoted(c.path), quoted(c.usage))
		}
		cond := "__fish_seen_subcommand_from " + strings.ReplaceAll(c.path, " ", "; and __fish_seen_subcommand_from ")
		for _, f := range c.flags {
			fmt.Fprintf(w, "complete -c cnibox -n %s -l %s\n", quoted(cond), strings.TrimPrefix(f, "--"))
		}
		if len(c.words) > 0 {
			fmt.Fprintf(w, "complete -c cnibox -n %s -a %s\n", quoted(cond), quoted(strings.Join(c.words, " ")))
		}
		if c.files {
			fmt.Fprintf(w, "complete -c cnibox -n %s -F\n", quoted(cond))
		}
	}
}

// quoted quotes a word for a shell.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
