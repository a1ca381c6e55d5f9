package cloudsim

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/cnibox/cnibox/internal/service"
	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cluster/process"
)

// settings are the arguments of a simulator.
type settings struct {
	providers, listen []string
	node              string
	sketch            sketch
	script, control   string
	verbose           bool
}

const synopsis = `cloud-sim PROVIDER… [FLAG…]: simulate a cloud's metadata service
cloud-sim ORDER … [--control PATH]: send an order to a running simulator

PROVIDER is one of:`

// parseArgs reads providers and flags, in any order, and reports all errors at once.
func parseArgs(args []string) (*settings, error) {
	s := &settings{sketch: articleNode()}
	f := s.flags()
	var words []string
	for {
		if err := f.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return nil, help(f)
			}
			return nil, roles.Usagef("%w: 'cloud-sim -help' lists the flags", err)
		}
		if f.NArg() == 0 {
			break
		}
		words, args = append(words, f.Arg(0)), f.Args()[1:]
	}
	s.providers = words
	_, err := choose(words)
	errs := []error{err}
	if s.node != "" {
		f.Visit(func(one *flag.Flag) {
			if strings.Contains(" nics addresses prefixes subnet own mac ipv6 mtu ", " "+one.Name+" ") {
				errs = append(errs, fmt.Errorf("-node and -%s: give one of them", one.Name))
			}
		})
	}
	for _, p := range []struct{ name, path string }{{"-node", s.node}, {"-script", s.script}, {"-control", s.control}} {
		if p.path != "" && !filepath.IsAbs(p.path) {
			errs = append(errs, fmt.Errorf("%s: %q is not an absolute path", p.name, p.path))
		}
	}
	if _, err := s.sketch.draw(); s.node == "" && err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, roles.Usagef("%w", err)
	}
	return s, nil
}

func help(f *flag.FlagSet) error {
	var b strings.Builder
	b.WriteString(synopsis)
	for _, p := range providers() {
		fmt.Fprintf(&b, "\n  %-13s at %s", p.name, strings.Join(p.at, ", "))
	}
	fmt.Fprintf(&b, "\n  %-13s by the path of a request\n\nflags:%s", allProviders, process.Usage(f))
	b.WriteString("\n\nORDER is one of:\n  kinds: list what 'break' can break")
	for _, c := range commands() {
		fmt.Fprintf(&b, "\n  %s: %s", strings.TrimSpace(c.name+" "+c.args), c.help)
		for _, f := range c.flags {
			fmt.Fprintf(&b, "\n    --%s: %s", f.Name, f.Help)
			if f.Default != "" {
				fmt.Fprintf(&b, " (%s)", f.Default)
			}
		}
	}
	return process.Help(b.String())
}

func (s *settings) flags() *flag.FlagSet {
	f := flag.NewFlagSet("cloud-sim", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.Func("listen", "`address` with a port; repeatable; the default is the cloud's, which must be an address of this host", func(v string) error {
		if _, err := netip.ParseAddrPort(v); err != nil {
			return fmt.Errorf("%.60q is not an address with a port: use one as 168.63.129.16:80", v)
		}
		s.listen = append(s.listen, v)
		return nil
	})
	f.StringVar(&s.node, "node", "", "`path` of a JSON file that describes the node; without it the flags from -nics on describe the node")
	f.IntVar(&s.sketch.nics, "nics", s.sketch.nics, "`number` of interfaces")
	f.IntVar(&s.sketch.addresses, "addresses", s.sketch.addresses, "`number` of addresses for pods in each subnet")
	f.IntVar(&s.sketch.prefixes, "prefixes", 0, "`number` of prefixes for pods in each subnet, /28 and /80")
	f.TextVar(&s.sketch.subnet, "subnet", s.sketch.subnet, "`network` of the first interface")
	f.TextVar(&s.sketch.own, "own", s.sketch.own, "the node's own `address` on it; the addresses behind it are for pods")
	f.Func("mac", "`MAC` of the first interface ("+s.sketch.mac.String()+")", func(v string) (err error) {
		s.sketch.mac, err = net.ParseMAC(v)
		if err == nil && len(s.sketch.mac) != 6 {
			err = fmt.Errorf("%.60q has not 6 bytes", v)
		}
		return err
	})
	f.BoolVar(&s.sketch.ipv6, "ipv6", false, "each interface also has an IPv6 subnet, from 2001:db8:240::/64 on")
	f.IntVar(&s.sketch.mtu, "mtu", 0, "`MTU` that the cloud reports, if it reports one")
	f.StringVar(&s.script, "script", "", "`path` of a file with orders: \"@3 break 429 --count 2\" before the third request")
	f.StringVar(&s.control, "control", controlSocket, "`path` of the socket for orders")
	f.BoolVar(&s.verbose, "verbose", false, "log each request")
	return f
}

// maxScript bounds a script, in bytes.
const maxScript = 1 << 20

// serve runs a simulator until ctx ends.
func serve(ctx context.Context, args []string, logTo io.Writer) error {
	set, err := parseArgs(args)
	if err != nil {
		return err
	}
	level := slog.LevelWarn
	if set.verbose {
		level = slog.LevelInfo
	}
	log := slog.New(slog.NewTextHandler(logTo, &slog.HandlerOptions{Level: level}))
	o := Options{Providers: set.providers, Listen: set.listen, Log: log}
	if set.node != "" {
		o.NICs, err = readNode(set.node)
	} else {
		o.NICs, err = set.sketch.draw()
	}
	if err != nil {
		return err
	}
	if set.script != "" {
		b, err := smallfile.Read(set.script, maxScript)
		if err != nil {
			return err
		}
		o.Script = string(b)
	}
	s, err := Start(ctx, o)
	if err != nil {
		return err
	}
	defer s.Close() //nolint:errcheck // the process ends
	l, unlock, err := service.Listen(set.control)
	if err != nil {
		return err
	}
	defer unlock()
	log.Info("serving", "providers", set.providers, "addresses", s.Addrs(), "control", set.control)
	return s.control(ctx, l)
}
