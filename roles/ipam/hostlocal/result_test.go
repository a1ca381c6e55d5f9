package hostlocal

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const dualStack = `{
	"ranges": [[{"subnet": "10.1.2.0/24"}, {"subnet": "10.2.2.0/24"}], [{"subnet": "2001:db8:1::/64"}]],
	"routes": [
		{"dst": "0.0.0.0/0"}, {"dst": "::/0"},
		{"dst": "192.168.0.0/16", "gw": "1.1.1.1", "mtu": 1400, "advmss": 1360, "priority": 5, "table": 100, "scope": 253},
		{"dst": "2001:db8:2::0/64", "gw": "2001:db8:3::1"}],
	"resolvConf": %q}`

const resolvConf = `# a comment
; another
nameserver 192.0.2.3
nameserver 2001:db8::53
domain example.com
search a.example b.example
options ndots:5 trust-ad
nameserver
sortlist 10.0.0.0
`

// TestResult: the result has the reference's form.
func TestResult(t *testing.T) {
	b := newBed(t)
	path := filepath.Join(b.dir, "resolv.conf")
	if err := os.WriteFile(path, []byte(resolvConf), 0o600); err != nil {
		t.Fatal(err)
	}
	a := b.handlerFor(t, fmt.Sprintf(dualStack, path))
	preview, err := a.Preview(context.Background(), b.Host, request1("one"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := a.Add(context.Background(), b.Host, request1("one"))
	if err != nil {
		t.Fatal(err)
	}
	want := `{
  "cniVersion": "1.1.0",
  "ips": [
    {
      "address": "10.1.2.2/24",
      "gateway": "10.1.2.1"
    },
    {
      "address": "2001:db8:1::2/64",
      "gateway": "2001:db8:1::1"
    }
  ],
  "routes": [
    {
      "dst": "0.0.0.0/0"
    },
    {
      "dst": "::/0"
    },
    {
      "dst": "192.168.0.0/16",
      "gw": "1.1.1.1",
      "mtu": 1400,
      "advmss": 1360,
      "priority": 5,
      "table": 100,
      "scope": 253
    },
    {
      "dst": "2001:db8:2::/64",
      "gw": "2001:db8:3::1"
    }
  ],
  "dns": {
    "nameservers": [
      "192.0.2.3",
      "2001:db8::53"
    ],
    "domain": "example.com",
    "search": [
      "a.example",
      "b.example"
    ],
    "options": [
      "ndots:5",
      "trust-ad"
    ]
  }
}`
	if diff := cmp.Diff(tree(t, want), tree(t, toJSON(t, r))); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(tree(t, want), tree(t, toJSON(t, preview))); diff != "" {
		t.Errorf("preview: %s", diff)
	}
}

// tree decodes a JSON text, so that the order of keys does not matter.
func tree(t *testing.T, text string) any {
	t.Helper()
	var out any
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestResultWithoutGateway(t *testing.T) {
	b := newBed(t)
	a := b.handlerFor(t, `{"ranges": [[{"subnet": "10.1.0.5/32"}], [{"subnet": "2001:db8::7/128"}]]}`)
	r, err := a.Add(context.Background(), b.Host, request1("one"))
	if err != nil {
		t.Fatal(err)
	}
	want := "{\n  \"cniVersion\": \"1.1.0\",\n  \"ips\": [\n    {\n      \"address\": \"10.1.0.5/32\"\n    },\n    {\n      \"address\": \"2001:db8::7/128\"\n    }\n  ]\n}"
	if diff := cmp.Diff(want, toJSON(t, r)); diff != "" {
		t.Error(diff)
	}
}

func TestResolvConfFaults(t *testing.T) {
	b := newBed(t)
	fifo := filepath.Join(b.dir, "fifo")
	mkfifo(t, fifo)
	for _, path := range []string{filepath.Join(b.dir, "absent"), b.dir, fifo} {
		a := b.handlerFor(t, fmt.Sprintf(`{"subnet": "10.1.0.0/24", "resolvConf": %q}`, path))
		err := b.addFails(t, a, request1("one"))
		if !strings.Contains(err.Error(), path) {
			t.Errorf("%s is not named: %v", path, err)
		}
	}
	expect(t, b.leases(t))
}
