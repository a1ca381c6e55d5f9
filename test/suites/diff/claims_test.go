package diff

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// claim is something that cnibox does and the reference plugins do not. It runs on both sides: the reference must fail.
type claim struct {
	name      string // role/what
	reference string // what the reference plugins do
	ours      string // what cnibox does
	said      bool   // an intended difference says the same
	setup     string // commands on the host, one a line
	needs     func(testing.TB)
	// show makes the calls and returns an error for a wrong state afterwards or for a failed call.
	show func(*host) error
}

// errFault is the fault of the reference that the claim describes. Another error of the reference is a defect of the test.
var errFault = errors.New("fault")

func fault(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errFault, fmt.Sprintf(format, args...))
}

func TestClaims(t *testing.T) {
	reference, ours := bothSides(t)
	for _, c := range allClaims() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.needs != nil {
				c.needs(t)
			}
			if err := c.play(ours); err != nil {
				t.Errorf("cnibox: %v", err)
			}
			err := c.play(reference)
			if !errors.Is(err, errFault) {
				t.Errorf("the reference does not fail as claimed: %v", err)
			}
			t.Logf("the reference: %v", err)
		})
	}
}

func (c *claim) play(s side) error {
	return onHost(s, func(h *host) error {
		err := h.script("ip netns add c1\nip netns add c2\n" + c.setup)
		if err == nil {
			err = c.show(h)
		}
		return err
	})
}

// attachment is one container's interface and the answer of its ADD.
type attachment struct {
	h                 *host
	conf              map[string]any
	container, ifname string
	netns, args       string
}

// attach adds a container to the network of a configuration.
func (h *host) attach(conf, container, ifname string) (*attachment, error) {
	a, err := h.attachment(conf, container, ifname)
	if err != nil {
		return nil, err
	}
	out, err := a.call("ADD")
	if err == nil {
		a.conf["prevResult"] = json.RawMessage(out)
	}
	return a, err
}

func (h *host) attachment(conf, container, ifname string) (*attachment, error) {
	c := testCase{name: container, conf: conf}
	m, err := c.configuration()
	return &attachment{h: h, conf: m, container: container, ifname: ifname, netns: netns(container)}, err
}

func (a *attachment) call(verb string) ([]byte, error) {
	out, err := a.h.execute(call{verb: verb, conf: a.conf, container: a.container, ifname: a.ifname, netns: a.netns, args: a.args})
	if err != nil {
		return nil, fmt.Errorf("%s of %s/%s: %w", verb, a.container, a.ifname, err)
	}
	return out, nil
}

// must is call if the claim is that it succeeds.
func (a *attachment) must(verb string) error {
	if _, err := a.call(verb); err != nil {
		return fault("%v", err)
	}
	return nil
}

// mustFail is call if the claim is that it fails.
func (a *attachment) mustFail(verb, why string) error {
	_, err := a.call(verb)
	said := &cniError{}
	if errors.As(err, &said) {
		return nil
	}
	if err == nil {
		return fault("%s succeeds, but %s", verb, why)
	}
	return err
}

// without returns a fault if a program's output contains a word.
func (h *host) without(word string, program ...string) error {
	out, err := h.run(program...)
	if err != nil {
		return err
	}
	if strings.Contains(out, word) {
		return fault("%q is left: %s", word, strings.Join(program, " "))
	}
	return nil
}

// answers returns a fault if a ping is not answered.
func (h *host) answers(container, address string) error {
	if h.ping(container, address) != "answer" {
		return fault("%s gets no answer from %s", container, address)
	}
	return nil
}
