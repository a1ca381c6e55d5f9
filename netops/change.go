package netops

// Verb is what a Step does to its object.
type Verb string

const (
	// VerbAdd makes an object that does not exist.
	VerbAdd Verb = "add"
	// VerbSet changes attributes of an object that exists.
	VerbSet Verb = "set"
	// VerbDel removes an object; absent is success.
	VerbDel Verb = "del"
)

// Step is one write to the kernel. Its JSON form is the Verb and the object
// under its kind: {"verb":"del","link":{"in":"host","name":"veth1"}}.
type Step struct {
	Verb   Verb
	Object Object
}

// Change is a planned Step and its inverse. Undo is nil where there is nothing
// to undo: the object is shared, or it goes away with another object of the
// same plan (an address with its link).
type Change struct {
	Do   Step  `json:"do"`
	Undo *Step `json:"undo,omitempty"`
}

// Difference is one way in which the kernel is not as a Spec wants it.
type Difference struct {
	Object Object
	// Want and Have are short texts: "mtu 1400", "absent".
	Want, Have string
}

// Probe sees every write. It is how tests make the n-th write fail or kill the
// process around it; a nil Probe costs nothing.
type Probe interface {
	// Before is called before a Step is made; an error makes that Step fail
	// instead, as if the kernel had refused it.
	Before(Step) error
	// After is called after it succeeded.
	After(Step)
}

// OverlayWrite is what a Probe sees of package overlay: one write, of the device's
// requests, of up to 100 requests of peers, or a transaction.
type OverlayWrite struct {
	// What is the write in words.
	What string
}

// Where is the host's namespace.
func (w *OverlayWrite) Where() Place { return Host }

// IsShared is true: no attachment owns it.
func (w *OverlayWrite) IsShared() bool { return true }

// String is the write in words.
func (w *OverlayWrite) String() string { return w.What }

func (w *OverlayWrite) object() {}

// Probed makes a write that a Probe sees as an OverlayWrite, if there is one.
func Probed(p Probe, what func() string, write func() error) error {
	if p == nil {
		return write()
	}
	step := Step{VerbSet, &OverlayWrite{what()}}
	if err := p.Before(step); err != nil {
		return err
	}
	err := write()
	if err == nil {
		p.After(step)
	}
	return err
}
