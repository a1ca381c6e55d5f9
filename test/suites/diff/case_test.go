package diff

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// testCase is one configuration and the calls that are made with it on both sides.
type testCase struct {
	name string // role/what
	// conf is the plugin's configuration; name "net" and cniVersion are added.
	conf    string
	behind  []string // the plugins behind it
	version string   // 1.1.0 if empty
	args    string   // CNI_ARGS
	ifname  string   // eth0 if empty
	setup   string   // commands on the host, one a line
	// steps has one step a line: a call ("ADD", "DEL id=c2 if=eth1 netns= noprev nopath"), a command ("ip link del x"), "PING CONTAINER
	// ADDRESS", "SERVE CONTAINER PORT", which starts a TCP server, "DIAL NAMESPACE ADDRESS", which connects to a server, also from
	// host and outside, or "HOLD CONTAINER", which keeps a namespace alive when its path is removed. Empty stands for ADD, CHECK,
	// DEL.
	steps string
	needs func(testing.TB)
}

const defaultSteps = "ADD\nCHECK\nDEL"

// step is one line of the steps.
type step struct {
	verb              string // empty for a command
	command           string
	container, ifname string
	netns             string
	noPrev, noPath    bool
}

func (c *testCase) plan() []step {
	text := c.steps
	if text == "" {
		text = defaultSteps
	}
	var out []step
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if slices.Contains([]string{"PING", "HOLD", "SERVE", "DIAL"}, words[0]) {
			out = append(out, step{verb: words[0], container: words[1], command: words[len(words)-1]})
			continue
		}
		if words[0] != strings.ToUpper(words[0]) {
			out = append(out, step{command: line})
			continue
		}
		s := step{verb: words[0], container: "c1", ifname: c.ifname, netns: netns("c1")}
		if s.ifname == "" {
			s.ifname = "eth0"
		}
		for _, w := range words[1:] {
			switch key, value, _ := strings.Cut(w, "="); key {
			case "id":
				s.container, s.netns = value, netns(value)
			case "if":
				s.ifname = value
			case "netns":
				s.netns = value
			case "noprev":
				s.noPrev = true
			case "nopath":
				s.noPath = true
			default:
				panic("unknown word " + w + " in a step of " + c.name)
			}
		}
		out = append(out, s)
	}
	return out
}

// containers returns the containers that the steps name.
func containers(steps []step) []string {
	var out []string
	for _, s := range steps {
		if s.container != "" && s.verb != "DIAL" && !slices.Contains(out, s.container) {
			out = append(out, s.container)
		}
	}
	return out
}

// configuration returns what a runtime sends to the first plugin.
func (c *testCase) configuration() (map[string]any, error) { return c.plugin(c.conf) }

// plugin returns what a runtime sends to a plugin.
func (c *testCase) plugin(text string) (map[string]any, error) {
	conf := map[string]any{}
	if err := json.Unmarshal([]byte(text), &conf); err != nil {
		return nil, fmt.Errorf("%s: %w", c.name, err)
	}
	conf["cniVersion"] = "1.1.0"
	if c.version != "" {
		conf["cniVersion"] = c.version
	}
	if conf["name"] == nil {
		conf["name"] = "net"
	}
	return conf, nil
}

// play runs the case on one side.
func (c *testCase) play(s side) (facts, error) {
	var out facts
	err := onHost(s, func(h *host) (err error) {
		out, err = c.playOn(h)
		return err
	})
	return out, err
}

func (c *testCase) playOn(h *host) (facts, error) {
	h.given = strings.ToLower(c.conf + strings.Join(c.behind, "") + c.args + c.setup + c.steps + uplink)
	h.shaped = len(c.behind) > 0
	defer h.close()
	f, steps := facts{}, c.plan()
	for _, id := range containers(steps) {
		if err := h.container(id); err != nil {
			return nil, err
		}
	}
	if err := h.script(c.setup); err != nil {
		return nil, err
	}
	seen, results := map[string]int{}, map[string]json.RawMessage{}
	for _, s := range steps {
		if s.verb == "" {
			if err := h.script(s.command); err != nil {
				return nil, err
			}
			continue
		}
		if s.verb == "PING" {
			f.add("PING: "+s.container+" to "+s.command, h.ping(s.container, s.command))
			continue
		}
		if s.verb == "SERVE" {
			if err := h.serve(s.container, s.command); err != nil {
				return nil, err
			}
			continue
		}
		if s.verb == "DIAL" {
			f.add("DIAL: "+s.container+" to "+s.command, h.dial(s.container, s.command))
			continue
		}
		if s.verb == "HOLD" {
			ns, err := os.Open(netns(s.container))
			if err != nil {
				return nil, err
			}
			defer ns.Close()
			continue
		}
		when := s.verb
		if seen[s.verb]++; seen[s.verb] > 1 {
			when += strconv.Itoa(seen[s.verb])
		}
		if err := c.call(h, s, f, when, results); err != nil {
			return nil, fmt.Errorf("%s: %w", when, err)
		}
		if s.verb != "ADD" && s.verb != "DEL" {
			continue
		}
		if err := errors.Join(h.state(f, when, containers(steps)), h.leases(f, when)); err != nil {
			return nil, fmt.Errorf("%s: %w", when, err)
		}
	}
	return f.renamed(h.names), nil
}

// call runs the plugins in order, for DEL in reverse, and records the answer of the last one.
func (c *testCase) call(h *host, s step, f facts, when string, results map[string]json.RawMessage) error {
	plugins := append([]string{c.conf}, c.behind...)
	switch s.verb {
	case "DEL":
		slices.Reverse(plugins)
	case "VERSION":
		plugins = plugins[len(plugins)-1:]
	}
	key := s.container + "/" + s.ifname
	prev, added := results[key]
	if s.verb == "ADD" {
		prev, added = nil, false
	}
	var out []byte
	for _, text := range plugins {
		conf, err := c.plugin(text)
		if err != nil {
			return err
		}
		if (s.verb == "DEL" || s.verb == "CHECK") && added && !s.noPrev || s.verb == "ADD" && prev != nil {
			conf["prevResult"] = prev
		}
		out, err = h.execute(call{verb: s.verb, conf: conf, container: s.container, ifname: s.ifname, netns: s.netns, args: c.args, noPath: s.noPath})
		said := &cniError{}
		switch {
		case errors.As(err, &said):
			f.add(when+": answer", "error")
			f.add(when+": error code", strconv.Itoa(said.Code))
			f.add(when+": error cniVersion", said.CNIVersion)
			f.add(when+": error text", strings.TrimSpace(said.Msg+" "+said.Details))
			return nil
		case err != nil:
			return err
		}
		if s.verb == "ADD" {
			prev = bytes.Clone(out)
		}
	}
	f.add(when+": answer", "success")
	if s.verb == "ADD" {
		results[key] = prev
	}
	result, err := decodeObject(out)
	if err != nil {
		f.add(when+": answer", "no JSON")
		return nil
	}
	f.flatten(when+": result ", result, nil)
	return nil
}

// status is the outcome of a case, from which the list of intended differences is judged.
type status int

const (
	notStarted status = iota
	skipped
	ran
)

func TestDiff(t *testing.T) {
	reference, ours := bothSides(t)
	cases := allCases()
	led := newLedger(intendedDifferences(), release(t))
	t.Cleanup(func() { led.judge(t, cases) }) // when all cases have ended
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			led.mark(c.name, skipped)
			if c.needs != nil {
				c.needs(t)
			}
			a, b := c.compare(t, reference, ours)
			led.mark(c.name, ran)
			for _, d := range compare(a, b) {
				if !led.intended(c.name, d) {
					t.Errorf("%v", d)
				}
			}
			led.count(len(a), len(b))
			if os.Getenv("CNIBOX_DIFF_FACTS") != "" {
				for _, k := range slices.Sorted(maps.Keys(b)) {
					t.Logf("%s = %s", k, b[k])
				}
			}
		})
	}
}

// compare runs the case on both sides at the same time.
func (c *testCase) compare(t *testing.T, reference, ours side) (facts, facts) {
	t.Helper()
	type played struct {
		facts facts
		err   error
	}
	other := make(chan played, 1)
	go func() {
		f, err := c.play(reference)
		other <- played{f, err}
	}()
	b, err := c.play(ours)
	a := <-other
	if err := errors.Join(a.err, err); err != nil {
		t.Fatal(err)
	}
	return a.facts, b
}
