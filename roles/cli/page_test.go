package cli

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/test/browser"
)

// documented runs the commands in the blocks "console" of a page on the node, and compares their outputs. A command
// has the prompt "#". With -update it writes the outputs instead.
func (n *testNode) documented(page string) {
	n.t.Helper()
	raw, err := os.ReadFile(page)
	if err != nil {
		n.t.Fatal(err)
	}
	const begin, mark = "```console\n", "\x01\n"
	script := "cd $WORK\nrun() { printf '\\001\\n'; sh -c \"$1\" 2>&1 || echo \"[exit code $?]\"; }\n"
	blocks := strings.Split(string(raw), begin)
	for _, block := range blocks[1:] {
		for line := range strings.Lines(block) {
			if line == "```\n" {
				break
			}
			if command, is := strings.CutPrefix(line, "# "); is {
				if args, ours := strings.CutPrefix(command, "cnibox "); ours {
					command = "product " + args // the test's program has its own roles as "cnibox"
				}
				script += "run '" + strings.ReplaceAll(strings.TrimSpace(command), "'", `'\''`) + "'\n"
			}
		}
	}
	outputs := strings.Split(n.run(script), mark)[1:]
	got := blocks[0]
	for _, block := range blocks[1:] {
		old, after, _ := strings.Cut(block, "```\n")
		got += begin
		for line := range strings.Lines(old) {
			if strings.HasPrefix(line, "# ") {
				got += line + outputs[0]
				outputs = outputs[1:]
			}
		}
		got += "```\n" + after
	}
	if got == string(raw) {
		return
	}
	if !*update {
		n.t.Errorf("%s differs from what its commands print; run 'make generate'\n%s", page, got)
	} else if err := os.WriteFile(page, []byte(got), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

// shellPage has what the blocks "sh" of a page need on the node.
type shellPage struct {
	setup string
	// replace has pairs of a documented text, such as a placeholder, and the text that is run.
	replace []string
	// want is a part of the output.
	want string
}

// shellPages has the pages whose blocks need more than a node with pods.
func shellPages() map[string]shellPage {
	const pods = `
pod $net web-id --args 'K8S_POD_NAMESPACE=default;K8S_POD_NAME=web'
pod $net db-id --args 'K8S_POD_NAMESPACE=default;K8S_POD_NAME=db'
`
	const agent = "trap 'kill $! || true' EXIT\n"
	return map[string]shellPage{
		"docs/cli.md":     {want: "DEL with /opt/cni/bin takes "},
		"docs/doctor.md":  {want: " checks passed"},
		"docs/ipam.md":    {replace: []string{"FILE", "$net"}},
		"docs/overlay.md": {setup: agent, replace: []string{"cnibox agent cleanup", "kill $!; wait $! || true; cnibox agent cleanup"}},
		"docs/packets.md": {
			setup: pods + `
ip address add 10.244.2.7/32 dev lo
ip link add flannel.1 type vxlan id 1 dstport 8472 local 192.0.2.1 dev eth0
ip link set flannel.1 up
ip route add 10.244.0.0/24 dev flannel.1
printf '#!/bin/sh\ncat >/dev/null\n' >$WORK/path/wireshark
chmod +x $WORK/path/wireshark
`,
			want: "5432: refused",
		},
		"docs/runtimes.md": {setup: "mv $net 10-pods.conflist"},
		"docs/trace.md":    {replace: []string{"kill $!", "kill $!; cat node.json"}, want: `"container":"p1"`},
		"docs/troubleshooting.md": {
			setup: pods + "nft 'add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; }'\n",
			replace: []string{
				"CONTAINER", "p1", "FILE", "$net", "vethXXXXXXXXXXX", "$(veth p1 net)", "cni9", "br78", "10.22.0.2", "10.78.0.2", "NETNS", "/run/ns/p1",
				"cnibox repair ", "cnibox repair --yes ", "--at 03:12", "--at 0s",
			},
		},
	}
}

// fence matches the first line of a block of commands, and the reason why a test cannot run it.
var fence = regexp.MustCompile("^ *```(sh|bash|shell)\\b *(.*)\n$")

// shBlocks returns a script of the blocks "sh" of a page that are run, each behind its line.
func shBlocks(t *testing.T, page string) (script string) {
	t.Helper()
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	n, run := 0, false
	for line := range strings.Lines(string(b)) {
		n++
		first := fence.FindStringSubmatch(line)
		switch {
		case first != nil && first[1] == "sh" && first[2] == "":
			run = true
			script += fmt.Sprintf("echo '%s, line %d' >&2\n", page, n)
		case first != nil && (first[1] != "sh" || !regexp.MustCompile(`^not run: .+`).MatchString(first[2])):
			t.Errorf("%s, line %d: want ```sh, or ```sh not run: REASON", page, n)
		case strings.TrimSpace(line) == "```":
			run = false
		case run:
			script += line
		}
	}
	return script
}

// TestShell runs the blocks "sh" of all pages as a reader pastes them, each page on a node of its own. A block that ends with an error, or
// does not end, fails.
func TestShell(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob("../../*.md")
	if err != nil {
		t.Fatal(err)
	}
	known, ran := shellPages(), 0
	for _, page := range append(pages, more...) {
		name := strings.TrimPrefix(page, "../../")
		script, with := shBlocks(t, page), known[name]
		delete(known, name)
		if script == "" {
			if with.setup+with.want != "" {
				t.Errorf("%s has no block that is run", name)
			}
			continue
		}
		ran++
		t.Run(filepath.Base(name), func(t *testing.T) {
			out := newTestNode(t, false).run(`PATH=$PATH:/usr/sbin:/usr/bin:/sbin:/bin
cat >$WORK/path/cnibox <<'EOF'
#!/bin/sh
case "$1 $2" in
"agent -"*) shift; exec agent "$@" ;;
drops* | capture*) more="--for 1ms" ;;
bench*) more="--rounds 2" ;;
esac
verb=$1
shift
exec product $verb $more "$@"
EOF
chmod +x $WORK/path/cnibox
mkdir $WORK/page
cd $WORK/page
` + with.setup + "\n" + strings.NewReplacer(with.replace...).Replace(script))
			if !strings.Contains(out, with.want) {
				t.Errorf("no %q in\n%s", with.want, out)
			}
		})
	}
	if ran < 10 || len(known) > 0 {
		t.Errorf("%d pages have commands that are run; missing: %v", ran, slices.Collect(maps.Keys(known)))
	}
}

// halfADD attaches a pod by the first plugin of its list, and the second one fails.
const halfADD = `
touch /run/ns/half-id
unshare --net=/run/ns/half-id sh -c :
PATH=$PATH:/usr/bin:/bin
CNI_PATH=/opt/cni/bin CNI_CONTAINERID=half-id CNI_NETNS=/run/ns/half-id CNI_IFNAME=eth0 CNI_ARGS="K8S_POD_NAMESPACE=default;K8S_POD_NAME=half" sh -ec '
	export CNI_PATH CNI_CONTAINERID CNI_NETNS CNI_IFNAME CNI_ARGS CNI_COMMAND=ADD
	{ printf "{\"cniVersion\":\"1.0.0\",\"name\":\"net\","; sed -n "s/.*{\(\"type\": \"bridge\".*\)/\1/p; s/^ *\(\"ipam.*\)},$/\1}/p" '$net'; } | /opt/cni/bin/bridge >$WORK/result
	printf "%s" "{\"cniVersion\":\"1.0.0\",\"name\":\"net\",\"runtimeConfig\":{\"portMappings\":[{\"hostPort\":8080,\"containerPort\":80,\"protocol\":\"tcp\"}]},\"prevResult\":$(cat $WORK/result)}" |
		/opt/cni/bin/portmap >$WORK/failed && exit 1 || true'
`

// TestHalfADD: an attachment of which a later plugin failed is not done, and has a problem.
func TestHalfADD(t *testing.T) {
	out := newTestNode(t, false).run(halfADD + "product state default/half; product state; product topo")
	for _, want := range []string{
		"\n  state      failed\n  error      ADD of portmap failed: error 112: ", "\tbridge\tfailed\t", "    ! ADD of portmap failed: error 112: ",
		"\n  eth0  veth uplink 192.0.2.1/24 ",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// uiNode is a node with the overlay, policies, and pods of which one lost its address, one has only what the first plugin of its
// list made, and one could not be attached.
const uiNode = policies + `
own=$(sed -n 's/.*10\.244\.\([0-9]*\)\..*/\1/p' /var/lib/cnibox/cluster/nodes/n1.json | head -n 1)
free=$([ $own -lt 100 ] && echo 200 || echo 20) # the agent has chosen its network at random
for i in 3 4 5; do sed "s/n2/n$i/; s/244.7/244.$((free + i))/; s/192.0.2.2/192.0.2.$i/; s/c2:00:02/c2:00:0$i/" /var/lib/cnibox/cluster/nodes/n2.json >$WORK/n$i.json; done
mv $WORK/n[345].json /var/lib/cnibox/cluster/nodes
for i in 1 2 3 4; do pod $net web-$i-id --args "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-$i"; done
product add $net db-0-id /run/ns/db-0 --args "K8S_POD_NAMESPACE=default;K8S_POD_NAME=db-0" 2>$WORK/failed && exit 1
in_pod web-3-id ip addr flush dev eth0
` + halfADD + `in_pod other busybox nc -w 1 $(in_pod web ip -4 -o addr show eth0 | sed 's/.*inet \([0-9.]*\).*/\1/') 81 </dev/null || true
in_pod client busybox ping -q 10.244.0.1 >/dev/null 2>&1 &
ping=$!
until [ "$(/sbin/bridge fdb show dev flannel.1 | grep -c dst)" = 4 ]; do :; done
product ui --port 0 >$WORK/address & p=$!
until [ -s $WORK/address ]; do :; done
`

// TestUIPage opens the page of a node in a browser: it follows the node, has the calls that the node's plugins had, and can be read. With
// -update it takes the picture of docs/trace.md.
func TestUIPage(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	if address := os.Getenv("CLITEST_ADDRESS"); address != "" { // on the node
		readUIPage(t, address)
		return
	}
	n := newTestNode(t, true)
	n.env = "CNIBOX_PICTURES=" + os.Getenv("CNIBOX_PICTURES")
	arguments := ""
	if *update {
		arguments = "-update"
	}
	t.Log(n.run(uiNode + "export CLITEST_ADDRESS=$(cat $WORK/address)\n$SELF -test.v -test.run '^TestUIPage$' " + arguments + "\nkill $p $ping $agent; wait $p $agent || true; trap - EXIT"))
}

func readUIPage(t *testing.T, address string) {
	t.Helper()
	p := browser.Open(t, address)
	p.Wait(`content.innerHTML.includes("packets/s")`)
	page := p.Text("document.body.outerHTML")
	for _, want := range []string{
		`<span class="line">default/half</span>`, ">! ADD of portmap failed: error ", " calls of plugins, 2 failed</h2>",
		"ADD bridge default/web-1\neth0 on network net, called by cnibox: ", "ADD bridge default/db-0\n",
		`<span class="line">n5</span><span class="line">192.0.2.5</span>`, "<h2>4 other nodes</h2>", "uplink: has the default route",
		"<p>Policies have denied packets. With -policy-log the agent says of which pods.</p>", " of pods</h2>", ">masqueraded by eth0<", ">policies default/web, guard<", ">! denied ",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if !regexp.MustCompile(`(?s)class="call problem" data-details="[^"]* ADD bridge default/db-0\n[^"]*error 8: `).MatchString(page) {
		t.Error("the failed call is not marked")
	}
	for _, width := range []int{1400, 390} {
		for _, scheme := range []string{"light", "dark"} {
			p.Show(width, scheme)
			for _, fault := range p.Faults() {
				t.Errorf("%d %s: %s", width, scheme, fault)
			}
			if dir := os.Getenv("CNIBOX_PICTURES"); dir != "" {
				p.Picture(filepath.Join(dir, fmt.Sprintf("ui-%d-%s.png", width, scheme)), width, 0)
			}
		}
	}
	if messages := p.Messages(); len(messages) > 0 {
		t.Error(messages)
	}
	if *update {
		p.Show(1400, "light")
		p.Picture("../../docs/ui.png", 1400, 985)
	}
	if t.Failed() {
		t.Log(page)
	}
}

// TestDiffDocs runs the commands of docs/doctor.md whose output it shows.
func TestDiffDocs(t *testing.T) { newTestNode(t, false).documented("../../docs/doctor.md") }

// TestReadOnly: verbs that only read work on a read-only file system.
func TestReadOnly(t *testing.T) {
	out := newTestNode(t, false).run(`
in_pod p1 ip link set eth0 down
mount -o remount,ro /run
product diff && exit 1
[ $? = 3 ] || product diff
product topo`)
	for _, want := range []string{"  ~ link eth0 netns container up ", "  │    ! link eth0 netns container up: want state up, have state down: cnibox repair\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// TestProgress: verbs that take a time for each attachment show it on a terminal, and remove it at the end.
func TestProgress(t *testing.T) {
	newTestNode(t, false).run(`
export CLITEST_ERR_TERMINAL=1
end=$(printf '\r\033[K')
shows() { # UNITS COMMAND…
	unit=$1
	shift
	product "$@" 2>$WORK/bar >$WORK/out
	grep -q "\[.*\] 1 of [0-9]* $unit" $WORK/bar
	grep -qF "$end" $WORK/bar
}
shows attachments diff
shows attachments check --all
shows attachments topo
shows attachments doctor
in_pod p2 ip link set eth0 down
shows attachments repair --yes
shows steps bench $net --rounds 2
shows attachments gc $net --none`)
}

// TestNightPage runs the commands of the table in docs/troubleshooting.md on a node with a broken pod. Those that
// look at the pod name what is broken.
func TestNightPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	table, _, _ := strings.Cut(string(page), "\n\nIf that does not")
	commands := regexp.MustCompile("`(cnibox [^`]*)`").FindAllStringSubmatch(table[strings.Index(table, "|---|"):], -1)
	if len(commands) < 10 {
		t.Fatalf("%d commands", len(commands))
	}
	script := `
product add $net p9 /run/ns/none 2>$WORK/err && exit 1
in_pod p1 ip addr flush dev eth0
now() { # COMMAND…
	code=0
	product "$@" >$WORK/out 2>&1 || code=$?
	echo "code $code: $*"
	cat $WORK/out
}
`
	concrete := strings.NewReplacer("cnibox", "now", "capture", "capture --for 1ms -o $WORK/p1.pcapng", "drops", "drops --for 1ms",
		"POD", "p1", "ADDRESS", "10.78.0.3", "FILE", "$net")
	for _, c := range commands {
		checkCommand(t, strings.NewReplacer("POD", "", "ADDRESS", "", "FILE", "").Replace(c[1]))
		script += concrete.Replace(c[1]) + "\n"
	}
	out := newTestNode(t, false).run(script)
	for _, want := range []string{
		"code 3: doctor\n", "\taddress-missing\tp1 eth0 on net\ta pod lost its address\t", "code 0: trace --failed\n", "\"/run/ns/none\": no such network namespace",
		"code 3: diff\np1 on net, eth0\n  + address 10.78.0.2/24 dev eth0 netns container  (undo -)\n", "\tadded\t10.78.0.2/24\tp1\t",
		"code 3: path p1 10.78.0.3\nWHERE\tWHAT\t\nstopped: p1 has no route to 10.78.0.3", "code 0: drops ", "\n10.78.0.2\tnet\tlive\t",
		"code 0: history 10.78.0.3\n", "code 1: agent status\ncnibox: agent status: no agent runs on this node", "code 0: trace --last 20\n",
		"code 3: diff --after /etc/cni/net.d/10-net.conflist\n", "code 0: capture ", "code 0: topo\n", "    ! address 10.78.0.2/24 dev eth0 netns container: want present",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}
