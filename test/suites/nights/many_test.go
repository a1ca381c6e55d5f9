package nights

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The most system calls that doctor and diff make for one more pod with two addresses, a published port and limits of its bandwidth:
// all without those of waiting, those with which requests are sent, and those of locks.
const (
	maxPodCalls    = 130
	maxPodRequests = 25
	maxPodLocks    = 3
)

// TestManyPods counts what doctor and diff cost for each pod, and breaks many pods in the same way.
func TestManyPods(t *testing.T) {
	few, pods, broken := 20, 60, 50
	n := boot(t)
	n.must(`rm $net
ln -s cnibox /opt/cni/bin/bandwidth
cat >/etc/cni/net.d/05-many.conflist <<-'JSON'
	{"cniVersion": "1.0.0", "name": "many", "plugins": [
	  {"type": "bridge", "bridge": "br80", "isDefaultGateway": true, "ipMasq": true,
	   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.80.0.0/16"}], [{"subnet": "fd80::/64"}]]}},
	  {"type": "portmap", "capabilities": {"portMappings": true}},
	  {"type": "bandwidth", "capabilities": {"bandwidth": true}},
	  {"type": "firewall", "ingressPolicy": "same-bridge"}]}
	JSON`)
	n.pods(1, few)
	before := map[string]calls{"doctor": n.calls("doctor"), "diff": n.calls("diff")}
	n.pods(few+1, pods)
	for verb, first := range before {
		now := n.calls(verb)
		each := func(now, before int) int { return (now - before) / (pods - few) }
		all, requests, locks := each(now.all, first.all), each(now.requests, first.requests), each(now.locks, first.locks)
		t.Logf("%s makes %d system calls for a pod, %d of them requests and %d of locks", verb, all, requests, locks)
		if all > maxPodCalls || requests > maxPodRequests || locks > maxPodLocks || requests < 2 {
			t.Errorf("%s makes %d system calls for a pod, %d of them requests and %d of locks: want %d, %d and %d", verb, all, requests, locks, maxPodCalls, maxPodRequests, maxPodLocks)
		}
	}

	if os.Getenv("CNIBOX_SWEEP") == "" { // FULL=1
		n.pods(pods+1, 500)
		broken = 250
	}
	n.must(fmt.Sprintf(`for link in $(ip -o link | sed -n 's,^[0-9]*: \(veth[0-9a-f]*\)@.*many/eth0/m.*,\1,p' | head -n %d); do ip link set $link down; done`, broken))
	out, _ := n.sh("cnibox doctor --json 2>/dev/null")
	var report struct {
		Findings []struct {
			ID, Object, Evidence, Fix string
			Attachments               []struct{ ContainerID string }
		}
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatal(err, out)
	}
	if f := report.Findings; len(f) != 1 || f[0].ID != "link-changed" || len(f[0].Attachments) != broken || f[0].Fix != "cnibox repair" ||
		!strings.HasSuffix(f[0].Evidence, fmt.Sprintf("; and %d more; %d attachments", broken-3, broken)) {
		t.Errorf("%d pods with one fault: %.2000s", broken, out)
	}
	n.must("cnibox repair --yes >/dev/null")
	if out, code := n.sh("cnibox doctor; cnibox diff"); code != 0 {
		t.Errorf("after the repair: %s", out)
	}
}

// pods attaches pods.
func (n *node) pods(first, last int) {
	n.t.Helper()
	for i := first; i <= last; i += 100 {
		n.must(fmt.Sprintf(`for i in $(seq %d %d); do
	touch /run/netns/m$i
	unshare --net=/run/netns/m$i true
	cnibox add /etc/cni/net.d/05-many.conflist m$i /run/netns/m$i --cap "{\"portMappings\":[{\"hostPort\":$((10000+i)),\"containerPort\":80,\"protocol\":\"tcp\"}],
		\"bandwidth\":{\"ingressRate\":1000000,\"ingressBurst\":1000000,\"egressRate\":1000000,\"egressBurst\":1000000}}" >/dev/null
done`, i, min(last, i+99)))
	}
}

// calls are numbers of system calls.
type calls struct{ all, requests, locks int }

// calls counts the system calls of a verb, without those of waiting, of which a busy machine has more.
func (n *node) calls(verb string) (sum calls) {
	n.t.Helper()
	waiting := strings.Fields("nanosleep futex sched_yield epoll_pwait epoll_ctl tgkill getpid rt_sigreturn restart_syscall madvise")
	out, code := n.sh("strace -f -c -o $WORK/calls $SELF " + verb + " >/dev/null && cat $WORK/calls")
	if code != 0 {
		n.t.Fatal(out)
	}
	for line := range strings.Lines(out) {
		f := strings.Fields(line) // % time, seconds, usecs/call, calls, errors or nothing, syscall
		if len(f) < 5 || f[len(f)-1] == "total" || slices.Contains(waiting, f[len(f)-1]) {
			continue
		}
		count, _ := strconv.Atoi(f[3]) // the head has none
		sum.all += count
		switch f[len(f)-1] {
		case "sendto", "sendmsg", "sendmmsg", "write":
			sum.requests += count
		case "flock", "fcntl":
			sum.locks += count
		}
	}
	return sum
}

// TestDiffStreams reads the first difference while the CHECK of another network's plugin runs, which ends only after that.
func TestDiffStreams(t *testing.T) {
	n := boot(t)
	out, code := n.sh(`ln -s cnibox /opt/cni/bin/x
sed 's/{"type": "portmap"/{"type": "x"}, &/; s/"net"/"z"/; s/br78/br76/; s/10.78/10.76/; s/fd78/fd76/' $net >$WORK/z.conflist
rm /opt/cni/bin/x
plugin x 'case $CNI_COMMAND in CHECK) while [ -e /run/hang ]; do sleep 1; done ;; *) exec /opt/cni/bin/tuning ;; esac'
pod $WORK/z.conflist p4
touch /run/hang
ip link set $(veth p1 net) down
ip link set $(veth p4 z) down
{ cnibox diff --json 2>$WORK/problem || true; } | {
	while read -r line && [ "$line" != "}," ] && [ "$line" != "}" ]; do echo "$line"; done >$WORK/first
	rm /run/hang
	cat >$WORK/rest
}
grep -q '"network": "net"' $WORK/first
cat $WORK/problem >&2
cnibox diff --json 2>/dev/null || true`)
	if code != 0 || strings.Contains(out, "not compared") {
		t.Fatalf("exit code %d\n%s", code, out)
	}
	var all []struct{ Network string }
	start := strings.Index(out, "\n[") + 1
	if err := json.Unmarshal([]byte(out[start:]), &all); err != nil || len(all) < 2 || all[0].Network != "net" || all[len(all)-1].Network != "z" {
		t.Errorf("%v in\n%s", err, out)
	}
}
