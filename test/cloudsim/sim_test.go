package cloudsim

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster/clustertest"
)

var update = flag.Bool("update", false, "write the goldens anew")

// start starts a simulator for a test.
func start(t *testing.T, o Options) *Sim {
	t.Helper()
	clustertest.Loopback(t)
	if len(o.Listen) == 0 {
		o.Listen = []string{"127.0.0.1:0"}
	}
	s, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// do runs an order that must succeed.
func do(t *testing.T, s *Sim, args ...string) any {
	t.Helper()
	out, err := s.Do(args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// raw sends a request unchanged, and returns the whole answer.
func raw(t *testing.T, s *Sim, request string) (string, error) {
	t.Helper()
	c, err := net.Dial("tcp", s.Addrs()[0])
	if err != nil {
		return "", err
	}
	defer c.Close()
	if _, err := io.WriteString(c, request); err != nil {
		return "", err
	}
	b, err := io.ReadAll(c)
	return string(b), err
}

// get is a raw GET request; headers are lines.
func get(t *testing.T, s *Sim, path string, headers ...string) (*http.Response, string) {
	t.Helper()
	return ask(t, s, "GET", path, headers...)
}

func ask(t *testing.T, s *Sim, method, path string, headers ...string) (*http.Response, string) {
	t.Helper()
	out, err := raw(t, s, method+" "+path+" HTTP/1.1\r\nHost: metadata\r\nConnection: close\r\n"+strings.Join(append(headers, ""), "\r\n")+"\r\n")
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.ReadResponse(bufio.NewReader(strings.NewReader(out)), nil)
	if err != nil {
		t.Fatalf("%v: %q", err, out)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r, string(body)
}

func addrs(s ...string) (all []netip.Addr) {
	for _, a := range s {
		all = append(all, netip.MustParseAddr(a))
	}
	return all
}

func prefixes(s ...string) (all []netip.Prefix) {
	for _, p := range s {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

// twoNICs is a node with addresses and prefixes of both families.
func twoNICs() []store.CloudNIC {
	network := prefixes("10.0.0.0/16", "100.64.0.0/16", "2001:db8:1::/56")
	return []store.CloudNIC{
		{
			MAC: "0a:1b:2c:3d:4e:01", ID: "eni-0123456789abcdef0", Primary: true, MTU: 9001, Network: network, DNS: addrs("10.0.0.2"),
			Subnets: []store.CloudSubnet{
				{Prefix: prefixes("10.0.0.0/24")[0], Gateway: addrs("10.0.0.1")[0], Own: addrs("10.0.0.10"), Addresses: addrs("10.0.0.11", "10.0.0.12")},
				{Prefix: prefixes("2001:db8:1:1::/64")[0], Gateway: addrs("fe80::1")[0], Own: addrs("2001:db8:1:1::10"), Ranges: prefixes("2001:db8:1:1:aaaa::/80")},
			},
		},
		{
			MAC: "0a:1b:2c:3d:4e:02", ID: "eni-0123456789abcdef1", Device: 1, MTU: 9001, Network: network,
			Subnets: []store.CloudSubnet{
				{Prefix: prefixes("10.0.1.0/24")[0], Own: addrs("10.0.1.20"), Addresses: addrs("10.0.1.21"), Ranges: prefixes("10.0.1.64/28")},
			},
		},
	}
}

// TestGolden: the answers of each provider for one node, and its refusals. A golden file has requests ("> ") and their answers.
func TestGolden(t *testing.T) {
	for _, p := range providers() {
		t.Run(p.name, func(t *testing.T) {
			s := start(t, Options{Providers: []string{p.name}, NICs: twoNICs()})
			path := filepath.Join("testdata", p.name+".txt")
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var have bytes.Buffer
			for _, block := range requests(string(want)) {
				fmt.Fprint(&have, block)
				first, more, _ := strings.Cut(strings.ReplaceAll(block, "> ", ""), "\n")
				method, path, _ := strings.Cut(first, " ")
				r, body := ask(t, s, method, path, strings.FieldsFunc(more, func(r rune) bool { return r == '\n' })...)
				fmt.Fprintf(&have, "%s\n", r.Status)
				for _, name := range []string{"Content-Type", "Content-Length", "ETag", "Location", "Metadata-Flavor", "Server", awsToken + "-Ttl-Seconds", alibabaToken + "-Ttl-Seconds"} {
					if v := r.Header.Get(name); v != "" {
						fmt.Fprintf(&have, "%s: %s\n", name, v)
					}
				}
				fmt.Fprintf(&have, "\n%s\n\n", body)
			}
			if *update {
				if err := os.WriteFile(path, have.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(want), have.String()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// requests returns the blocks of lines that begin with "> ".
func requests(golden string) (blocks []string) {
	var block strings.Builder
	for line := range strings.Lines(golden) {
		if strings.HasPrefix(line, "> ") {
			block.WriteString(line)
		} else if block.Len() > 0 {
			blocks = append(blocks, block.String())
			block.Reset()
		}
	}
	return blocks
}

// TestArticle: the default node is the one of the article about AKS, in the same words.
func TestArticle(t *testing.T) {
	s := start(t, Options{Providers: []string{"azure"}})
	var want strings.Builder
	want.WriteString(`<Interfaces><Interface MacAddress="000D3A51C490" IsPrimary="true"><IPSubnet Prefix="10.240.0.0/16"><IPAddress Address="10.240.0.35" IsPrimary="true"/>`)
	for i := 36; i <= 65; i++ {
		fmt.Fprintf(&want, `<IPAddress Address="10.240.0.%d" IsPrimary="false"/>`, i)
	}
	want.WriteString("</IPSubnet></Interface></Interfaces>")
	_, body := get(t, s, "/machine/plugins?comp=nmagent&type=getinterfaceinfov1")
	if diff := cmp.Diff(want.String(), body); diff != "" {
		t.Error(diff)
	}
}

// TestAll: one address serves every cloud, by the path and, where three clouds share it, by other parts of a request.
func TestAll(t *testing.T) {
	s := start(t, Options{Providers: []string{"all"}})
	for _, c := range []struct {
		name, path string
		headers    []string
		status     int
	}{
		{"azure", "/machine/plugins?comp=nmagent&type=getinterfaceinfov1", nil, 200},
		{"azure-imds", "/metadata/versions", []string{"Metadata: true"}, 200},
		{"gcp", "/computeMetadata/v1/", []string{"Metadata-Flavor: Google"}, 200},
		{"tencent", "/latest/meta-data/mac", nil, 200},
		{"tencent", "/tencent/latest/meta-data/mac", nil, 200},
		{"aws", "/latest/meta-data/mac", []string{awsToken + ": x"}, 401},
		{"aws", "/aws/latest/meta-data/mac", nil, 401},
		{"alibaba", "/latest/meta-data/mac", []string{alibabaToken + ": x"}, 401},
		{"alibaba", "/alibaba/latest/meta-data/mac", nil, 403},
		{"oracle", "/opc/v2/vnics/", []string{"Authorization: Bearer Oracle"}, 200},
		{"openstack", "/openstack/latest/network_data.json", nil, 200},
		{"digitalocean", "/metadata/v1.json", nil, 200},
		{"hetzner", "/hetzner/v1/metadata", nil, 200},
		{"vultr", "/v1.json", nil, 200},
		{"none", "/nowhere", nil, 404},
	} {
		before := s.counts.clone().Providers[c.name]
		r, body := get(t, s, c.path, c.headers...)
		if r.StatusCode != c.status {
			t.Errorf("%s %s: %s: %s", c.name, c.path, r.Status, body)
		}
		if counts := do(t, s, "count").(*Counts); counts.Providers[c.name] != before+1 {
			t.Errorf("%s was not for %s: %v", c.path, c.name, counts.Providers)
		}
	}
}

// TestNowhere: if the cloud's address is not this host's, the error says how to add it.
func TestNowhere(t *testing.T) {
	_, err := Start(t.Context(), Options{Providers: []string{"azure"}})
	if err == nil || !strings.Contains(err.Error(), "ip address add 168.63.129.16 dev lo") {
		t.Errorf("%v", err)
	}
}

// TestArguments: all errors of a command line are reported.
func TestArguments(t *testing.T) {
	for _, c := range []struct {
		args []string
		want []string
	}{
		{nil, []string{"no provider is named"}},
		{[]string{"azur"}, []string{`"azur" is no provider: use azure, azure-imds`}},
		{[]string{"azure", "-nics", "99", "-node", "x"}, []string{`-node and -nics`, `-node: "x" is not an absolute path`}},
		{[]string{"azure", "-nics", "99"}, []string{`-nics: 99: use 0 to 64`}},
		{[]string{"azure", "-own", "10.1.0.1"}, []string{`-own: 10.1.0.1 is not in 10.240.0.0/16`}},
		{[]string{"azure", "-subnet", "10.240.0.0/28", "-own", "10.240.0.4"}, []string{"has no 30 addresses"}},
		{[]string{"azure", "-prefixes", "4000"}, []string{"has no 4000 prefixes"}},
		{[]string{"azure", "-mac", "00:00:5e:00:53:01:02:03"}, []string{"has not 6 bytes", "-help' lists"}},
		{[]string{"azure", "-listen", "168.63.129.16"}, []string{"is not an address with a port"}},
		{[]string{"azure", "-nosuch"}, []string{"-help' lists"}},
	} {
		_, err := parseArgs(c.args)
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v, want %q in it", c.args, err, want)
			}
		}
	}
	s, err := parseArgs([]string{"-nics", "2", "azure", "-ipv6", "azure-imds", "-addresses=3", "-prefixes", "2"})
	if err != nil {
		t.Fatal(err)
	}
	nics, err := s.sketch.draw()
	if err != nil || !slices.Equal(s.providers, []string{"azure", "azure-imds"}) || len(nics) != 2 {
		t.Fatalf("%v, %v, %v", nics, err, s.providers)
	}
	if four := nics[1].Subnets[0]; nics[1].MAC != "00:0d:3a:51:c4:91" || four.Prefix.String() != "10.241.0.0/16" ||
		fmt.Sprint(four.Own, four.Addresses, four.Ranges) != "[10.241.0.35] [10.241.0.36 10.241.0.37 10.241.0.38] [10.241.128.0/28 10.241.128.16/28]" {
		t.Errorf("%+v", nics[1])
	}
	if six := nics[1].Subnets[1]; six.Prefix.String() != "2001:db8:240:1::/64" ||
		fmt.Sprint(six.Own, six.Ranges) != "[2001:db8:240:1::4] [2001:db8:240:1:8000::/80 2001:db8:240:1:8001::/80]" {
		t.Errorf("%+v", six)
	}
	if _, err := parseArgs([]string{"-help"}); err == nil || !strings.Contains(err.Error(), "azure         at 168.63.129.16:80") {
		t.Errorf("-help: %v", err)
	}
}
