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

// Object is one piece of kernel state: *Link, *Move, *Addr, *Route, *Neigh, *Rule,
// *Sysctl, *PortVLANs, *Qdisc, *Redirect, *Element,
// *Forward, *ZoneSource, *VRF, *Flows, *Takeover, *LinkDNS or *Netns.
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

	// jsonKey returns the name of the kind in JSON, and seals the interface.
	jsonKey() string
}
