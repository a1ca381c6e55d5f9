// Package netops describes desired kernel network state and applies it.
//
// A role describes its desired state as a [Spec]: plain values in the order of
// creation. The verbs of [Net] use the Spec:
//
//   - [Net.Plan] reads the kernel and lists the changes that lead to the Spec,
//     each with its inverse. It writes nothing.
//   - [Net.Apply] makes the planned changes. The first failure reverts, in reverse
//     order, the changes that this call made.
//   - [Net.Verify] lists every difference between the Spec and the kernel.
//   - [Net.Undo] runs stored inverses. An absent object is not an error.
//
// netops is the only package that uses netlink, enters namespaces or writes
// sysctls. It executes no other program.
package netops

import (
	"context"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Place identifies the network namespace of an object: the host's, the
// attachment's container, or a named one (see Named).
type Place string

const (
	// Host is the namespace that the process runs in.
	Host Place = "host"
	// Container is the namespace that CNI_NETNS names.
	Container Place = "container"
)

// Spec is the desired kernel state of one attachment, in the order of creation.
// It is a value: printable, comparable, without I/O.
type Spec struct {
	Objects []Object
}

// Add appends objects to the Spec.
func (s *Spec) Add(o ...Object) { s.Objects = append(s.Objects, o...) }

// Object is one piece of kernel state: *Link, *Move, *VF, *Addr, *Route, *Neigh, *Rule,
// *Sysctl, *PortVLANs, *Qdisc, *Redirect, *Element,
// *Forward, *ZoneSource, *VRF, *Flows, *Takeover, *LinkDNS, *Netns, *PodPolicy or
// *OVSPort.
//
// An object is exclusive or shared. An exclusive object belongs to one
// attachment, and it is an error if it already exists. A shared object is
// created if it is absent. An attachment never deletes it, even if the
// attachment fails, because a parallel attachment can depend on it.
type Object interface {
	// Where returns the namespace of the object.
	Where() Place
	// IsShared reports whether attachments share the object.
	IsShared() bool
	// String returns one line for users, in the form of iproute2 or nft.
	String() string

	// validate checks the object's own fields, and seals the interface. The error wraps ErrInvalid.
	validate() error
}

// Verb is what a Step does to its object.
type Verb string

const (
	// VerbAdd makes an object that does not exist.
	VerbAdd Verb = "add"
	// VerbSet changes attributes of an object that exists.
	VerbSet Verb = "set"
	// VerbDel removes an object. An absent object is not an error.
	VerbDel Verb = "del"
)

// Step is one write to the kernel. Its JSON form has the Verb, and the object under the
// name of its kind: {"verb":"del","link":{"in":"host","name":"veth1"}}.
type Step struct {
	Verb   Verb
	Object Object
}

// Change is a planned Step and its inverse. Undo is nil if the object is shared, or if
// the kernel deletes it with another object of the same plan, such as an address with
// its link.
type Change struct {
	Do   Step  `json:"do"`
	Undo *Step `json:"undo,omitempty"`
}

// addition returns the change that adds an object, with its inverse unless the object is shared.
func addition(o Object) Change {
	c := Change{Do: Step{VerbAdd, o}}
	if !o.IsShared() {
		c.Undo = &Step{VerbDel, o}
	}
	return c
}

// Plan is what Net.Plan returns and Net.Apply makes.
type Plan struct {
	Changes []Change
	// index holds the indexes of the host's links that Net.Plan read.
	index map[linkRef]int
}

// Difference is one difference between the kernel and a Spec.
type Difference struct {
	Object Object
	// Want and Have are short texts: "mtu 1400", "absent".
	Want, Have string
}

// noRule is Have of an element whose set's rules another program deleted.
const noRule = "no rule"

// IsWithoutRules reports whether RestoreRules mends the difference: the element is as it should be, but no rule uses it.
func (d *Difference) IsWithoutRules() bool {
	_, ok := d.Object.(*Element)
	return ok && d.Have == noRule
}

// Probe is called around every write. Tests use it to make the n-th write fail, or to
// kill the process before or after it. A nil Probe has no cost.
type Probe interface {
	// Before is called before a Step is made. If it returns an error, the Step is not
	// made and fails with that error, as if the kernel had refused it.
	Before(Step) error
	// After is called after a Step succeeded.
	After(Step)
}

// OverlayWrite is the object that package overlay passes to a Probe for a write of no other
// object: up to 100 requests for peers, or one nftables transaction.
type OverlayWrite struct {
	// What describes the write.
	What string
}

// Where returns Host.
func (w *OverlayWrite) Where() Place { return Host }

// IsShared returns true: the write belongs to no single attachment.
func (w *OverlayWrite) IsShared() bool { return true }

// String returns the description of the write.
func (w *OverlayWrite) String() string { return w.What }

func (w *OverlayWrite) validate() error { return nil }

// Probed calls write, and the Probe before and after it with an OverlayWrite.
func (n *Net) Probed(what func() string, write func() error) error {
	if n.probe == nil {
		return write()
	}
	return n.session(nil).probed(Step{VerbSet, &OverlayWrite{what()}}, write)
}

// Errors of the kernel and of this package. Use errors.Is to find them.
var (
	// ErrNotExist means that a link, address, route, table or namespace does not exist.
	ErrNotExist = nlconn.ErrNotExist
	// ErrExists means that an exclusive object exists already and belongs to another owner.
	ErrExists = nlconn.ErrExists
	// ErrConflict means that another program's object conflicts with a wanted one:
	// a link with the bridge's name is not a bridge, or the gateway has another
	// address.
	ErrConflict = nlconn.ErrConflict
	// ErrNoNetns means that a path does not exist or is not a network namespace.
	ErrNoNetns = nlconn.ErrNoNetns
	// ErrNotSupported means that this kernel lacks the feature.
	ErrNotSupported = nlconn.ErrNotSupported
	// ErrPermission means that the process lacks a permission: CAP_NET_ADMIN is missing
	// or /proc/sys is read-only.
	ErrPermission = nlconn.ErrPermission
	// ErrInvalid means that the kernel refused a value (EINVAL, ERANGE).
	ErrInvalid = nlconn.ErrInvalid
	// ErrBusy means that the caller must try again (EBUSY, EAGAIN, ENOBUFS).
	ErrBusy = nlconn.ErrBusy
)

// kernelObject is what this package needs of every Object. A new kind of Object is one
// file with these methods and those of a requester, or of a maker and an undoer, and one
// line in stepJSON. The other interfaces in this file are for the kinds that need more.
type kernelObject interface {
	Object
	// plan reads the kernel and lists the changes that make the object, with their
	// inverses. A change of a shared object has none.
	plan(ctx context.Context, s *session) ([]Change, error)
	// verify lists the differences between the object and the kernel.
	verify(ctx context.Context, s *session) ([]Difference, error)
}

// maker is an object that is not made by requests only.
type maker interface {
	// apply makes a batch of changes, of which the first is the object's. It appends to
	// run.done the changes that were made, or may have been made despite an error.
	apply(ctx context.Context, run *applier, batch []Change) error
}

// undoer is an object whose inverse is more than its requests.
type undoer interface {
	// undo runs the inverse that consists of v and the object. Net.Undo ignores an errno
	// for an object that is absent, or that another program restored.
	undo(ctx context.Context, s *session, v Verb) error
}

// requester is an object whose changes are rtnetlink requests. The requests of several
// objects are sent in one write.
type requester interface {
	kernelObject
	// messages returns the requests of a step.
	messages(ctx context.Context, s *session, v Verb) ([]nlconn.Message, error)
	// links returns the links in the object's namespace whose indexes the requests need.
	// The kernel deletes the object together with the first of them.
	links() []string
}

// enqueuer is a requester whose requests depend on more than the indexes of links.
type enqueuer interface {
	// enqueue adds the requests of a change to w. Before that it flushes the requests
	// that must be made first.
	enqueue(ctx context.Context, w *requestWriter, c Change) error
}

// refuser is a requester that can explain an errno.
type refuser interface {
	// refusal returns the error for a step that the kernel refused, or nil if describeStep
	// says enough.
	refusal(ctx context.Context, s *session, v Verb, err error) error
}

// batcher is an object whose changes are applied together although they are not
// requests.
type batcher interface {
	// batchKey returns a key that is equal for steps that one call of apply can make.
	batchKey(v Verb) string
}

// requestKey is the batch key of steps that are made with rtnetlink requests.
const requestKey = "rtnetlink"

// batchKey returns the key of a step, or "" if the step must be made alone.
func batchKey(st Step) string {
	switch o := st.Object.(type) {
	case batcher:
		return o.batchKey(st.Verb)
	case requester:
		return requestKey
	}
	return ""
}

// groupUndoer is an object whose inverses are run together.
type groupUndoer interface {
	undoPhase() undoPhase
	// undoGroup runs all inverses of the phase, with the probe.
	undoGroup(ctx context.Context, s *session, steps []Step) error
}

// undoPhase is a part of Net.Undo. The phases are in the order of their execution.
type undoPhase int

const (
	// undoElements is the first phase, because closing the socket that deletes nftables
	// elements takes long.
	undoElements undoPhase = iota
	// undoOthers is the phase of all objects that are no groupUndoer.
	undoOthers
	undoSources
	// undoFlows is the last phase, and Net.Plan moves its changes behind all others. If
	// connections were deleted before a NAT rule changes, a packet in between would be
	// tracked by the old rules.
	undoFlows
	undoPhases
)

func phaseOf(o Object) undoPhase {
	if g, ok := o.(groupUndoer); ok {
		return g.undoPhase()
	}
	return undoOthers
}

// linkMaker is an object that makes links.
type linkMaker interface {
	// made returns the links that the object makes, its own first. It returns none if
	// the object only configures a link.
	made() []linkRef
	// configuration returns the Link that only configures the object's own link.
	configuration() *Link
}

// remover is an object that is not removed by a Step of VerbDel with the object itself.
type remover interface {
	// removal returns the step that removes the object when no change is recorded, or nil
	// if there is nothing to remove.
	removal() *Step
}
