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

// command is an order to a running simulator: from the command line, a script, or Do.
type command struct {
	name, args, help string
	flags            []roles.Flag
	// run is called with the simulator's lock held.
	run func(s *Sim, flags map[string]string, args []string) (any, error)
	// check refuses arguments that run would refuse, as far as that is known without the model.
	check func(flags map[string]string, args []string) error
}

func commands() []command {
	return []command{
		{
			name: "add", args: "ADDRESS|PREFIX…", help: "add addresses for pods to the node",
			flags: []roles.Flag{{Name: "nic", Help: "number or MAC of the interface; without it the first with a fitting subnet"}}, run: runAdd,
		},
		{
			name: "withdraw", args: "ADDRESS|PREFIX…", help: "remove addresses for pods from the node",
			run: func(s *Sim, _ map[string]string, args []string) (any, error) {
				return s.modify(args, func(targets []netip.Prefix) error { return withdraw(s.nics, targets) })
			},
		},
		{
			name: "break", args: "KIND", help: "start a fault: an HTTP status, or a kind that 'cloud-sim kinds' lists",
			flags: []roles.Flag{
				{Name: "count", Help: "number of requests that the fault applies to; without it all until heal"},
				{Name: "path", Help: "the fault applies to requests whose paths contain this"},
				{Name: "delay", Default: defaultDelay.String(), Help: "duration of slow-headers and slow-body"},
				{Name: "retry-after", Help: "header of an answer with an HTTP status"},
				{Name: "to", Help: "target of redirect; without it http://192.0.2.1/"},
			}, run: runBreak,
			check: func(flags map[string]string, args []string) error {
				_, err := newFault(args[0], flags)
				return err
			},
		},
		{name: "heal", args: "[KIND…]", help: "end all faults, or these", run: runHeal},
		{
			name: "throttle", args: "COUNT|off", help: "answer 429 to requests above COUNT in a period",
			flags: []roles.Flag{
				{Name: "period", Default: "1s", Help: "the period"},
				{Name: "retry-after", Help: "header of these answers"},
			}, run: runThrottle,
			check: func(flags map[string]string, args []string) error {
				_, err := newThrottle(flags, args[0])
				return err
			},
		},
		{name: "expire", help: "end all tokens", run: func(s *Sim, _ map[string]string, _ []string) (any, error) {
			n := 0
			for _, t := range s.tokens {
				n += t.expire()
			}
			return fmt.Sprintf("%d tokens ended", n), nil
		}},
		{name: "count", help: "show the requests by provider, status and path", run: func(s *Sim, _ map[string]string, _ []string) (any, error) {
			return s.counts.clone(), nil
		}},
		{name: "show", help: "show the node in the form that -node reads", run: func(s *Sim, _ map[string]string, _ []string) (any, error) {
			return clone(s.nics), nil
		}},
	}
}

// Do runs an order in the form of the command line: "break", "429", "--retry-after", "2".
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

// parseCommand finds an order and parses its flags and arguments.
func parseCommand(args []string) (c command, flags map[string]string, rest []string, err error) {
	all := commands()
	names := make([]string, len(all))
	for i, c := range all {
		names[i] = c.name
	}
	if len(args) == 0 || !slices.Contains(names, args[0]) {
		return c, nil, nil, fmt.Errorf("%.40q is not an order: use %s", strings.Join(args, " "), strings.Join(names, ", "))
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

// parse separates flags from arguments: "--flag value" or "--flag=value", anywhere.
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
			return nil, nil, fmt.Errorf("--%.40s is not a flag of this order", name)
		}
		if !given {
			i++
			if i == len(args) {
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
		return nil, nil, fmt.Errorf("%.40q is one argument too many", rest[len(rest)-1])
	}
	return flags, rest, nil
}

func runAdd(s *Sim, flags map[string]string, args []string) (any, error) {
	return s.modify(args, func(targets []netip.Prefix) error { return add(s.nics, flags["nic"], targets) })
}

// modify changes the model completely or, on an error, not at all.
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

// broken lists the active faults.
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

// newThrottle reads the limit of requests.
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
