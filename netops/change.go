package netops

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

// OverlayWrite is the object that package overlay passes to a Probe for one write. A
// write is the requests for the device, up to 100 requests for peers, or one nftables
// transaction.
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

func (w *OverlayWrite) jsonKey() string { return "" }

// Probed calls write. A Probe that is not nil is called before and after it, with an
// OverlayWrite.
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
