package cloudsim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cnibox/cnibox/roles"
)

// command is what one may tell a simulator while it runs: on the command line, in a
// script, or by Do.
type command struct {
	name, args, help string
	flags            []roles.Flag
	// run is called with the simulator's lock held.
	run func(s *Sim, flags map[string]string, args []string) (any, error)
	// check tells beforehand what run would not take, as far as that can be known.
	check func(flags map[string]string, args []string) error
}

func commands() []command {
	return []command{
		{
			name: "add", args: "ADDRESS|PREFIX…", help: "give the node of a running simulator more addresses for pods",
			flags: []roles.Flag{{Name: "nic", Help: "number or MAC of the interface; else the first with such a subnet"}}, run: runAdd,
		},
		{
			name: "withdraw", args: "ADDRESS|PREFIX…", help: "take addresses for pods from the node of a running simulator",
			run: func(s *Sim, _ map[string]string, args []string) (any, error) {
				return s.modify(args, func(targets []netip.Prefix) error { return withdraw(s.nics, targets) })
			},
		},
		{
			name: "break", args: "KIND", help: "have a running simulator do something wrong: an HTTP status, or what 'cloud-sim kinds' lists",
			flags: []roles.Flag{
				{Name: "count", Help: "number of requests that it is for; else all until heal"},
				{Name: "path", Help: "what is in the paths of the requests that it is for"},
				{Name: "delay", Default: defaultDelay.String(), Help: "how slow slow-headers and slow-body are"},
				{Name: "retry-after", Help: "header of an answer with an HTTP status"},
				{Name: "to", Help: "where redirect leads; else http://192.0.2.1/"},
			}, run: runBreak,
			check: func(flags map[string]string, args []string) error {
				_, err := newFault(args[0], flags)
				return err
			},
		},
		{name: "heal", args: "[KIND…]", help: "have a running simulator do right again, in everything or these", run: runHeal},
		{
			name: "throttle", args: "COUNT|off", help: "have a running simulator answer 429 to more requests than COUNT",
			flags: []roles.Flag{
				{Name: "period", Default: "1s", Help: "time for which COUNT is"},
				{Name: "retry-after", Help: "header of the refusals"},
			}, run: runThrottle,
			check: func(flags map[string]string, args []string) error {
				_, err := newThrottle(flags, args[0])
				return err
			},
		},
		{name: "expire", help: "end all tokens that a running simulator gave out", run: func(s *Sim, _ map[string]string, _ []string) (any, error) {
			n := 0
			for _, t := range s.tokens {
				n += t.expire()
			}
			return fmt.Sprintf("%d tokens ended", n), nil
		}},
		{name: "count", help: "show what was asked of a running simulator", run: func(s *Sim, _ map[string]string, _ []string) (any, error) {
			return s.counts.clone(), nil
		}},
		{name: "show", help: "show the node that a running simulator plays, in the form that -node reads", run: func(s *Sim, _ map[string]string, _ []string) (any, error) {
			return clone(s.nics), nil
		}},
	}
}

// Do runs a command as the command line takes it: "break", "429", "--retry-after", "2".
func (s *Sim) Do(args ...string) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.do(args)
}

func (s *Sim) do(args []string) (any, error) {
	c, flags, rest, err := parseCommand(args)
	if err != nil {
		return nil, err
	}
	out, err := c.run(s, flags, rest)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.name, err)
	}
	return out, nil
}

// parseCommand finds a command and reads what it is called with.
func parseCommand(args []string) (c command, flags map[string]string, rest []string, err error) {
	all := commands()
	names := make([]string, len(all))
	for i, c := range all {
		names[i] = c.name
	}
	if len(args) == 0 || !slices.Contains(names, args[0]) {
		return c, nil, nil, fmt.Errorf("%.40q is no command: use %s", strings.Join(args, " "), strings.Join(names, ", "))
	}
	c = all[slices.Index(names, args[0])]
	flags, rest, err = c.parse(args[1:])
	if err == nil && c.check != nil {
		err = c.check(flags, rest)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", c.name, err)
	}
	return c, flags, rest, err
}

// parse takes flags apart from arguments: "--flag value" or "--flag=value", anywhere.
func (c *command) parse(args []string) (flags map[string]string, rest []string, err error) {
	flags = map[string]string{}
	for _, f := range c.flags {
		flags[f.Name] = f.Default
	}
	for i := 0; i < len(args); i++ {
		name, isFlag := strings.CutPrefix(args[i], "--")
		if !isFlag {
			rest = append(rest, args[i])
			continue
		}
		name, value, given := strings.Cut(name, "=")
		if _, known := flags[name]; !known {
			return nil, nil, fmt.Errorf("--%.40s is no flag of it", name)
		}
		if !given {
			if i++; i == len(args) {
				return nil, nil, fmt.Errorf("--%s has no value", name)
			}
			value = args[i]
		}
		flags[name] = value
	}
	one, several := c.args != "" && !strings.HasPrefix(c.args, "["), strings.Contains(c.args, "…")
	if one && len(rest) == 0 {
		return nil, nil, fmt.Errorf("%s is missing", c.args)
	}
	if !several && (c.args == "" && len(rest) > 0 || len(rest) > 1) {
		return nil, nil, fmt.Errorf("%.40q is too much", rest[len(rest)-1])
	}
	return flags, rest, nil
}

func runAdd(s *Sim, flags map[string]string, args []string) (any, error) {
	return s.modify(args, func(targets []netip.Prefix) error { return add(s.nics, flags["nic"], targets) })
}

// modify changes the model, wholly or not at all.
func (s *Sim) modify(args []string, change func([]netip.Prefix) error) (any, error) {
	var targets []netip.Prefix
	for _, a := range args {
		p, err := parseTarget(a)
		if err != nil {
			return nil, err
		}
		targets = append(targets, p)
	}
	before := clone(s.nics)
	if err := change(targets); err != nil {
		s.nics = before
		return nil, err
	}
	s.change()
	addresses, prefixes := size(s.nics)
	return fmt.Sprintf("the node has %d addresses and %d prefixes for pods", addresses, prefixes), nil
}

func runBreak(s *Sim, flags map[string]string, args []string) (any, error) {
	f, err := newFault(args[0], flags)
	if err != nil {
		return nil, err
	}
	if f.name == refuse {
		if err := s.listen.close(); err != nil {
			return nil, err
		}
	}
	s.faults = append(s.faults, f)
	s.change()
	return s.broken(), nil
}

func runHeal(s *Sim, _ map[string]string, args []string) (any, error) {
	for _, name := range args {
		if !slices.ContainsFunc(s.faults, func(f *fault) bool { return f.name == name }) {
			return nil, fmt.Errorf("%.40q is not broken", name)
		}
	}
	s.faults = slices.DeleteFunc(s.faults, func(f *fault) bool { return len(args) == 0 || slices.Contains(args, f.name) })
	if len(args) == 0 {
		s.throttle = throttle{}
	}
	s.wake()
	if slices.ContainsFunc(s.faults, func(f *fault) bool { return f.name == refuse }) {
		return s.broken(), nil
	}
	return s.broken(), s.listen.open(context.Background())
}

// broken tells what is.
func (s *Sim) broken() string {
	var names []string
	for _, f := range s.faults {
		name := f.name
		if f.left > 0 {
			name = fmt.Sprintf("%s for %d requests", name, f.left)
		}
		names = append(names, name)
	}
	return "broken: " + cmp.Or(strings.Join(names, ", "), "nothing")
}

func runThrottle(s *Sim, flags map[string]string, args []string) (any, error) {
	t, err := newThrottle(flags, args[0])
	if err != nil {
		return nil, err
	}
	s.throttle = t
	if t.most == 0 {
		return "no request is too many", nil
	}
	return fmt.Sprintf("%d requests are answered in %s", t.most, t.period), nil
}

// newThrottle reads how many requests are too many.
func newThrottle(flags map[string]string, most string) (throttle, error) {
	if most == "off" {
		return throttle{}, nil
	}
	n, err := strconv.Atoi(most)
	period, perr := time.ParseDuration(flags["period"])
	if err != nil || n < 1 || n > 1e6 {
		err = fmt.Errorf("%.40q: use a number from 1 to 1000000, or off", most)
	}
	if perr != nil || period <= 0 || period > maxDelay {
		err = errors.Join(err, fmt.Errorf("--period: %.40q: use a time up to %s", flags["period"], maxDelay))
	}
	return throttle{most: n, period: period, retryAfter: flags["retry-after"]}, err
}
