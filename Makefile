# All targets run as root on Debian 12 with Go. `make setup`, which most targets run, installs the Debian packages that they need.

SHELL   := /bin/sh
GO      ?= go
# urfave_cli_no_docs leaves out a Markdown renderer.
TAGS    := urfave_cli_no_docs
# Tests, demos and benchmarks run in private namespaces and never use the machine's network.
SANDBOX := unshare --net --mount --propagation private
# Tests of clients and servers use the loopback interface, which is down in a new namespace.
LOOPBACK := sh -c 'ip link set lo up && exec "$$0" "$$@"'
# All builds use the same settings, so that each package is compiled once.
export CGO_ENABLED = 0
export GOFLAGS = -trimpath
# `make lint` includes go vet.
GOTEST  := $(GO) test -tags $(TAGS) -vet off -ldflags '-s -w'
# FULL=1 takes hours. Otherwise CNIBOX_SWEEP has sweeps probe every fifth write of a role's first configuration, and the slowest tests are
# left out. Storms run for CNIBOX_SOAK seconds; `make soak` runs them with all their containers.
ifdef FULL
export CNIBOX_SOAK  ?= 12
else
export CNIBOX_SOAK  ?= 2
export CNIBOX_SWEEP ?= 5
QUICK := -skip '^Test(Takeover(KillSweep|Faults)|Overlay(KillSweep|FaultSweep))$$'
endif
# Debian's kernel is emulated and slow: sweeps probe every eighth write there. 1 is each.
SWEEP   ?= 8

.PHONY: count libraries sim model test-suites build build-matrix check go-version modules say-missing demo demo-azure demo-policy test test-full test-all mutants vulncheck test-diff test-kube test-cluster conformance conformance-policy test-vm test-vm-kernel test-vm-devices test-kernels test-arm64 lint bench bench-storm bench-scale bench-ranges bench-policy soak fuzz fmt clean setup new-role generate release test-release

build: bin/cnibox

# Phony: Go's build cache decides what to rebuild.
.PHONY: bin/cnibox
bin/cnibox: go-version
	CGO_ENABLED=0 $(GO) build -trimpath -tags $(TAGS) -ldflags='-s -w' -o $@ .

# An older Go, such as Debian 12's, reports an invalid go.mod instead.
go-version:
	@command -v $(firstword $(GO)) >/dev/null || { echo "Go 1.26 or newer is needed, and '$(GO)' is not on PATH: install it from https://go.dev/dl" >&2; exit 1; }
	@case "$$($(GO) env GOVERSION)" in go1.2[6-9]* | go1.[3-9][0-9]* | go[2-9]* | devel*) ;; *) \
		echo "build cnibox: Go 1.26 or newer is needed, and '$(GO)' is $$($(GO) env GOVERSION): install it from https://go.dev/dl" >&2; exit 1 ;; esac

# Each supported processor, with and without PIE and FIPS 140-3, into a temporary directory.
build-matrix: setup
	GO='$(GO)' sh test/build-matrix.sh $(TAGS)

# Fetches modules too, since the tests have no network.
setup: modules
	@sh test/apt.sh

modules: go-version
	@mkdir -p bin; for dir in . test/peers/cri; do (cd $$dir && $(GO) mod download) >bin/modules.log 2>&1 || { head -n 1 bin/modules.log >&2; \
		echo "fetch Go modules: '$(GO) mod download' failed: connect this machine to the network, or set GOPROXY" >&2; exit 1; }; done

# nft of other releases of Debian with its libraries, for tests that list our tables by it.
bin/nft/%:
	$(GO) run ./test/cmd/debian $@ $* nftables libnftables1 libnftnl11 libmnl0 libxtables12 libjansson4 libgmp10 libedit2 libbsd0 libmd0 libtinfo6 libc6

# The package of a new role, with its suite and goldens: make new-role NAME=mark-packets KIND=chained, see CONTRIBUTING.md. KIND is
# interface, ipam or chained; LINK is an interface role's kind of link in the kernel. A failure changes nothing.
new-role: modules
	GO='$(GO)' $(GO) run ./test/cmd/new-role -name '$(NAME)' $(if $(KIND),-kind '$(KIND)') $(if $(LINK),-link '$(LINK)')

# Everything that is generated from the code, and the outputs of commands that pages show.
generate: setup bin/peers/bridge
	GO='$(GO)' sh test/generate.sh code
	$(SANDBOX) $(LOOPBACK) env GO='$(GO)' sh test/generate.sh outputs

demo: build
	@sh test/apt.sh demo
	@$(GO) build -o bin/demo ./test/cmd/demo
	@bin/demo -cnibox bin/cnibox

demo-azure: build
	@sh test/apt.sh demo
	@$(GO) build -o bin/demo-azure ./test/cmd/demo-azure
	@bin/demo-azure -cnibox bin/cnibox

demo-policy: build
	@sh test/apt.sh demo
	@$(GO) build -o bin/demo-policy ./test/cmd/demo-policy
	@bin/demo-policy -cnibox bin/cnibox

# For use after each change, in two minutes: what changed, and the packages that import it. See test/check.sh.
LIFE := Golden|^Test(Role|VLANRole|FirewalldRole|Suite|UnderBridge|Alone|Virtual)$$/./^(life|del|gc)$$
check: modules build
	@GO='$(GO)' TAGS='$(TAGS)' LIFE='$(LIFE)' sh test/check.sh

# Lines of Go by room, and words of documentation. Nothing bounds them.
count:
	@sh test/count.sh

# Builds the program with each of some libraries, and prints what they would cost. It fetches those that go.mod has not.
libraries: go-version
	@$(GO) run ./test/cmd/libraries -tags $(TAGS) $(if $(ONLY),-only '$(ONLY)')

# Simulations of many nodes with 1,000 seeds, and whether they find what three patches of test/sim/testdata break, or all with FULL=1.
# SEED=N plays one seed and prints the logs of its nodes.
SEEDS ?= 1000
sim: setup
	$(SANDBOX) $(LOOPBACK) env CNIBOX_SEEDS=$(SEEDS) SEED=$(SEED) $(GOTEST) -count 1 -timeout 12h -v -run '^TestSim$$' ./roles/ipam/clusterrange ./roles/cluster/nodeipam ./roles/cluster/policy ./roles/cluster/agent
	$(if $(SEED),,$(SANDBOX) $(LOOPBACK) env CNIBOX_SEEDS=1000 CNIBOX_BROKEN=$(if $(FULL),all) $(GOTEST) -count 1 -timeout 60m -run '^TestBroken$$' ./test/sim)

# All histories of a small model of how machines lease blocks of ranges, and of its broken variants: see docs/model.
model:
	@CNIBOX_APT='gcc libc6-dev spin' sh test/apt.sh demo
	sh docs/model/check.sh

# Three tiers of tests: check, test, and test-all, which is .ci/run. PACKAGES and RUN, a regular expression, select tests. The packages that
# take longest begin first, so that no processor is idle at the end.
RUNTESTS = $(SANDBOX) $(LOOPBACK) $(GOTEST) -timeout 40m $(if $(RUN),-count 1 -run '$(RUN)')
ORDERED  = $$($(GO) list ./test/suites/... ./roles/netpolicy/... ./roles/cluster/... ./roles/cli ./netops ./roles/chained/... ./roles/... ./... | grep -v /test/suites/diff$$)

# Before a commit: at most eight minutes on two processors, once what they need is there. test/README.md has the budget. Half of the time
# the tests wait for the kernel, so four packages run at a time, and eight of the tests that say they can.
test: say-missing setup build bin/peers/bridge bin/peers/ovs-cni bin/nft/bullseye bin/nft/trixie
	@$(if $(ALL),CNIBOX_APT=chromium-headless-shell sh test/apt.sh)
	$(RUNTESTS) -p 4 -parallel 8 $(if $(ALL),$(QUICK),-short) $(or $(PACKAGES),$(ORDERED))

# All tests except those of other targets.
test-full:
	$(MAKE) test ALL=1

# Plants 30 faults in the product, which SEED chooses, and reports which of them the tests of `make test` find. Takes hours.
# NEAR=1 runs only the tests of the changed package, and ALL=1 then all tests with those that lived, planted together, in an hour.
# ONLY=netops/route.go plants only there.
mutants: setup build bin/peers/bridge bin/peers/ovs-cni bin/nft/bullseye bin/nft/trixie
	$(GO) build -o bin/mutants ./test/cmd/mutants
	$(SANDBOX) $(LOOPBACK) bin/mutants -tags $(TAGS) $(if $(SEED),-seed $(SEED)) $(if $(N),-n $(N)) $(if $(ONLY),-only '$(ONLY)') $(if $(NEAR),-near $(NEAR)) $(if $(ALL),-all)

# Whether a change may land: see .ci/run.
test-all:
	.ci/run

say-missing: go-version
	@GO='$(GO)' sh test/missing.sh

# Debian's stock kernel in QEMU has what a host kernel may lack. All packages run in one boot, each with the tests that depend on the
# kernel. Tests whose result does not depend on the kernel are left out, and races, which need two processors.
VMSKIP := ^Fuzz|TestOverlayForwardQuiet|TestOverlay(.*Sweep|Victim|FilterTraffic)|TestTakeover|TestLinkDNS|TestManyRoutesOfOtherLink|Race|Beside|ListedByOther|TestForeign|TestReferencePlugin[A-Z]|TestForward(Listed|Owners)|TestFlowsMany|TestUndoOutdatedRoute|TestKind/macvlan
UPPER := TestRole/(layer3|l2)/(versions|fault)|TestRole/.*/(life|del|gc|status|tamper)|Test(Announce|Chained|MTU|Refused|DelWithoutMaster|Status|Passthru|DefaultMaster|FailedAdd|MAC|OtherParent)
VMTESTS := \
	'./roles/iface/bridge=TestRole/(trunk|both|empty)/(life|del|gc|tamper)|TestRole/vlan/(life|del|gc|status|versions|tamper|fault)|TestRemoveEmptyVLANGateway|TestVLANsIdle' \
	'./roles/iface/macvlan=TestRole/layer3/(life|del|gc|status|versions|tamper)' './roles/iface/ipvlan=$(UPPER)' './roles/iface/vlan=$(UPPER)' \
	'./roles/iface/hostdevice=TestReturn|TestHardware/.*/(life|del|gc|status|tamper)' ./roles/iface/dummy \
	'./roles/iface/bond=TestRole/host/state|TestRole/.*/(life|tamper|del|gc|status|fault|kill|again)|TestKeys|TestSameMAC|TestRefused|TestHeld|TestOfOtherNetworks|TestLinkGone|TestFailover|TestNoCarrier|TestReturn' \
	'./roles/iface/ptp=TestTraffic|TestRole/(dual|host|single)/(life|del|gc)' './roles/iface/routed=TestTraffic|TestNodePort|TestRole/cloud/(life|del|gc)' './roles/iface/tap=TestKeys|TestTraffic|TestBridge' \
	'./roles/iface/azurevnet=TestVLANs|TestVLANKeys|TestVLANRole/vlan/(life|del|gc)' \
	'./roles/ipam/dhcp=TestIPvlan|TestDualStack' './test/suites/takeover=TestInterfaces/^(ipvlan|vlan|dummy)$$/^(DEL|GC of what is gone)$$' \
	'./roles/chained/vrf=Test(Add|Two|Refused|Found|Inherit|LinkGone|Parallel|Reference)$$|TestRole/bridge/(life|del|gc|state|status|versions|fault|tamper)|TestRole/(ptp|macvlan)/(life|del|gc|state|tamper)' \
	'./roles/chained/portmap=TestTraffic|TestUDPBefore|TestConditions|TestPodmanLists/^options$$' './roles/chained/bandwidth=TestRole/both/(life|del|gc)' \
	'./roles/meta/multi=TestDocumented/^ipvlan-net$$|TestHostLink$$/^vlan$$' './roles/cli=Test(Probe|Drops|Encrypted|VLAN)$$' './roles/cluster/agent=TestWireGuard' './netops/podfilter=TestBypass|TestWithoutFib' './roles/netpolicy=TestIPVS|TestForgotten' './roles/cluster/policy=TestHostile/(ptp|routed)$$|TestOtherPorts' './store/cluster/kube/election=TestClock'
MACHINE := bin/vm/run -timeout 50m -copy bin/peers -copy bin/kube/etcd -copy bin/kube/flanneld -copy examples -copy docs -env CNIBOX_SWEEP=$(SWEEP) -env CNIBOX_SET_CLOCK=1
VM := $(MACHINE) -skip '$(VMSKIP)|TestNetkit|Test(Traffic|Role)/netkit'

# Debian 13's kernel is the first one with netkit.
NETKIT := ./netops=TestNetkit './roles/iface/ptp=TestNetkit(Chained|MAC)|TestTraffic/netkit|TestRole/netkit' './roles/iface/routed=TestTraffic/netkit|TestRole/netkit' \
	./roles/cli=TestNetkit './roles/cluster/policy=TestHostile/.*_netkit'

.PHONY: bin/vm/run
bin/vm/run:
	$(GO) build -o $@ ./test/cmd/vm

# All tests of the virtual machine on the oldest supported kernel, on 6.1 and on a newer one.
test-kernels: setup bin/peers/bridge bin/kube/flanneld bin/kube/etcd bin/vm/run
	for k in bullseye bookworm trixie; do $(VM) -debian $$k ./netops ./netops/packets ./netops/sockets ./netops/overlay $(VMTESTS) || exit 1; done
	$(MACHINE) -debian trixie $(NETKIT)
	$(MACHINE) $(OVS) -debian bullseye $(OVSTESTS)

# What a machine needs of Open vSwitch, whose datapath is Debian's kernel's there.
OVS := $(addprefix -copy bin/openvswitch/,usr/bin/ovs-vsctl usr/bin/ovsdb-tool usr/sbin/ovsdb-server usr/lib lib usr/share/openvswitch/vswitch.ovsschema)
OVSTESTS := './roles/iface/ovs=TestRole/access/(life|del)$$|TestTraffic|TestTrunk|TestReboot/GC|TestLinkGone'

# Real virtual functions of an emulated card, netkit and Open vSwitch, in a second machine.
FUNCTIONS := $(MACHINE) $(OVS) -functions -debian trixie './roles/iface/sriov=TestRole/keys/(life|tamper|del|gc|state)|TestRole/(untrusted|bare)/life|Test(Traffic|NamespaceGone|CardElsewhere|Reference(Kept)?|Refused|Held|Userspace)$$' \
	'./roles/iface/bond=TestCard$$' './roles/iface/ptp=TestRole/netkit/(life|del|gc)$$' './roles/iface/routed=TestRole/netkit/(life|del|gc)$$' $(OVSTESTS)

# Roles that need no packet filter, on a kernel without one.
WITHOUTNFT := $(VM) -without nf_tables -debian bookworm './roles/iface/hostdevice=TestHardware/deviceID/(life|gc)$$' './roles/iface/ipvlan=TestRole/l2/(life|gc)$$'

# What depends on the kernel most, for CI, on the kernel of one release of Debian.
KERNEL ?= bookworm
LIVES  := /(life|del|gc)$$
test-vm: test-vm-kernel test-vm-devices

test-vm-kernel: setup bin/peers/bridge bin/kube/flanneld bin/kube/etcd bin/vm/run
	$(VM) -debian $(KERNEL) './netops=TestKind|TestBondLinks|TestFeatures|TestDeviceFilters|TestNFT|TestPortVLANs|TestMACNATCarries|TestFlows(Follow|Select)|TestForwardPolicy$$|TestForwardManyRecorded' \
		'./netops/packets=TestTrace|TestCapture' ./netops/sockets './netops/overlay=TestOverlay$$|TestOverlay(Repair|Forward)$$|TestOwnedTable|TestWireGuard' \
		'./roles/iface/bridge=TestRole/(vlan|trunk)$(LIVES)|TestVLANsIdle' './roles/iface/macvlan=TestRole/layer3$(LIVES)' './roles/iface/ipvlan=TestRole/layer3/(fault|kill|life|del|gc|versions)' \
		'./roles/iface/vlan=TestRole/layer3/(fault|kill|life|del|gc|versions)' './roles/iface/hostdevice=TestReturn$$|TestHardware/.*$(LIVES)' './roles/iface/dummy=TestRole/.*$(LIVES)' './roles/iface/bond=TestRole/.*/(life|del|gc|fault)|TestSameMAC|TestHeld|TestOfOtherNetworks|TestFailover|TestReturn' \
		'./roles/iface/ptp=TestTraffic' './roles/iface/routed=TestTraffic' './roles/iface/tap=TestTraffic' './roles/iface/azurevnet=TestVLANs' './roles/ipam/dhcp=TestDualStack' \
		'./roles/cluster/agent=TestWireGuard(Switch|MTU)?$$' './roles/chained/vrf=Test(Add|Two|LinkGone)$$|TestRole/bridge/(fault|life|del|gc)' './roles/chained/portmap=TestTraffic' \
		'./roles/chained/bandwidth=TestRole/both$(LIVES)' './roles/meta/multi=TestHostLink$$/^vlan$$' './roles/cli=Test(Probe|Drops|Encrypted|VLAN)$$' './netops/podfilter=TestBypass|TestWithoutFib' './roles/netpolicy=TestIPVS|TestForgotten' './roles/cluster/policy=TestHostile/ptp$$|TestOtherPorts' './store/cluster/kube/election=TestClock'

test-vm-devices: setup bin/peers/bridge bin/kube/flanneld bin/kube/etcd bin/vm/run
	$(FUNCTIONS)
	$(WITHOUTNFT)

# The binary and a selection of the tests on an emulated arm64. Left out are tests that need another version of nft or several processors.
ARM64 := './test/suites/process=TestEveryRole|TestScripts/^(bridge|loopback|layer2|type)$$' './netops=TestFeatures|TestNFT' './roles/iface/bridge=TestRole/(dual|guard|vlan)/life' \
	'./roles/chained/portmap=TestTraffic' './store=TestAttachment|TestClaims|TestPoolLikeModel|TestLock|TestTruncated' ./store/internal/kv ./roles/call/leasing \
	./netops/internal/nft ./netops/internal/rtnl './netops/internal/nlconn=Fuzz|TestListenerOverrun' ./internal/rawjson ./internal/coldjson
test-arm64: setup bin/vm/run
	CNIBOX_APT=qemu-system-arm sh test/apt.sh
	GOARCH=arm64 $(GO) build -buildvcs=false -tags $(TAGS) -ldflags='-s -w' -o bin/arm64/cnibox .
	bin/vm/run -arch arm64 -copy bin/arm64/cnibox -env CNIBOX_TEST_BINARY=/src/bin/arm64/cnibox -skip 'Race|Child|Beside|ListedByOther|ManyElements' $(ARM64)

bin/golangci-lint: test/peers/tools/go.sum
	cd test/peers/tools && $(GO) build -o ../../../bin/ github.com/golangci/golangci-lint/v2/cmd/golangci-lint mvdan.cc/gofumpt

lint: bin/golangci-lint
	bin/golangci-lint run ./...
	$(GOTEST) -run '^Test(PlainGo|NotPlain)$$' ./test/suites/docs

bin/govulncheck: test/peers/vex/go.sum
	cd test/peers/vex && $(GO) build -o ../../../bin/ golang.org/x/vuln/cmd/govulncheck

# Known vulnerabilities of what the program calls. VULNDB can be a copy of the database: file:///DIR.
VULNDB ?= https://vuln.go.dev
vulncheck: bin/govulncheck
	bin/govulncheck -db $(VULNDB) -tags $(TAGS) .

fmt: bin/golangci-lint
	bin/golangci-lint fmt ./...

# The reference plugins, for comparison only, built from their Go module. REFERENCE=v1.9.1 takes the release before.
REFERENCE ?= v1.10.0
REFERENCEMOD := $(if $(filter v1.10.0,$(REFERENCE)),go,$(REFERENCE))
bin/peers/bridge: bin/reference test/peers/reference/$(REFERENCEMOD).sum
	cd test/peers/reference && $(GO) build -modfile $(REFERENCEMOD).mod -ldflags '-s -w -X github.com/containernetworking/plugins/pkg/utils/buildversion.BuildVersion=$(REFERENCE)' -o ../../../bin/peers/ tool

# ovs-cni, the reference of the role ovs.
bin/peers/ovs-cni: test/peers/ovs-cni/go.sum
	cd test/peers/ovs-cni && $(GO) build -ldflags '-s -w' -o ../../../$@ tool

# What depends on REFERENCE is older than this file if it was built of another release.
.PHONY: FORCE
bin/reference: FORCE
	@mkdir -p bin; echo '$(REFERENCE)' | cmp -s - $@ || echo '$(REFERENCE)' >$@

# The test suites of the reference plugins, which run its plugins and cnibox's. Not a part of `make test-full`: they take ten minutes.
# FULL=1 also runs those that need devices which this kernel lacks, and ovs-cni's, which take two minutes.
bin/suites/integration.test: bin/reference test/peers/suites/$(REFERENCEMOD).sum test/peers/suites/build.sh test/peers/suites/shim/shim.go
	GO='$(GO)' sh test/peers/suites/build.sh $(CURDIR)/bin/suites $(REFERENCEMOD).mod

# The test suites of ovs-cni.
bin/ovs-suites/ovs-mirror-consumer.test: test/peers/ovs-cni/go.sum test/peers/suites/build-ovs.sh test/peers/suites/shim/shim.go
	GO='$(GO)' sh test/peers/suites/build-ovs.sh $(CURDIR)/bin/ovs-suites

FOREIGN := $(TAGS),foreign
test-suites: setup build bin/peers/bridge bin/suites/integration.test bin/vm/run $(if $(FULL),bin/peers/ovs-cni bin/ovs-suites/ovs-mirror-consumer.test)
	$(SANDBOX) $(LOOPBACK) $(GOTEST) -tags $(FOREIGN) -run '^Test$(if $(FULL),(OVS)?)Suites$$' -count 1 -timeout 20m ./test/suites/foreign
	$(if $(FULL),bin/vm/run -timeout 40m -tags $(FOREIGN) -run '^TestSuites$$' -copy bin/cnibox -copy bin/peers -copy bin/suites ./test/suites/foreign)

# Makes the same calls to the reference plugins and to ours. Not a part of `make test-full`. The virtual machine compares a selection of the
# roles that this kernel lacks; DIFFVM=. compares all of them.
DIFFVM  ?= ^(verbs|v4|again|del-without-netns|l3|access|trunk|table|fail-name-taken|two-interfaces|mtu)$$
test-diff: setup build bin/peers/bridge bin/vm/run
	$(SANDBOX) $(GOTEST) -count 1 -timeout 20m ./test/suites/diff
	$(if $(FULL),bin/vm/run -timeout 40m -copy bin/cnibox -copy bin/peers -run 'Test(Diff|Claims)/^(vlan|ipvlan|dummy|bridge-vlan|vrf)$$/$(DIFFVM)' ./test/suites/diff)

# Kubernetes' API server and controller manager, its allocator of pod networks, kubectl, and a current etcd. The build takes minutes when
# Go's build cache is empty.
bin/kube/kube-apiserver: bin/kube/etcd test/peers/kube/go.sum test/peers/kube/cidrset/main.go
	cd test/peers/kube && $(GO) build -o ../../../bin/kube/cidrset ./cidrset
	cd test/peers/kube && $(GO) build -o ../../../bin/kube/ k8s.io/kubernetes/cmd/kubectl k8s.io/kubernetes/cmd/kube-controller-manager
	cd test/peers/kube && $(GO) build -o ../../../bin/kube/kube-apiserver k8s.io/kubernetes/cmd/kube-apiserver

bin/kube/etcd: test/peers/kube/go.sum
	cd test/peers/kube && $(GO) build -o ../../../bin/kube/etcd go.etcd.io/etcd/server/v3

# flannel's daemon, for tests in which its nodes share a cluster with ours.
bin/kube/flanneld: test/peers/flannel/go.sum test/peers/flannel/main.go
	cd test/peers/flannel && $(GO) build -o ../../../bin/kube/flanneld .

# whereabouts' plugin, whose pools the role range takes over, and the definitions of its kinds.
bin/kube/whereabouts: test/peers/whereabouts/go.sum
	cd test/peers/whereabouts && $(GO) build -ldflags '-s -w' -o ../../../$@ tool
	cp -f "$$(cd test/peers/whereabouts && $(GO) list -m -f '{{.Dir}}' github.com/k8snetworkplumbingwg/whereabouts)"/doc/crds/whereabouts.cni.cncf.io_*.yaml bin/kube/

# Helm, which renders the chart.
bin/kube/helm: test/peers/helm/go.sum
	cd test/peers/helm && $(GO) build -o ../../../bin/kube/ helm.sh/helm/v3/cmd/helm

# DraNet's client of its webhook, which asks the role dranet.
bin/kube/dranet: test/peers/dranet/go.sum test/peers/dranet/main.go
	cd test/peers/dranet && $(GO) build -ldflags '-s -w' -o ../../../$@ .

# cyclonus, an evaluator of NetworkPolicies.
bin/kube/cyclonus: test/peers/policy/go.sum test/peers/policy/cyclonus/main.go
	cd test/peers/policy && $(GO) build -ldflags '-s -w' -o ../../../$@ ./cyclonus

# The tests with the build tag kube. Processes that a test leaves end with its process namespace.
KUBE := ./store/cluster/kube/...
test-kube: setup bin/kube/kube-apiserver bin/kube/flanneld bin/kube/helm bin/kube/whereabouts bin/kube/dranet bin/kube/cyclonus
	$(SANDBOX) --pid --fork --kill-child --mount-proc $(GOTEST) -tags $(TAGS),kube -p 1 -count 1 -timeout 20m $(KUBE)
	$(SANDBOX) --pid --fork --kill-child --mount-proc $(GOTEST) -tags $(TAGS),kube -run 'Kube|Flanneld' -p 1 -count 1 -timeout 20m ./roles/cluster/agent ./roles/meta/multi ./roles/cluster/policy ./test/suites/docs ./test/suites/takeover
	$(SANDBOX) --pid --fork --kill-child --mount-proc $(GOTEST) -tags $(TAGS),kube -skip '^TestManyNodes$$' -count 1 -timeout 20m ./roles/cluster/nodeipam # bench-scale measures many Nodes
	$(SANDBOX) --pid --fork --kill-child --mount-proc $(GOTEST) -tags $(TAGS),kube -run 'Kube|IPAMClaims' -count 1 -timeout 20m ./roles/ipam/clusterrange ./roles/cluster/dranet
	$(SANDBOX) $(GOTEST) -tags $(TAGS),kube -run '^TestCyclonus' -count 1 -timeout 20m ./roles/netpolicy # CNIBOX_SETS=10000 takes minutes

# A Kubernetes of three nodes, to which the image and examples/kubernetes are applied. One node runs a current containerd, the others
# Debian's. The test takes three to four minutes.
bin/kube/kubelet: test/peers/kube/go.sum
	cd test/peers/kube && $(GO) build -o ../../../bin/kube/ k8s.io/kubernetes/cmd/kubelet k8s.io/kubernetes/cmd/kube-scheduler
bin/kube/kube-proxy: test/peers/kube/go.sum
	cd test/peers/kube && $(GO) build -o ../../../bin/kube/ k8s.io/kubernetes/cmd/kube-proxy
bin/containerd/containerd: test/peers/containerd/go.sum
	cd test/peers/containerd && $(GO) build -tags no_btrfs,no_devmapper,no_zfs,no_tracing -ldflags '-s -w' -o ../../../bin/containerd/ tool
CLUSTER := build bin/kube/kube-apiserver bin/kube/kubelet bin/kube/kube-proxy
test-cluster: setup $(CLUSTER) bin/containerd/containerd
	$(SANDBOX) $(GOTEST) -tags $(TAGS),cluster -run '^Test(Cluster|InstallContainerd2)$$' -count 1 -timeout 20m ./test/suites/e2e

# The conformance tests of Kubernetes' sig-network on that cluster.
bin/kube/e2e.test: test/peers/kube/go.sum
	cd test/peers/kube && $(GO) build -ldflags '-s -w' -o ../../../bin/kube/agnhost k8s.io/kubernetes/test/images/agnhost
	cd test/peers/kube && $(GO) test -c -ldflags '-s -w' -o ../../../$@ k8s.io/kubernetes/test/e2e
bin/kube/coredns: test/peers/coredns/go.sum test/peers/coredns/main.go
	cd test/peers/coredns && $(GO) build -ldflags '-s -w' -o ../../../$@ .
# With CONTAINERD=2 on containerd 2.
conformance: setup $(CLUSTER) bin/kube/e2e.test bin/kube/coredns bin/containerd/containerd
	CNIBOX_APT='bind9-dnsutils curl netcat-openbsd' sh test/apt.sh
	CNIBOX_CONTAINERD=$(CONTAINERD) $(SANDBOX) $(GOTEST) -tags $(TAGS),cluster -run '^TestConformance$$' -count 1 -timeout 2h ./test/suites/e2e

# Kubernetes' tests of NetworkPolicy and those of network-policy-api, with agents that enforce policies.
bin/kube/policy.test: test/peers/policy/go.sum test/peers/policy/policy_test.go
	cd test/peers/policy && $(GO) test -c -ldflags '-s -w' -o ../../../$@ .
conformance-policy: setup $(CLUSTER) bin/kube/e2e.test bin/kube/policy.test bin/kube/coredns bin/containerd/containerd
	CNIBOX_APT='bind9-dnsutils curl netcat-openbsd' sh test/apt.sh
	$(SANDBOX) $(GOTEST) -tags $(TAGS),cluster -run '^Test(Cluster)?NetworkPolicy$$' -v -count 1 -timeout 2h ./test/suites/e2e

# Writes the medians of three runs. Takes 35 to 50 minutes.
# The README's picture of a terminal, from real commands in namespaces of its own.
.PHONY: docs/terminal.svg
docs/terminal.svg: build
	$(GO) build -o bin/terminal ./test/cmd/terminal
	bin/terminal -cnibox bin/cnibox >bin/terminal.svg
	mv bin/terminal.svg $@

bench: setup build bin/peers/bridge
	$(GO) run ./test/cmd/bench -runs 3 -ours bin/cnibox -peers bin/peers -out BENCHMARKS.md -svg docs/bench.svg -storm-svg docs/storm.svg -readme README.md

# Only ADD beside up to 2,000 containers and with up to 64 calls at a time: replaces that part of the page.
bench-storm: setup build bin/peers/bridge
	$(GO) run ./test/cmd/bench -only storm -ours bin/cnibox -peers bin/peers -out BENCHMARKS.md -storm-svg docs/storm.svg

# Makes packages.
bin/nfpm: test/peers/release/go.sum
	cd test/peers/release && $(GO) build -ldflags '-s -w' -o ../../../bin/ tool

# Writes a release of the tag VERSION to OUT. KEY is minisign's secret key. See docs/release.md. It needs no root.
OUT ?= dist
release: go-version
	@for p in git $(if $(KEY),minisign); do command -v $$p >/dev/null || { echo "release: $$p is missing: apt install $$p" >&2; exit 1; }; done
	@echo "release: builds nfpm into bin unless it is there, then the release into $(OUT). It installs nothing; Go downloads the modules in go.sum."
	@$(MAKE) --no-print-directory bin/nfpm
	$(GO) run ./test/cmd/release -version '$(VERSION)' -out '$(OUT)' $(if $(KEY),-key '$(KEY)')

# Makes a release of a tagged clone and uses every file of it.
test-release: setup bin/nfpm
	$(GO) build -o bin/release ./test/cmd/release
	cd test/peers/vex && $(GO) build -o ../../../bin/vex .
	$(SANDBOX) $(LOOPBACK) $(GOTEST) -tags $(TAGS),release -count 1 -timeout 30m ./test/suites/release

# Thousands of nodes on a real etcd and a real kube-apiserver. Takes 10 to 15 minutes.
bench-scale: setup build bin/kube/kube-apiserver
	$(GO) build -o bin/bench-scale ./test/cmd/bench-scale
	$(SANDBOX) --pid --fork --kill-child --mount-proc bin/bench-scale -cnibox bin/cnibox -kube -out BENCHMARKS.md -svg docs/scale.svg
	CNIBOX_NODES=5000 $(SANDBOX) --pid --fork --kill-child --mount-proc $(GOTEST) -tags $(TAGS),kube -run ManyNodes -v -count 1 -timeout 20m ./roles/cluster/nodeipam

# Addresses from one range on 10 nodes, beside whereabouts, on a real kube-apiserver. Takes up to 11 minutes.
bench-ranges: setup build bin/kube/kube-apiserver bin/kube/whereabouts bin/peers/bridge
	$(GO) build -o bin/bench-scale ./test/cmd/bench-scale
	$(SANDBOX) --pid --fork --kill-child --mount-proc bin/bench-scale -cnibox bin/cnibox -ranges BENCHMARKS.md

# kube-router's controller of network policies.
bin/kube/kube-router: test/peers/kube-router/go.sum test/peers/kube-router/main.go
	cd test/peers/kube-router && $(GO) build -ldflags '-s -w' -o ../../../$@ .

# Network policies on a real kube-apiserver, beside kube-router. Takes 10 to 20 minutes.
bench-policy: setup build bin/kube/kube-apiserver bin/kube/kube-router
	CNIBOX_APT=ipset sh test/apt.sh
	$(GO) build -o bin/bench-scale ./test/cmd/bench-scale
	$(SANDBOX) --pid --fork --kill-child --mount-proc bin/bench-scale -cnibox bin/cnibox -policies BENCHMARKS.md

soak: setup $(CLUSTER) bin/containerd/containerd
	CNIBOX_SOAK=$${SOAK:-300} $(SANDBOX) $(GOTEST) -p 1 -count 1 -timeout 60m -run 'Storm|Soak|Kill|Sweep' ./...
	CNIBOX_SOAK=$${SOAK:-300} $(SANDBOX) $(GOTEST) -tags $(TAGS),cluster -run '^TestCluster$$' -v -count 1 -timeout 60m ./test/suites/e2e
	CNIBOX_SWEEP=1 $(SANDBOX) $(GOTEST) -p 1 -count 1 -timeout 60m -run '(Role|Suite|UnderBridge|Alone|Virtual)/.*/sweep' ./roles/...
	$(MAKE) sim SEEDS=$${NIGHT:-150000} FULL=1

# Runs every fuzz target for FUZZ, one after the other.
FUZZ ?= 30s
fuzz:
	@for p in $$($(GO) list ./...); do \
		for f in $$($(GO) test -tags $(TAGS) -list '^Fuzz' $$p | grep '^Fuzz'); do \
			echo "$$p $$f"; $(SANDBOX) $(GO) test -tags $(TAGS) -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZ) $$p || exit 1; \
		done; \
	done

clean:
	rm -rf bin
