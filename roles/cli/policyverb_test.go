package cli

import (
	"strings"
	"testing"
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
until [ -s /var/lib/cnibox/policy.json ] && product agent status >$WORK/status 2>&1; do :; done
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
policy explain default/client 192.0.2.7:25
policy explain default/client 192.0.2.1:25
policy explain default/nobody 192.0.2.1
product path --probe client other >/dev/null 2>&1
cat >$WORK/deny.yaml <<'E'
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: deny}, spec: {podSelector: {matchExpressions: [{key: app, operator: DoesNotExist}]}}}
E
policy try $WORK/deny.yaml
policy try $WORK/policy.d/web.yaml
echo 'kind: Pod' >$WORK/pod.yaml
policy try $WORK/pod.yaml
product policy explain default/other default/web:80 >/dev/null 2>&1 || echo "exit code $?"
`)
	for _, want := range []string{
		"default/web\t10.244.0.3\tguard\tdefault/web\n",
		"default/other\t10.244.0.5\tguard\t-\n",
		"TCP\tdefault/client\tegress\tallowed\tguard\tegress[1]\ta rule matches: Pass\t",
		"10.244.0.4 -> 10.244.0.3:80 TCP\tdefault/web\tingress\tallowed\tdefault/web\tingress[0]\ta rule allows it\t",
		"default/web\tingress\tdenied\t-\t-\tisolated by default/web, and no rule of these matches\tingress[0] of default/web, which matches the port, and not the peer\n",
		"cnibox: policy explain: the connection is denied\n",
		"10.244.0.4 -> 192.0.2.7:25 TCP\tdefault/client\tegress\tdenied\tguard\tno-smtp\ta rule matches: Deny\t",
		"10.244.0.4 -> 192.0.2.1:25 TCP\t-\t-\tallowed\t",
		`"default/nobody" is neither an address nor a pod`,
		"ICMP\tdefault/other\tingress\tdenied\t",
		"cnibox: policy try: breaks 1 flow of default/other\n",
		"pod.yaml: Pod without metadata.name\n",
		"exit code 3\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// TestDoctorPolicies: a node that enforces policies has no finding, and one that lost what it needs has one.
func TestDoctorPolicies(t *testing.T) {
	for script, want := range map[string]string{
		"": "",
		"kill -STOP $agent; nft delete table inet cnibox_policy; trap 'kill -9 $agent' EXIT": "agent-down policy-agent policy-table",
		"trap - EXIT; kill -9 $agent; wait $agent || true":                                   "agent-down policy-agent",
	} {
		r := newTestNode(t, true).diagnose(policies + script)
		if have := strings.Join(ids(r), " "); have != want {
			t.Errorf("%q: %s\n%s", script, have, text(t, r))
		}
		for _, f := range r.Findings {
			checkCommand(t, f.Fix)
		}
	}
}
