// Package roles is the contract between a CNI role (bridge, host-local, …) and
// the program that plays it.
//
// A role is a value: its names, its kind, and New, which turns a network
// configuration into a [Handler]. A role gets everything that it may use in a [Host]
// and a call in a [Request]. It returns results and errors; it prints nothing, reads
// no environment and keeps no state in memory.
package roles

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Kind says where in a network configuration a role can stand.
type Kind string

const (
	// Interface roles make an interface in the container.
	Interface Kind = "interface"
	// IPAM roles hand out addresses; interface roles delegate to them.
	IPAM Kind = "ipam"
	// Chained roles adjust what an earlier plugin of the list made.
	Chained Kind = "chained"
	// Meta roles delegate to other plugins.
	Meta Kind = "meta"
	// Daemon roles run until they are stopped.
	Daemon Kind = "daemon"
)

// Role is one CNI type, or one daemon: a plugin sets New, a daemon sets Run.
type Role struct {
	// Names are the CNI types of the role; the first is its main name.
	Names []string
	Kind  Kind
	// Summary is one line for `cnibox list`, without a final period.
	Summary string
	// Reference is the version of the reference plugin that the role matches,
	// "v1.10.0"; tools parse it from the about line. Empty if there is no such plugin.
	Reference string
	// Capabilities are the runtimeConfig keys that the role reads.
	Capabilities []string
	// Args are the CNI_ARGS keys that the role reads.
	Args []string
	// Conf returns a pointer to a zero configuration: the keys that `cnibox
	// lint` knows and explains.
	Conf func() any
	// Ignored are keys of Conf that other plugins of the type know and that have no
	// effect here; `cnibox lint` reports them.
	Ignored []string
	// New decodes, defaults and validates a network configuration. It does no
	// I/O. Every fault is reported at once as ConfErrors (see Faults).
	New func(conf []byte) (Handler, error)
	// Undo replaces New for the DEL of a configuration that New refuses, because it
	// was edited after ADD; the record says what ADD made. Undo decodes and sets
	// defaults, but does not validate. nil if New refuses nothing.
	Undo func(conf []byte) (Handler, error)
	// OverLink marks an IPAM role that sends packets over the interface that gets the
	// addresses: ADD makes the interface first, DEL keeps it until they are released.
	OverLink bool
	// Moves reports whether the addresses of an IPAM role with a configuration may move between nodes: another node may
	// announce them, which store.Lease.Quiet says. nil if none move.
	Moves func(conf []byte) bool
	// Run is the main function of a daemon; it returns when ctx is done. An error that
	// wraps flag.ErrHelp contains the text for -help.
	Run func(ctx context.Context, h *Host, args []string) error
	// Verbs are the role's commands, which the command line offers; nil if it has none.
	Verbs func() []CommandVerb
}

// Name returns the role's main name.
func (r *Role) Name() string { return r.Names[0] }

// Verb returns the role's verb of that name, or nil.
func (r *Role) Verb(name string) *CommandVerb {
	for _, v := range r.Commands() {
		if v.Name == name {
			return &v
		}
	}
	return nil
}

// Commands returns the role's verbs.
func (r *Role) Commands() []CommandVerb {
	if r.Verbs == nil {
		return nil
	}
	return r.Verbs()
}

// CommandVerb is a command that a role adds to the command line.
type CommandVerb struct {
	// Name is one word, or "noun verb".
	Name, Help string
	// Args describes the arguments: "NAME" is one argument, "NAME…" one or more, "[NAME]"
	// none or one, "[NAME…]" any number, "" none. The command line refuses another
	// number.
	Args  string
	Flags []Flag
	// Example is a call without the program's name, for the help.
	Example string
	// Run is nil if Name is a noun alone: Help then describes all of its verbs. Errors
	// about flags and arguments are made by Usagef.
	Run func(ctx context.Context, h *Host, flags map[string]string, args []string) (any, error)
}

// Flag is one flag of a CommandVerb; all values are strings.
type Flag struct {
	Name, Default, Help string
	// Switch marks a flag without a value: it is "true" when given, else empty.
	Switch bool
}

// Handler answers ADD and DEL for one network configuration.
type Handler interface {
	// Add attaches the container and returns the result for the runtime. When
	// it fails, nothing is left behind.
	Add(ctx context.Context, h *Host, req *Request) (*Result, error)
	// Del undoes Add. An absent object is not an error. Del continues after an error and
	// returns all of them joined. req.Netns may be empty or the path of a namespace that
	// no longer exists.
	Del(ctx context.Context, h *Host, req *Request) error
}

// Checker is a Handler that answers CHECK. Without it CHECK succeeds.
type Checker interface {
	// Check returns an error that lists every difference; it changes nothing.
	Check(ctx context.Context, h *Host, req *Request) error
}

// Collector is a Handler that answers GC. Without it GC does nothing.
type Collector interface {
	// GC removes what belongs to attachments of this network that are not in
	// req.Valid. It is not called when the runtime sent no list.
	GC(ctx context.Context, h *Host, req *Request) error
}

// Statuser is a Handler that answers STATUS. Without it STATUS succeeds.
type Statuser interface {
	// Status returns nil when ADD can be served, else an error wrapping
	// ErrNotAvailable or ErrLimited. It must be cheap: runtimes poll it.
	Status(ctx context.Context, h *Host, req *Request) error
}

// Planner is a Handler that can list the changes of Add beforehand.
type Planner interface {
	// Plan returns the changes that Add would make, with placeholder
	// addresses where IPAM would give one. It changes nothing.
	Plan(ctx context.Context, h *Host, req *Request) (*Plan, error)
}

// Previewer is an IPAM Handler that can name the addresses of the next Add.
type Previewer interface {
	// Preview returns Add's result with the next addresses, or ErrUnplanned if they are
	// not known before Add. It reserves nothing and writes nothing.
	Preview(ctx context.Context, h *Host, req *Request) (*Result, error)
}

// Addressless is a Handler that knows before Add whether the result will have no address.
// Results before version 0.3.0 require an address, so Add is not called for these
// versions if Addressless returns true.
type Addressless interface {
	Addressless() bool
}

// Table contains every role of the binary, in the order of `cnibox list`.
type Table []Entry

// Entry is a role's line in a table. A process plays one role, and only that role is made: all of them would be a twentieth of a start.
type Entry struct {
	// Names are the names of the role that Role returns, with spaces between them.
	Names string
	Role  func() Role
}

// Lookup makes the role that has this name among its names.
func (t Table) Lookup(name string) (*Role, bool) {
	for _, e := range t {
		if slices.Contains(strings.Fields(e.Names), name) {
			r := e.Role()
			return &r, true
		}
	}
	return nil, false
}

// Roles makes every role, in the order of the table.
func (t Table) Roles() []Role {
	out := make([]Role, len(t))
	for i, e := range t {
		out[i] = e.Role()
	}
	return out
}

// Types returns the names of all plugins.
func (t Table) Types() (names []string) {
	for _, r := range t.Roles() {
		if r.New != nil {
			names = append(names, r.Names...)
		}
	}
	return names
}

// Validate reports a programming error in the table: a role without a name, a name that
// two roles have, a role without New and Run, a role with other names than its line.
func (t Table) Validate() error {
	seen := map[string]bool{}
	for i, r := range t.Roles() {
		if len(r.Names) == 0 || r.Kind == "" || r.Summary == "" {
			return fmt.Errorf("role %d: names, kind and summary are required", i)
		}
		if r.New == nil && r.Run == nil {
			return fmt.Errorf("role %q: has neither New nor Run", r.Name())
		}
		if names := strings.Join(r.Names, " "); names != t[i].Names {
			return fmt.Errorf("role %q: its names are %q, the table has %q", r.Name(), names, t[i].Names)
		}
		for _, n := range r.Names {
			if seen[n] {
				return fmt.Errorf("role %q: name %q is taken", r.Name(), n)
			}
			seen[n] = true
		}
	}
	return nil
}
