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
