package cli

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/roles/call/plugindir"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/store"
)

// completionTime bounds the reading of the state, whose lock another process may hold.
const completionTime = time.Second

// wordsCommand is the argument of completion with which the scripts ask for words.
const wordsCommand = "words"

func (p *Process) completionCommand() *cli.Command {
	return &cli.Command{
		Name:      "completion",
		Usage:     "print a completion script for a shell",
		ArgsUsage: "bash|zsh|fish|powershell",
		Description: `It completes verbs, flags, roles, and as root also containers, networks and addresses.

examples:
  cnibox completion bash > /etc/bash_completion.d/cnibox
  cnibox completion zsh > "${fpath[1]}/_cnibox"
  cnibox completion fish > ~/.config/fish/completions/cnibox.fish
  cnibox completion powershell >> $PROFILE`,
		Action: func(c *cli.Context) error {
			args := c.Args().Slice()
			if len(args) > 1 && args[0] == wordsCommand {
				p.printWords(c.Context, p.root().Subcommands, args[1:])
				return nil
			}
			script := map[string]string{"bash": bashScript, "zsh": zshScript, "fish": fishScript, "powershell": powershellScript}[c.Args().First()]
			if len(args) != 1 || script == "" {
				return advice.Usagef("cnibox completion bash", "want bash, zsh, fish or powershell")
			}
			_, err := fmt.Fprint(p.Stdout, script)
			return err
		},
	}
}

// The scripts let the shell complete files if there are no words.
const (
	bashScript = `_cnibox() {
  local IFS=$'\n'
  COMPREPLY=($("$1" completion words -- "${COMP_WORDS[@]:1:$COMP_CWORD}" 2>/dev/null | cut -f1))
}
complete -o default -F _cnibox cnibox
`
	// zsh loads the file at the first completion, which the last line answers, too.
	zshScript = "#compdef cnibox\nautoload -Uz bashcompinit && bashcompinit\n" + bashScript +
		"[[ ${funcstack[1]} != _cnibox ]] || _bash_complete -o default -F _cnibox\n"
	fishScript = `function __cnibox_words
  set -l words (cnibox completion words -- (commandline -opc)[2..] (commandline -ct) 2>/dev/null)
  if test (count $words) -gt 0
    printf '%s\n' $words
  else
    __fish_complete_path (commandline -ct)
  end
end
complete -c cnibox -f -a '(__cnibox_words)'
`
	powershellScript = `Register-ArgumentCompleter -Native -CommandName cnibox -ScriptBlock {
  param($word, $line, $cursor)
  $before = @($line.CommandElements | Select-Object -Skip 1 | Where-Object { $_.Extent.EndOffset -lt $cursor } | ForEach-Object { $_.ToString() })
  & cnibox completion words -- @before $word 2>$null | ForEach-Object {
    $text, $help = $_ -split [char]9, 2
    if (-not $help) { $help = $text }
    [System.Management.Automation.CompletionResult]::new($text, $text, 'ParameterValue', $help)
  }
}
`
)

// candidate is a word that completes the command line.
type candidate struct{ word, help string }

// printWords prints the words that can complete the last of the given words, with a tab and an
// explanation.
func (p *Process) printWords(ctx context.Context, cmds []*cli.Command, words []string) {
	last := words[len(words)-1]
	for _, c := range p.candidates(ctx, cmds, words[:len(words)-1], last) {
		if strings.HasPrefix(c.word, last) {
			fmt.Fprintf(p.Stdout, "%s\t%s\n", printable(c.word), printable(c.help))
		}
	}
}

func (p *Process) candidates(ctx context.Context, cmds []*cli.Command, before []string, last string) (out []candidate) {
	var cmd *cli.Command
	position := 0 // among the arguments of cmd
	for i := 0; i < len(before); i++ {
		word := before[i]
		next := find(cmds, word)
		switch {
		case cmd != nil && strings.HasPrefix(word, "-"):
			if !takesValue(cmd, word) {
				continue
			}
			i++
			if i == len(before) {
				return p.flagValues(ctx, strings.TrimLeft(word, "-"))
			}
		case next != nil && position == 0:
			cmd, cmds = next, next.Subcommands
		default:
			position++
		}
	}
	switch {
	case cmd == nil && position > 0:
		return nil
	case cmd != nil && strings.HasPrefix(last, "-"):
		for _, f := range cmd.Flags {
			help := ""
			if d, ok := f.(cli.DocGenerationFlag); ok {
				help = d.GetUsage()
			}
			out = append(out, candidate{"--" + f.Names()[0], help})
		}
		return out
	case position == 0:
		for _, c := range cmds {
			out = append(out, candidate{c.Name, c.Usage})
		}
	}
	if cmd != nil {
		out = append(out, p.arguments(ctx, cmd, position)...)
	}
	return out
}

// flagValues returns the values of a flag that has few.
func (p *Process) flagValues(ctx context.Context, name string) (out []candidate) {
	if name == "network" {
		return p.stateWords(ctx, "NETWORK")
	}
	for _, v := range map[string][]string{
		"runtime": runtimeNames(), "link": {string(plugindir.Symbolic), string(plugindir.Hard), string(plugindir.Copy)}, "registry": {"dir", "etcd"},
	}[name] {
		out = append(out, candidate{word: v})
	}
	return out
}

// arguments returns the values of an argument, which ArgsUsage names.
func (p *Process) arguments(ctx context.Context, cmd *cli.Command, position int) (out []candidate) {
	usage := strings.Fields(cmd.ArgsUsage)
	if len(usage) == 0 {
		return nil
	}
	repeated := strings.Contains(usage[len(usage)-1], "…")
	if position >= len(usage) && !repeated {
		return nil
	}
	for kind := range strings.SplitSeq(usage[min(position, len(usage)-1)], "|") {
		kind, _, _ = strings.Cut(strings.Trim(strings.NewReplacer("[NAMESPACE/]", "", "…", "").Replace(kind), "[]"), "[")
		switch kind {
		case "ROLE", "VERB":
			for _, r := range p.Table.Roles() {
				for _, name := range r.Names {
					out = append(out, candidate{name, r.Summary})
				}
			}
			if kind == "VERB" {
				out = append(out, p.candidates(ctx, p.root().Subcommands, nil, "")...)
			}
		case "NETNS":
			entries, _ := os.ReadDir(netnsDir) // without it there are no names
			for _, e := range entries {
				out = append(out, candidate{e.Name(), ""})
			}
		case "CONTAINERID", "CONTAINER", "POD", "NETWORK", "ADDRESS":
			out = append(out, p.stateWords(ctx, kind)...)
		case "FROM", "TO":
			out = append(append(out, p.stateWords(ctx, "CONTAINER")...), candidate{word: hostName})
		case strings.ToLower(kind):
			out = append(out, candidate{word: kind})
		}
	}
	return out
}

// stateWords returns the containers, pods, networks or addresses of this node. Without the right to read the state
// there are none.
func (p *Process) stateWords(ctx context.Context, kind string) (out []candidate) {
	ctx, cancel := context.WithTimeout(ctx, completionTime)
	defer cancel()
	h, done, err := p.OpenHost(ctx, "")
	if err != nil {
		return nil
	}
	defer done()
	dump, err := store.Read(ctx, h.Store, (*store.Tx).Export)
	if err != nil {
		return nil
	}
	add := func(word, help string) {
		if c := (candidate{word, help}); word != "" && !slices.Contains(out, c) {
			out = append(out, c)
		}
	}
	for i := range dump.Attachments {
		a := &dump.Attachments[i]
		switch kind {
		case "CONTAINERID", "CONTAINER":
			add(a.ContainerID, a.Pod)
		case "POD":
			add(a.Pod, "")
		case "NETWORK":
			add(a.Network, "")
		}
	}
	for _, pool := range dump.Pools {
		for _, l := range pool.Leases {
			switch kind {
			case "NETWORK":
				add(l.Owner.Network, "")
			case "ADDRESS":
				add(l.Address.String(), l.Owner.Network+" "+l.Owner.ContainerID)
			}
		}
	}
	return out
}
