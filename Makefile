# Everything runs as root on Debian 12 with Go. `make demo` and `make test` set up what they need by themselves.

SHELL   := /bin/sh
GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
# HTTP/1.1 is what etcd's gateway and API servers are spoken to with: HTTP/2 costs each start, and half a megabyte.
TAGS    := urfave_cli_no_docs,nethttpomithttp2
LDFLAGS := -s -w -X github.com/cnibox/cnibox/internal/entry.Version=$(VERSION)
# Functions of these are not inlined: 1.8 MB of 17, for 3 % of a start.
COLD    := crypto/... vendor/... net net/http/... net/url net/textproto text/... regexp/... math/big encoding/asn1 encoding/xml \
	os/exec os/signal flag mime/... compress/... github.com/...
# Of these they are after all: 0.1 MB, for a tenth of an ADD.
HOT     := $(addprefix github.com/cnibox/cnibox/,internal/coldjson store roles/attach roles/node)
# Tests, the demo and the benchmark never see the machine's own network.
SANDBOX := unshare --net --mount --propagation private
# One way to compile for all that is built here, so that each package is compiled once.
export CGO_ENABLED = 0
export GOFLAGS = -trimpath
# go vet is a part of lint.
GOTEST  := $(GO) test -tags $(TAGS) -vet off -ldflags '-s -w'
# Seconds that soaks and random kills run: make soak is for more of them.
export CNIBOX_SOAK ?= 12
# On Debian's emulated kernel sweeps probe every so many-th write: 1 is each.
SWEEP   ?= 4

.PHONY: build demo demo-azure test test-diff test-kube test-vm lint bench bench-scale soak fuzz fmt clean setup

build: bin/cnibox

# Go's own cache decides what is rebuilt. Linked once more with its symbols, since what a plugin needs is to be initialized first.
.PHONY: bin/cnibox
BUILD := $(GO) build -tags $(TAGS) $(COLD:%=-gcflags=%=-l) $(HOT:%=-gcflags=%=)
bin/cnibox:
	$(BUILD) -ldflags '$(filter-out -s,$(LDFLAGS))' -o $@.symbols .
	$(BUILD) -ldflags '$(LDFLAGS)' -o $@ .
	@$(GO) list -tags $(TAGS) -deps ./internal/entry | $(GO) run ./internal/initorder $@.symbols $@

# Modules are fetched here: the tests have no network.
setup:
	@sh test/apt.sh
	@$(GO) mod download
	@cd test/cri && $(GO) mod download

demo: setup build
	@$(GO) build -o bin/demo ./test/demo
	@bin/demo -cnibox bin/cnibox

demo-azure: setup build
	@$(GO) build -o bin/demo-azure ./test/demo-azure
	@bin/demo-azure -cnibox bin/cnibox

test: setup build bin/peers/bridge
	$(SANDBOX) $(GOTEST) -p 3 -timeout 20m $$($(GO) list ./... | grep -v /test/diff$$)

# Debian's stock kernel in QEMU, for what a host kernel may lack: one boot, each package with what it has to show there.
# What shows nothing of a kernel that the host's does not show, and races, which want two processors, are left out.
VMSKIP := ^Fuzz|TestOverlay(.*Sweep|Victim|FilterTraffic)|TestTakeover(Faults|KillSweep|Victim)|TestLinkDNS|TestManyRoutesDoNotCount|Race|Beside|TestForeign|TestForward(Listed|Owners)|TestFlowsMany|TestUndoOutdatedRoute|TestKind/macvlan
UPPER := TestRole/(layer3|l2)/(versions|fault)|TestRole/.*/(life|del|gc|status|tamper)|Test(Announce|Chained|MTU|Refused|DelWithoutMaster|Status|Passthru|DefaultMaster|FailedAdd|MAC|OtherParent)
test-vm: setup bin/peers/bridge
	$(GO) build -o bin/vm/run ./test/vm
	bin/vm/run -timeout 50m -copy bin/peers -copy examples -env CNIBOX_SWEEP=$(SWEEP) -skip '$(VMSKIP)' ./netops ./netops/overlay \
		'./roles/iface/bridge=TestRole/(trunk|both|empty)/(life|del|gc|tamper)|TestRole/vlan/(life|del|gc|status|versions|tamper|fault)|TestRemoveEmptyVLANGateway|TestVLANsIdle' \
		'./roles/iface/macvlan=TestRole/layer3/(life|del|gc|status|versions|tamper)' './roles/iface/ipvlan=$(UPPER)' './roles/iface/vlan=$(UPPER)' \
		'./roles/iface/hostdevice=TestReturn|TestHardware$$' ./roles/iface/dummy \
		'./roles/iface/ptp=TestTraffic|TestRole/(dual|host|single)/(life|del|gc)' './roles/iface/routed=TestTraffic|TestNodePort|TestRole/cloud/(life|del|gc)' './roles/iface/tap=TestKeys|TestTraffic|TestBridge' \
		'./roles/iface/azurevnet=TestVLANs|TestVLANKeys|TestVLANRole/vlan/(life|del|gc)' \
		'./roles/ipam/dhcp=TestIPvlan|TestDualStack' './test/takeover=TestInterfaces/^(ipvlan|vlan|dummy)$$/^(DEL|GC of what is gone)$$' \
		'./roles/chained/vrf=Test(Add|Two|Refused|Found|Inherit|LinkGone|Parallel|Reference)$$|TestRole/bridge/(life|del|gc|state|status|versions|fault|tamper)|TestRole/(ptp|macvlan)/(life|del|gc|state|tamper)' \
		'./roles/chained/portmap=TestTraffic|TestUDPBefore|TestConditions|TestPodmanLists/^options$$' './roles/chained/bandwidth=TestRole/both/(life|del|gc)' \
		'./roles/meta/multi=TestDocumented/^ipvlan-net$$|TestHostLink$$/^vlan$$'

bin/golangci-lint: test/tools/go.sum
	cd test/tools && $(GO) build -o ../../bin/ github.com/golangci/golangci-lint/v2/cmd/golangci-lint mvdan.cc/gofumpt

lint: bin/golangci-lint
	bin/golangci-lint run ./...

fmt: bin/golangci-lint
	bin/golangci-lint fmt ./...

# The reference plugins, built from their Go module for comparison only.
bin/peers/bridge: test/peers/go.sum
	cd test/peers && $(GO) build -ldflags '-s -w -X github.com/containernetworking/plugins/pkg/utils/buildversion.BuildVersion=v1.9.1' -o ../../bin/peers/ tool

# The same calls to the reference plugins and to ours, not a part of `make test`; what this kernel lacks is compared in the virtual machine,
# a choice of it: with DIFFVM=. all.
DIFFVM  ?= ^(verbs|v4|again|del-without-netns|l3|access|trunk|table|fail-name-taken|two-interfaces|mtu)$$
test-diff: setup build bin/peers/bridge
	$(SANDBOX) $(GOTEST) -count 1 -timeout 20m ./test/diff
	$(GO) build -o bin/vm/run ./test/vm
	bin/vm/run -copy bin/cnibox -copy bin/peers -run 'Test(Diff|Claims)/^(vlan|ipvlan|dummy|bridge-vlan|vrf)$$/$(DIFFVM)' ./test/diff

# Kubernetes' API server and a current etcd, for the tests that need them: minutes when Go's cache is empty.
bin/kube/kube-apiserver: test/kube/go.sum
	cd test/kube && $(GO) build -o ../../bin/kube/etcd go.etcd.io/etcd/server/v3
	cd test/kube && $(GO) build -o ../../bin/kube/kube-apiserver k8s.io/kubernetes/cmd/kube-apiserver

# flannel's own daemon, for nodes that share a cluster with ours.
bin/kube/flanneld: test/flannel/go.sum test/flannel/main.go
	cd test/flannel && $(GO) build -o ../../bin/kube/flanneld .

# The tests with the build tag kube; what a test leaves running ends with its process namespace.
KUBE := ./store/cluster/kube/...
test-kube: setup bin/kube/kube-apiserver bin/kube/flanneld
	$(SANDBOX) --pid --fork --kill-child --mount-proc $(GOTEST) -tags $(TAGS),kube -p 1 -count 1 -timeout 20m $(KUBE)
	$(SANDBOX) --pid --fork --kill-child --mount-proc $(GOTEST) -tags $(TAGS),kube -run 'Kube|Flanneld' -p 1 -count 1 -timeout 20m ./roles/daemon/agent ./roles/meta/multi

bench: setup build bin/peers/bridge
	$(GO) run ./test/bench -ours bin/cnibox -peers bin/peers -out BENCHMARKS.md -svg docs/bench.svg -readme README.md

# Thousands of nodes on a real etcd and a real kube-apiserver: 10 to 15 minutes.
bench-scale: setup build bin/kube/kube-apiserver
	$(GO) build -o bin/bench-scale ./test/bench-scale
	$(SANDBOX) --pid --fork --kill-child --mount-proc bin/bench-scale -cnibox bin/cnibox -kube -out docs/scale.md -svg docs/scale.svg

soak: setup build
	CNIBOX_SOAK=$${SOAK:-300} $(SANDBOX) $(GOTEST) -p 1 -count 1 -timeout 60m -run 'Storm|Soak|Kill|Sweep' ./...
	CNIBOX_SWEEP=1 $(SANDBOX) $(GOTEST) -p 1 -count 1 -timeout 60m -run '(Role|Suite|UnderBridge|Alone|Virtual)/.*/sweep' ./roles/...

# Every fuzz target for FUZZ each, one after the other.
FUZZ ?= 30s
fuzz:
	@for p in $$($(GO) list ./...); do \
		for f in $$($(GO) test -tags $(TAGS) -list '^Fuzz' $$p | grep '^Fuzz'); do \
			echo "$$p $$f"; $(SANDBOX) $(GO) test -tags $(TAGS) -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZ) $$p || exit 1; \
		done; \
	done

clean:
	rm -rf bin
