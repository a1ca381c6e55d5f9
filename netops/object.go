package netops

import (
	"context"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
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
