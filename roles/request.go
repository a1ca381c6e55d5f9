package roles

import (
	"encoding/json"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/store"
)

// Verb is a CNI operation (CNI spec 1.1.0, section 2).
type Verb string

// The operations of CNI spec 1.1.0.
const (
	Add     Verb = "ADD"
	Del     Verb = "DEL"
	Check   Verb = "CHECK"
	GC      Verb = "GC"
	Status  Verb = "STATUS"
	Version Verb = "VERSION"
)

// Result is the result of ADD, always in the newest version. Dispatch converts it to the
// configuration's version.
type Result = types100.Result

// AttachmentID names an attachment in GC's list of valid attachments.
type AttachmentID struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`
}

// Request is one call of a role. It is the callee's own copy.
type Request struct {
	Verb        Verb
	ContainerID string
	// Netns is CNI_NETNS as given; empty or stale is possible on DEL.
	Netns  string
	IfName string
	Args   Args
	// Path is CNI_PATH, split.
	Path []string
	// Network is the configuration's name.
	Network string
	// Secondary is the name of the network in the pod's request for it, if it is another one than the cluster's network.
	Secondary string
	// Multi is set for the networks of multi.
	Multi bool
	// CNIVersion is the configuration's version, "0.1.0" when it has none.
	CNIVersion string
	// Conf is the configuration as received.
	Conf json.RawMessage
	// PrevResult is the previous plugin's result (ADD) or the list's final result (CHECK,
	// DEL); nil if the runtime sent none.
	PrevResult *Result
	// Valid is GC's list. nil means that the runtime sent no list; an empty list means
	// that no attachment is valid.
	Valid []AttachmentID
	// Recorded is set to true by a chained role's ADD that has recorded its part. The clean-up
	// after the ADD calls DEL with it, and DEL keeps the parts of other ADDs if it is false. It is
	// nil in all other calls.
	Recorded *bool
	// Compared is set for `cnibox diff --after`: CHECK of cnibox's own roles adds the objects to
	// it that it compares. It is nil in all other calls.
	Compared *netops.Spec
	// Partial is set for a DEL or GC whose configuration another role has made without what only
	// ADD needs, so that its faults are not the user's.
	Partial bool
	// Env is the whole environment, for delegates that are executed.
	Env []string
}

// Key returns the key of the attachment.
func (r *Request) Key() store.Key {
	return store.Key{Network: r.Network, ContainerID: r.ContainerID, IfName: r.IfName}
}

// Pod returns "namespace/name" from CNI_ARGS, which Kubernetes' runtimes set, or "".
func (r *Request) Pod() string {
	ns, name := r.Args.Get("K8S_POD_NAMESPACE"), r.Args.Get("K8S_POD_NAME")
	if ns == "" || name == "" {
		return ""
	}
	return ns + "/" + name
}

// IsPod reports whether the container is a pod, which others than the node's administrator configure: CNI_ARGS names it,
// or multi attaches it.
func (r *Request) IsPod() bool { return r.Multi || r.Args.Get("K8S_POD_NAME") != "" }

// IsValid reports whether GC's list has the attachment.
func (r *Request) IsValid(containerID, ifName string) bool {
	for _, v := range r.Valid {
		if v.ContainerID == containerID && v.IfName == ifName {
			return true
		}
	}
	return false
}

// Plan is what ADD would do.
type Plan struct {
	Changes []netops.Change `json:"changes"`
	Result  *Result         `json:"result"`
	// Placeholder means that addresses of Result are placeholders: only ADD knows the
	// addresses.
	Placeholder bool `json:"placeholder,omitempty"`
	// Notes say what the plan cannot know, and why ADD would fail now.
	Notes []string `json:"notes,omitempty"`
}

// ResultInterface is one interface of a Result.
type ResultInterface = types100.Interface

// ResultVersion is the version of every Result before dispatch converts it.
const ResultVersion = types100.ImplementedSpecVersion

// NewResult returns a result with copies of an IPAM configuration's routes and DNS.
func NewResult(routes []*types.Route, dns types.DNS) *Result {
	r := &Result{CNIVersion: ResultVersion, DNS: *dns.Copy()}
	for _, route := range routes {
		r.Routes = append(r.Routes, route.Copy())
	}
	return r
}

// ResultIP returns an address of a Result. The gateway may be invalid, which is none.
func ResultIP(p netip.Prefix, gateway netip.Addr) *types100.IPConfig {
	return &types100.IPConfig{Address: IPNet(p), Gateway: gateway.AsSlice()}
}
