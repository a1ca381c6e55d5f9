package protocol

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles"
)

// TestConf covers the reference's scenario "option parsing".
func TestConf(t *testing.T) {
	for _, c := range []struct{ name, ipam, faults string }{
		{"defaults", `{}`, ""},
		{"all", `{"daemonSocketPath":"/a","families":["ipv6","ipv4"],"clientID":"container","priority":4294967295,
			"request":[{"option":"26"},{"skipDefault":true}],"provide":[{"option":"host-name","value":"a"},{"option":"60","fromArg":"X"}]}`, ""},
		{"unknown keys", `{"more":1}`, ""},
		{
			"many faults", `{"daemonSocketPath":"run/x","families":["ipv4","ipv5","ipv4"],"clientID":"mac","priority":-1,
			"request":[{"option":"bootp"},{"option":"0"}],"provide":[{"option":"255"},{"value":"x"},{"option":"12","value":"` + strings.Repeat("x", 256) + `"}]}`,
			`ipam.daemonSocketPath ipam.families[1] ipam.families[2] ipam.clientID ipam.request[0].option ipam.request[1].option ` +
				`ipam.provide[0].option ipam.provide[1].option ipam.provide[2].value ipam.priority`,
		},
		{"long socket", `{"daemonSocketPath":"/` + strings.Repeat("x", 107) + `"}`, "ipam.daemonSocketPath"},
		{"wrong type", `{"request":"routers"}`, "ipam.request"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Decode([]byte(`{"name":"n","ipam":` + c.ipam + `}`))
			var paths []string
			for _, e := range flat(err) {
				var ce *roles.ConfError
				if !errors.As(e, &ce) {
					t.Fatalf("%v is not a ConfError", e)
				}
				paths = append(paths, ce.Path)
			}
			if got := strings.Join(paths, " "); got != c.faults {
				t.Errorf("faults %s\nwant   %s\n%v", got, c.faults, err)
			}
		})
	}
}

func flat(err error) []error {
	if err == nil {
		return nil
	}
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		return j.Unwrap()
	}
	return []error{err}
}

func TestRequested(t *testing.T) {
	for ipam, want := range map[string][]uint8{
		`{}`: {121, 33, 1, 3, 6, 15, 119},
		`{"request":[{"option":"interface-mtu"},{"option":"3"},{"option":"200"}]}`: {121, 33, 1, 3, 6, 15, 119, 26, 200},
		`{"request":[{"skipDefault":true},{"option":"subnet-mask"}]}`:              {1},
	} {
		c, err := Decode([]byte(`{"ipam":` + ipam + `}`))
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Requested(); !slices.Equal(got, want) {
			t.Errorf("%s: %d, want %d", ipam, got, want)
		}
	}
}

func TestProvided(t *testing.T) {
	c, err := Decode([]byte(`{"ipam":{"provide":[{"option":"host-name","value":"a","fromArg":"N"},{"option":"60","fromArg":"V"},{"option":"77","value":"u"}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{"": "12=a 77=u", "N=b;V=c": "12=b 60=c 77=u"} {
		args, err := roles.ParseArgs(text)
		if err != nil {
			t.Fatal(err)
		}
		options, err := c.Provided(args)
		var got []string
		for _, o := range options {
			got = append(got, fmt.Sprintf("%d=%s", o.Code, o.Value))
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%q: %s %v, want %s", text, got, err, want)
		}
	}
	args, _ := roles.ParseArgs("N=" + strings.Repeat("x", 256))
	if _, err := c.Provided(args); !errors.Is(err, roles.ErrEnv) {
		t.Errorf("error %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(`{"name":"n","ipam":{"families":["ipv6"],"provide":[{"option":"12","fromArg":"A"}],"request":[{"option":"3"}]}}`, "A=b")
	f.Fuzz(func(_ *testing.T, conf, text string) {
		c, err := Decode([]byte(conf))
		if err != nil {
			return
		}
		c.Requested()
		args, err := roles.ParseArgs(text)
		if err != nil {
			return
		}
		_, _ = c.Provided(args)
	})
}
