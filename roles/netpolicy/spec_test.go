package netpolicy_test

import (
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles/netpolicy"
)

const policyHead = `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"p"},"spec":`

// TestFaults: what the API server refuses is refused, with its path.
func TestFaults(t *testing.T) {
	for spec, want := range map[string]string{
		`{"podSelector":{},"policyTypes":["ingress"]}`:                                                             `spec.policyTypes[0]: "ingress" is not Ingress or Egress`,
		`{"podSelector":{},"ingress":[{"from":[{}]}]}`:                                                             `spec.ingress[0].from[0]: needs podSelector`,
		`{"podSelector":{},"ingress":[{"to":[{"podSelector":{}}]}]}`:                                               `spec.ingress[0]: has the peers of the other direction`,
		`{"podSelector":{},"egress":[{"ports":[{"port":0}]}]}`:                                                     `spec.egress[0].ports[0].port: 0 is not a port`,
		`{"podSelector":{},"egress":[{"ports":[{"port":"a","endPort":9}]}]}`:                                       `ports[0].endPort: excludes a named port`,
		`{"podSelector":{},"egress":[{"ports":[{"endPort":9}]}]}`:                                                  `ports[0].endPort: needs port`,
		`{"podSelector":{},"egress":[{"ports":[{"port":9,"endPort":8}]}]}`:                                         `ports[0].endPort: 8 is not a port of 9 or more`,
		`{"podSelector":{},"egress":[{"ports":[{"port":"123"}]}]}`:                                                 `"123" is not a name of a port`,
		`{"podSelector":{},"egress":[{"ports":[{"port":[1]}]}]}`:                                                   `[1] is not a number or a name`,
		`{"podSelector":{},"egress":[{"ports":[{"protocol":"tcp"}]}]}`:                                             `"tcp" is not TCP, UDP or SCTP`,
		`{"podSelector":{},"egress":[{"to":[{"ipBlock":{"cidr":"10.0.0.1"}}]}]}`:                                   `"10.0.0.1" is not a network`,
		`{"podSelector":{},"egress":[{"to":[{"ipBlock":{"cidr":"10.0.0.0/8","except":["11.0.0.0/9"]}}]}]}`:         `11.0.0.0/9 is not a part of 10.0.0.0/8`,
		`{"podSelector":{},"egress":[{"to":[{"ipBlock":{"cidr":"10.0.0.0/8"},"podSelector":{}}]}]}`:                `ipBlock excludes`,
		`{"podSelector":{},"ingress":[{"from":[{"podSelector":{"matchLabel":{"a":"b"}}}]}]}`:                       `unknown field "matchLabel"`,
		`{"podSelector":{"matchLabels":{"a b":"c"}}}`:                                                              `spec.podSelector.matchLabels: "a b" is not a label's key`,
		`{"podSelector":{"matchExpressions":[{"key":"a","operator":"In"}]}}`:                                       `In needs values`,
		`{"podSelector":{"matchExpressions":[{"key":"a","operator":"Exists","values":["b"]}]}}`:                    `must be empty with Exists`,
		`{"podSelector":{"matchExpressions":[{"key":"a","operator":"Like"}]}}`:                                     `"Like" is not In, NotIn`,
		`{"podSelector":{"matchExpressions":[{"key":"A.b/` + strings.Repeat("x", 64) + `","operator":"Exists"}]}}`: `is not a label's key`,
	} {
		if _, err := netpolicy.Decode([]byte(policyHead + spec + "}")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", spec, err, want)
		}
	}
}

// TestDefaults: policyTypes follow from the rules.
func TestDefaults(t *testing.T) {
	for spec, want := range map[string][2]bool{
		`{"podSelector":{}}`:                                     {netpolicy.Ingress: true},
		`{"podSelector":{},"egress":[{}]}`:                       {true, true},
		`{"podSelector":{},"egress":[]}`:                         {netpolicy.Ingress: true},
		`{"podSelector":{},"policyTypes":["Egress"]}`:            {netpolicy.Egress: true},
		`{"podSelector":{},"policyTypes":["Egress","Ingress"]}`:  {true, true},
		`{"podSelector":{},"policyTypes":["Like"]}`:              {true, true}, // invalid: isolated
		`{"podSelector":{"matchLabels":{"-":"b"}},"ingress":[]}`: {netpolicy.Ingress: true},
	} {
		o, _ := netpolicy.Decode([]byte(policyHead + spec + "}"))
		if o == nil || o.Policy.Isolates != want {
			t.Errorf("%s: %+v, want %v", spec, o, want)
		}
	}
}

// FuzzDecode: no text makes the decoder or the compiler panic, and a valid policy compiles to rules that print.
func FuzzDecode(f *testing.F) {
	f.Add(everything)
	f.Add(policyHead + `{"podSelector":{},"egress":[{"ports":[{"port":1,"endPort":2}]}]}}`)
	f.Fuzz(func(t *testing.T, doc string) {
		o, err := netpolicy.Decode([]byte(doc))
		if err != nil || o.Policy == nil {
			return
		}
		table := netpolicy.NewTable()
		table.PutPolicy(o.Policy)
		table.PutPod(&netpolicy.Pod{Namespace: o.Policy.Namespace, Name: "p"})
		table.SetLocal([]netpolicy.Local{{Label: "l", Namespace: o.Policy.Namespace, Name: "p"}})
		for _, c := range table.Ruleset().Chains {
			_ = c.String()
		}
		_ = table.Save(true)
	})
}
