package cli

import (
	"bytes"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/netops/packets"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/netpolicy"
)

// policies is a node whose agent enforces policies on the pods web, client and other.
const policies = `flanneld
mkdir -p $WORK/policy.d
cat >$WORK/policy.d/web.yaml <<'E'
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress:
  - {from: [{podSelector: {matchLabels: {role: client}}}], ports: [{port: 80}]}
E
cat >$WORK/policy.d/guard.yaml <<'E'
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: guard}
spec:
  tier: Admin
  priority: 10
  subject: {namespaces: {}}
  egress:
  - {name: no-smtp, action: Deny, to: [{networks: [0.0.0.0/0]}], protocols: [{tcp: {destinationPort: {number: 25}}}]}
  - {action: Pass, to: [{namespaces: {}}]}
E
agent --iface eth0 --node-name n1 --ip-masq -policy -policy-dir $WORK/policy.d >>$WORK/agent.log 2>&1 &
agent=$!
trap 'kill $agent' EXIT
until [ -s /var/lib/cnibox/policy.json ] && { product agent status >$WORK/status 2>&1 || [ $? = 4 ]; }; do :; done
pod $overlay web --label app=web
pod $overlay client --label role=client
pod $overlay other
policy() { product policy "$@" 2>&1 | sed 's/10.244.[0-9]*/10.244.0/g'; }
`

// TestPolicyVerbs: explain, list and try say what the agent enforces.
func TestPolicyVerbs(t *testing.T) {
	out := newTestNode(t, true).run(policies + `
policy list
policy explain default/client default/web:80
policy explain default/other default/web:80
policy explain other web:81 2>&1 | sed "s/^/short: /"
policy explain default/client 192.0.2.7:25
policy explain default/client 192.0.2.1:25
policy explain 192.0.2.1 default/web:81
policy explain default/nobody 192.0.2.1
product path --probe client other >/dev/null 2>&1
cat >$WORK/deny.yaml <<'E'
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: deny}, spec: {podSelector: {matchExpressions: [{key: app, operator: DoesNotExist}]}}}
E
policy try $WORK/deny.yaml
policy try $WORK/policy.d/web.yaml
cat >$WORK/close.yaml <<'E'
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: web}, spec: {podSelector: {matchLabels: {app: web}}}}
E
nsenter --net=/run/ns/web /bin/busybox nc -l -p 80 &
policy try --for 8s $WORK/close.yaml >$WORK/tried &
try=$!
while kill -0 $try 2>/dev/null; do product path --probe client web:80 >/dev/null 2>&1; done
cat $WORK/tried
policy try --for -1s $WORK/close.yaml
: >$WORK/tried
until grep -q :80 $WORK/tried; do
	product policy try --for 1h $WORK/close.yaml >$WORK/tried 2>&1 &
	try=$!
	product path --probe client web:80 >/dev/null 2>&1
	kill $try
	wait $try || true
done
sed 's/^/interrupted: /' $WORK/tried
cat >$WORK/closed.yaml <<'E'
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: closed}, spec: {podSelector: {}, policyTypes: [Egress]}}
E
other=$(nsenter --net=/run/ns/other ip -4 -o addr show eth0 | sed 's/.*inet \([0-9.]*\).*/\1/')
nsenter --net=/run/ns/client /bin/bash -c "for p in {1..10000}; do echo >/dev/udp/$other/\$p; done"
policy try --for 1h $WORK/closed.yaml >$WORK/tried
grep 'list ends' $WORK/tried
echo 'kind: Pod' >$WORK/pod.yaml
policy try $WORK/pod.yaml
product policy explain default/other default/web:80 >/dev/null 2>&1 || echo "exit code $?"
for how in "" --probe; do
	for to in web:80 web:81; do product path $how --table client $to 2>&1 | sed 's/10.244.[0-9]*/10.244.0/g' | sed "s/^/path $how $to: /"; done
done
policy list
policy list --rules
policy explain default/client default/web:81
printf 'apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: bad}\nspec:\n  podSelectr: {}\n' >$WORK/bad && mv $WORK/bad $WORK/policy.d/bad.yaml
until product policy list 2>&1 | grep -q bad.yaml; do :; done
policy list 2>&1 | sed "s|$WORK|WORK|"
product agent status 2>&1 | grep bad.yaml | sed "s|.*$WORK|status: WORK|"
product doctor 2>&1 | grep bad.yaml | sed "s|.*$WORK|doctor: WORK|"
product topo | sed 's/10.244.[0-9]*/10.244.0/g'
product ui --port 0 >$WORK/ui.out &
trap "kill $agent $!" EXIT
until grep -q http $WORK/ui.out; do :; done
/bin/busybox wget -qO- $(cat $WORK/ui.out)
`)
	for _, want := range []string{
		`(?m)^default/web\tingress\tingress\[0\]\tAccept\t[1-9][0-9]*\t[1-9][0-9]+$`,
		`(?m)^guard\tegress\tno-smtp\tDeny\t0\t0$`,
		`(?m)^guard\tegress\tegress\[1\]\tPass\t[1-9]`,
		`(?m)^default/web\t10.244.0.3\tguard\tdefault/web\t[1-9]`,
		`10.244.0.3:81 TCP\tdefault/web\tingress\tdenied\t-\t-\t[1-9][0-9]*\tisolated`,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	for _, want := range []string{
		"default/web\t10.244.0.3\tguard\tdefault/web\t0\n",
		"default/other\t10.244.0.5\tguard\t-\t0\n",
		"TCP\tdefault/client\tegress\tallowed\tguard\tegress[1]\t0\ta rule matches: Pass\t",
		"10.244.0.4 -> 10.244.0.3:80 TCP\tdefault/web\tingress\tallowed\tdefault/web\tingress[0]\t0\ta rule allows it\t",
		"default/web\tingress\tdenied\t-\t-\t0\tisolated by default/web, and no rule of these matches\tingress[0] of default/web, which matches the port, and not the peer\n",
		"cnibox: policy explain: the connection is denied\n",
		"10.244.0.4 -> 192.0.2.7:25 TCP\tdefault/client\tegress\tdenied\tguard\tno-smtp\t0\ta rule matches: Deny\t",
		"10.244.0.4 -> 192.0.2.1:25 TCP\tdefault/client\tegress\tdenied\tguard\tno-smtp\t", // the own node
		"192.0.2.1 -> 10.244.0.3:81 TCP\t-\t-\tallowed\t",
		"short: 10.244.0.5 -> 10.244.0.3:81 TCP\tdefault/web\tingress\tdenied",
		`"default/nobody" is neither an address nor a pod`,
		"ICMP\tdefault/other\tingress\tdenied\t",
		"cnibox: policy try: breaks 1 flow of default/other\n",
		"cnibox: policy try: breaks 1 flow of default/web\n",
		"interrupted: cnibox: policy try: breaks 1 flow of default/web\n",
		"--for -1s: want no negative time",
		"cnibox: policy try: the list ends, because it has 10",
		"pod.yaml: Pod without metadata.name\n",
		"exit code 3\n",
		"path  web:81: stopped: network policies deny it: ingress of default/web: isolated by default/web, and no rule of these matches\n",
		"; 'cnibox policy explain --protocol tcp 10.244.0.4 10.244.0.3:81' shows the rules\n",
		"path --probe web:81: stopped: network policies deny it: ingress of default/web: ",
		`cnibox: policy list: WORK/policy.d/bad.yaml:5: spec.podSelectr: spec: json: unknown field "podSelectr": it has no effect`,
		"status: WORK/policy.d/bad.yaml:5: spec.podSelectr",
		"doctor: WORK/policy.d/bad.yaml:5: spec.podSelectr",
		"<h2>network policies that are not in force as they are written</h2>",
		" egress guard ingress default/web rx ",
		"<h2>rules of network policies</h2>",
		`<td data-column="DIRECTION">ingress</td><td data-column="RULE">ingress[0]</td><td data-column="ACTION">Accept</td>`,
		"what would change it: ingress[0] of default/web, which matches the peer, and not the port",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// TestLostPolicies: without the agent, diff and repair see that another program deleted elements of policies, and restore them. 'policy off'
// leaves nothing, and a network without an agent works then.
func TestLostPolicies(t *testing.T) {
	out := newTestNode(t, true).run(policies + `
trap - EXIT
kill $agent; wait $agent || true
nft flush map inet cnibox_policy pod_ingress4
product diff 2>&1 | sed 's/^/diff: /'
product repair --yes 2>&1 | sed 's/^/repair: /'
nft list map inet cnibox_policy pod_ingress4 | grep -c goto
product policy off && nft list tables
/bin/busybox ls /var/lib/cnibox
pod $overlay later
product path --probe client later >/dev/null && echo "later is reached"
`)
	for _, want := range []string{
		"diff: network policies\ndiff:   + pod-policy default/web address 10.244.", "repair: cnibox: repair: nothing is left to repair", "\n1\n", "later is reached",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	for _, left := range []string{"table inet cnibox_policy", "policy.json", "policies"} {
		if strings.Contains(out[strings.LastIndex(out, "repair: "):], left) {
			t.Errorf("policy off left %s:\n%s", left, out)
		}
	}
}

// TestDropPolicies: the line of a dropped packet names the network policy, also that of an answer, and the pods at both ends.
func TestDropPolicies(t *testing.T) {
	state := &netpolicy.State{ImplicitNamespaces: true}
	addr := func(n byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, n}) }
	for i, name := range []string{"web", "client"} {
		p := &netpolicy.Pod{Namespace: "default", Name: name, Labels: map[string]string{"app": name}, Addresses: []netip.Addr{addr(byte(i + 1))}}
		state.Pods = append(state.Pods, p)
		state.Local = append(state.Local, netpolicy.Local{Label: name, Namespace: "default", Name: name, Addresses: p.Addresses})
	}
	o, err := netpolicy.Decode([]byte(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"deny"},"spec":{"podSelector":{"matchLabels":{"app":"web"}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	state.Policies = append(state.Policies, o.Policy)
	var out bytes.Buffer
	l := &dropLog{p: &Process{Stdout: &out}, h: &roles.Host{Now: time.Now}, policies: newPolicyView(state, nil), policyRead: time.Now(), lines: map[dropKey]*dropRecord{}}
	for _, ends := range [][2]string{{"10.0.0.2:4000", "10.0.0.1:80"}, {"10.0.0.1:80", "10.0.0.2:4000"}, {"10.0.0.2:4000", "192.0.2.1:80"}} {
		l.add(packets.Drop{Proto: "tcp", From: netip.MustParseAddrPort(ends[0]), To: netip.MustParseAddrPort(ends[1])})
	}
	for _, want := range []string{
		"10.0.0.2:4000 > 10.0.0.1:80 (default/client > default/web) denied by network policies: ingress of default/web: isolated by default/deny, and no rule of these matches\n",
		"10.0.0.1:80 > 10.0.0.2:4000 (default/web > default/client) denied by network policies: ingress of default/web: ",
		"10.0.0.2:4000 > 192.0.2.1:80\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

// TestDoctorPolicies: a node that enforces policies has no finding, and one that lost what it needs has one.
func TestDoctorPolicies(t *testing.T) {
	for script, want := range map[string]string{
		"": "",
		"kill -STOP $agent; nft delete table inet cnibox_policy; trap 'kill -9 $agent' EXIT":              "agent-down policy-agent policy-table",
		"trap - EXIT; kill -9 $agent; wait $agent || true":                                                "agent-down policy-agent",
		"trap - EXIT; kill -9 $agent; wait $agent || true; rm /var/lib/cnibox/policy.json":                "agent-down policy-agent",
		"trap - EXIT; kill -9 $agent; wait $agent || true; nft flush map inet cnibox_policy pod_ingress4": "agent-down policy-agent policy-element",
	} {
		r := newTestNode(t, true).diagnose(policies + script)
		if have := strings.Join(ids(r), " "); have != want {
			t.Errorf("%q: %s\n%s", script, have, text(t, r))
		}
		for _, f := range r.Findings {
			checkCommand(t, f.Next())
		}
	}
}
