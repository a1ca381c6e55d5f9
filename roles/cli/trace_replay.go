package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/sandbox"
	"github.com/cnibox/cnibox/roles/call/plugindir"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/roles/see/trace"
	"github.com/cnibox/cnibox/store"
)

// maxBundle bounds the file of a replay.
const maxBundle = 256 << 20

func (p *Process) replayCommand() *cli.Command {
	maxPause := &cli.DurationFlag{Name: "max-pause", Value: time.Second, Usage: "the longest pause between two calls"}
	bin := &cli.StringFlag{Name: "bin", Usage: "play with the plugins in `DIR`: another version, or the reference's (this program)"}
	return &cli.Command{
		Name:      "replay",
		Usage:     "play exported calls again in scratch namespaces, and compare",
		ArgsUsage: "FILE",
		Description: `Plays the calls of "cnibox trace export" or "cnibox trace --json" with their real timing, in network and
mount namespaces of its own: the machine's network and state are not changed, and its files are read-only. Each
container gets an empty namespace, and each host interface that a configuration names as master exists. It exits with 3
if a call fails that succeeded or the reverse, or if a result has another number of interfaces or addresses. A replayed
duration includes the start of the process (1 to 2 ms), a recorded one does not. It needs root and Linux 5.12.

examples:
  cnibox trace replay calls.json
  cnibox trace replay calls.json --bin /opt/cni/bin.old`,
		Flags: append(tableFlags(), bin, maxPause),
		Subcommands: []*cli.Command{{
			Name:   "inside",
			Usage:  "play the calls on standard input in this process' own namespaces; trace replay starts it",
			Flags:  []cli.Flag{bin, maxPause},
			Action: p.replayInside,
		}},
		Action: p.replay,
	}
}

func (p *Process) replay(c *cli.Context) error {
	if c.Args().Len() != 1 {
		return advice.Usagef("cnibox help trace replay", "want FILE")
	}
	pause := c.Duration("max-pause")
	if pause < 0 {
		return advice.Usagef("cnibox help trace replay", "--max-pause %s: give 0s or more", pause)
	}
	if os.Geteuid() != 0 {
		return advice.With(errors.New("only root can make network namespaces"), "run it as root")
	}
	raw, err := p.readFile(c.Args().First(), maxBundle)
	if err != nil {
		return err
	}
	calls, err := decodeCalls(raw)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Args().First(), err)
	}
	if !slices.ContainsFunc(calls, trace.IsPlayable) {
		return fmt.Errorf("%s: no call can be played: each has no input, or only a part of it", c.Args().First())
	}
	args := []string{"trace", "replay", "inside", "--max-pause", pause.String()}
	if dir := c.String("bin"); dir != "" {
		dir, err = filepath.Abs(dir)
		if err == nil {
			_, err = os.Stat(dir)
		}
		if err != nil {
			return fmt.Errorf("--bin: %w", err)
		}
		args = append(args, "--bin", dir)
	}
	var out bytes.Buffer
	if err := p.Self.Isolated(c.Context, []string{}, args, bytes.NewReader(raw), &out, p.Stderr); err != nil {
		return fmt.Errorf("play the calls: %w", err)
	}
	var played []*trace.Replayed
	if err := json.Unmarshal(out.Bytes(), &played); err != nil {
		return fmt.Errorf("play the calls: %w", err)
	}
	if left := len(calls) - len(played); left > 0 {
		fmt.Fprintf(p.Stderr, "cnibox: trace replay: %d of %d calls have no input, or only a part of it, and were left out\n", left, len(calls))
	}
	if c.Bool("json") {
		err = writeJSON(p.Stdout, played)
	} else {
		err = p.writeReplay(played, p.style(c))
	}
	if err == nil && slices.ContainsFunc(played, func(r *trace.Replayed) bool { return r.Different }) {
		return errDifferent
	}
	return err
}

func decodeCalls(raw []byte) ([]*store.TracedCall, error) {
	var calls []*store.TracedCall
	if err := json.Unmarshal(raw, &calls); err != nil {
		return nil, advice.With(fmt.Errorf("not a list of calls: %w", err), "cnibox trace export")
	}
	return slices.DeleteFunc(calls, func(one *store.TracedCall) bool { return one == nil }), nil // nil is JSON's null
}

// replayInside plays the calls on standard input.
func (p *Process) replayInside(c *cli.Context) error {
	raw, err := io.ReadAll(io.LimitReader(p.Stdin, maxBundle))
	if err != nil {
		return err
	}
	calls, err := decodeCalls(raw)
	if err != nil {
		return err
	}
	bin := c.String("bin")
	if err := sandbox.Enter(filepath.SplitList(bin)); err != nil {
		return advice.With(err, "cnibox trace replay, which starts it")
	}
	if bin == "" {
		bin = "/run/plugins"
		if err := os.Mkdir(bin, 0o755); err != nil {
			return err
		}
		if _, err := plugindir.Open(bin, p.Executable).Install(p.Table.Types(), plugindir.Symbolic, false, func(plugindir.Change) {}); err != nil {
			return err
		}
	}
	n := netops.New(netops.Options{})
	defer func() { _ = n.Close() }() // the namespace ends with this process
	var done atomic.Int32
	progress := p.progress("calls")
	defer progress(1, 1)
	play := &trace.Player{Self: p.Self, Net: n, Plugins: bin, MaxPause: c.Duration("max-pause"), Played: func() { progress(int(done.Add(1)), len(calls)) }}
	played, err := play.Play(c.Context, calls)
	if err != nil {
		return err
	}
	return writeJSON(p.Stdout, played)
}

// writeReplay prints durations by plugin and verb, then the differences.
func (p *Process) writeReplay(played []*trace.Replayed, s style) error {
	groups, names := map[string][]*trace.Replayed{}, []string{}
	for _, r := range played {
		name := r.Role + "\t" + r.Verb
		if groups[name] == nil {
			names = append(names, name)
		}
		groups[name] = append(groups[name], r)
	}
	slices.Sort(names)
	t := &table{head: []string{"PLUGIN", "VERB", "CALLS", "FAILED", "MEDIAN MS", "MAX MS", "REPLAY FAILED", "MEDIAN MS", "MAX MS", "DIFFERENT"}}
	for _, name := range names {
		group := groups[name]
		plugin, verb, _ := strings.Cut(name, "\t")
		different := 0
		for _, r := range group {
			if r.Different {
				different++
			}
		}
		cells := []string{plugin, verb, strconv.Itoa(len(group))}
		cells = append(cells, summary(group, func(r *trace.Replayed) *trace.Outcome { return &r.Recorded })...)
		cells = append(cells, summary(group, func(r *trace.Replayed) *trace.Outcome { return &r.Replayed })...)
		t.add(append(cells, strconv.Itoa(different))...)
	}
	if err := t.write(p.Stdout, s); err != nil {
		return err
	}
	d := &table{head: []string{"DIFFERENT", "VERB", "CONTAINER", "RECORDED", "REPLAYED"}}
	for _, r := range played {
		if r.Different {
			d.add(r.Role, r.Verb, s.name("", r.ContainerID), describe(r.Recorded), describe(r.Replayed))
		}
	}
	if len(d.rows) == 0 {
		return nil
	}
	fmt.Fprintln(p.Stdout)
	return d.write(p.Stdout, s)
}

// summary returns the number of failures, the median and the maximum.
func summary(group []*trace.Replayed, of func(*trace.Replayed) *trace.Outcome) []string {
	failed := 0
	for _, r := range group {
		if of(r).Code != 0 {
			failed++
		}
	}
	group = slices.Clone(group)
	sorting.Func(group, func(a, b *trace.Replayed) int { return int(of(a).Took - of(b).Took) })
	return []string{strconv.Itoa(failed), milliseconds(of(group[len(group)/2]).Took), milliseconds(of(group[len(group)-1]).Took)}
}

func describe(o trace.Outcome) string {
	if o.Code != 0 {
		return fmt.Sprintf("error %d: %s", o.Code, cmp.Or(o.Error, "no message"))
	}
	return fmt.Sprintf("%d interfaces, %d IPv4 and %d IPv6 addresses", o.Interfaces, o.IPv4, o.IPv6)
}
