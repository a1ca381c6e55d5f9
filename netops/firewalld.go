package netops

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/dbus"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// firewalld's D-Bus interface, see firewalld.dbus(5).
const (
	firewalldName      = "org.fedoraproject.FirewallD1"
	firewalldPath      = "/org/fedoraproject/FirewallD1"
	firewalldZones     = "org.fedoraproject.FirewallD1.zone"
	firewalldException = "org.fedoraproject.FirewallD1.Exception"
	// The text of a firewalld exception begins with one of these error codes.
	zoneAlreadySet   = "ZONE_ALREADY_SET"
	zoneConflict     = "ZONE_CONFLICT"
	zoneInvalid      = "INVALID_ZONE"
	zoneUnknownEntry = "UNKNOWN_SOURCE"
)

// ZoneSource is a source address of a firewalld zone. It is runtime
// configuration, which firewalld drops when it reloads. Verify reports that, and
// the next change to a source of the zone restores all recorded sources.
type ZoneSource struct {
	Zone    string     `json:"zone"`
	Address netip.Addr `json:"address"`
}

// Where returns Host.
func (z *ZoneSource) Where() Place { return Host }

// IsShared returns false: an address belongs to one attachment.
func (z *ZoneSource) IsShared() bool { return false }

// String formats the source like the options of firewall-cmd(1).
func (z *ZoneSource) String() string { return "firewalld zone " + z.Zone + " source " + z.source() }

// source formats the address as a prefix of full length, as the reference plugin does.
func (z *ZoneSource) source() string {
	return netip.PrefixFrom(z.Address, z.Address.BitLen()).String()
}

func (z *ZoneSource) validate() error {
	if z.Zone == "" || !z.Address.IsValid() || z.Address.Zone() != "" {
		return fmt.Errorf("source %s of zone %q: %w", z.Address, z.Zone, ErrInvalid)
	}
	return nil
}

// plan queries firewalld, so that an ADD that cannot succeed fails before it changes
// anything. It adds the source even if the source is present: that one may belong to an
// attachment that is not undone yet.
func (z *ZoneSource) plan(ctx context.Context, s *session) ([]Change, error) {
	if _, err := s.net.hasSource(ctx, z); err != nil {
		return nil, err
	}
	return []Change{{Do: Step{VerbAdd, z}, Undo: &Step{VerbDel, z}}}, nil
}

func (z *ZoneSource) verify(ctx context.Context, s *session) ([]Difference, error) {
	has, err := s.net.hasSource(ctx, z)
	if errors.Is(err, ErrNotExist) || err == nil && !has {
		return absentIf(nil, z)
	}
	return nil, err
}

// apply adds the source.
func (z *ZoneSource) apply(ctx context.Context, run *applier, batch []Change) error {
	run.done = append(run.done, batch...) // after an error the source may have been added
	if err := run.net.addSource(ctx, z); err != nil {
		return err
	}
	return run.net.alone(ctx, func() error { return run.net.restoreSources(ctx, z.Zone, nil) })
}

// undo removes the source. If firewalld does not run, it does nothing.
func (z *ZoneSource) undo(ctx context.Context, s *session, _ Verb) error {
	err := s.net.callFirewalld(ctx, "removeSource", nil, z.Zone, z.source())
	if errors.Is(err, ErrNotExist) {
		return nil
	}
	return err
}

func (z *ZoneSource) undoPhase() undoPhase { return undoSources }

// undoGroup removes sources. Then it adds those again that other attachments have
// recorded too. The caller is alone (Options.Alone).
func (z *ZoneSource) undoGroup(ctx context.Context, s *session, steps []Step) error {
	var errs []error
	var all []*ZoneSource
	zones := map[string]bool{}
	for _, st := range steps {
		z := st.Object.(*ZoneSource)
		all, zones[z.Zone] = append(all, z), true
		errs = append(errs, s.probed(st, func() error { return z.undo(ctx, s, st.Verb) }))
	}
	for zone := range zones {
		if err := s.net.restoreSources(ctx, zone, all); !errors.Is(err, ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (n *Net) addSource(ctx context.Context, z *ZoneSource) error {
	err := n.callFirewalld(ctx, "addSource", nil, z.Zone, z.source())
	if errors.Is(err, ErrExists) {
		return nil
	}
	return err
}

func (n *Net) hasSource(ctx context.Context, z *ZoneSource) (bool, error) {
	var has bool
	err := n.callFirewalld(ctx, "querySource", &has, z.Zone, z.source())
	return has, err
}

// restoreSources adds the recorded sources of a zone that are absent, because a reload
// of firewalld drops them. The sources in undone still have a record each; that record
// is ignored.
func (n *Net) restoreSources(ctx context.Context, zone string, undone []*ZoneSource) error {
	if n.sources == nil {
		return nil
	}
	var have []string
	if err := n.callFirewalld(ctx, "getSources", &have, zone); err != nil {
		return err
	}
	recorded, err := n.sources(ctx)
	if err != nil {
		return fmt.Errorf("list recorded sources of firewalld's zones: %w", err)
	}
	less := map[ZoneSource]int{}
	for _, z := range undone {
		less[*z]++
	}
	var errs []error
	for _, z := range recorded {
		switch {
		case z.Zone != zone:
		case less[*z] > 0:
			less[*z]--
		case !slices.Contains(have, z.source()):
			errs = append(errs, n.addSource(ctx, z))
			have = append(have, z.source())
		}
	}
	return errors.Join(errs...)
}

// RemoveZoneSource removes a source that has no record. If the source is recorded, it is
// added again.
func (n *Net) RemoveZoneSource(ctx context.Context, z ZoneSource) error {
	if err := z.validate(); err != nil {
		return err
	}
	err := n.callFirewalld(ctx, "removeSource", nil, z.Zone, z.source())
	if errors.Is(err, ErrNotExist) {
		return nil
	}
	return errors.Join(err, n.alone(ctx, func() error { return n.restoreSources(ctx, z.Zone, nil) }))
}

// Firewalld returns nil if firewalld answers. The error wraps ErrNotExist if firewalld
// does not run.
func (n *Net) Firewalld(ctx context.Context) error {
	return n.callFirewalld(ctx, "getZones", new([]string))
}

// callFirewalld calls a method of firewalld's zone interface.
func (n *Net) callFirewalld(ctx context.Context, method string, answer any, args ...string) error {
	if err := n.openBus(ctx); err != nil {
		return fmt.Errorf("firewalld: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, busPatience)
	defer cancel()
	m := dbus.Method{Destination: firewalldName, Path: firewalldPath, Interface: firewalldZones, Name: method}
	values := make([]any, len(args))
	for i, a := range args {
		values[i] = a
	}
	err := n.bus.Call(ctx, m, answer, values...)
	if err == nil {
		return nil
	}
	failed := firewalldError(err)
	if !errors.As(err, new(*dbus.Error)) { // the connection failed
		failed = errors.Join(failed, n.closeBus())
	}
	return fmt.Errorf("firewalld: %s %s: %w", method, strings.Join(args, " "), failed)
}

// firewalldError adds the sentinel error that a D-Bus error means.
func firewalldError(err error) error {
	var e *dbus.Error
	if !errors.As(err, &e) {
		return err
	}
	switch e.Name {
	case busNoService, busNoOwner:
		return fmt.Errorf("%w: it is not running: start it, or use another backend", ErrNotExist)
	case busDenied, "org.fedoraproject.FirewallD1.NotAuthorizedException":
		return fmt.Errorf("%w: %w", ErrPermission, err)
	case firewalldException:
		return zoneError(e.Text)
	}
	return err
}

// zoneError turns the error code at the start of an exception's text into a sentinel
// error.
func zoneError(text string) error {
	text = nlconn.Printable(text)
	word, _, _ := strings.Cut(text, ":")
	switch word {
	case zoneAlreadySet:
		return fmt.Errorf("%w: %s", ErrExists, text)
	case zoneConflict:
		return fmt.Errorf("%w: %s", ErrConflict, text)
	case zoneUnknownEntry:
		return fmt.Errorf("%w: %s", ErrNotExist, text)
	case zoneInvalid:
		return fmt.Errorf("%w: %s", ErrInvalid, text)
	}
	return errors.New(text)
}

const (
	// systemBus is the socket of the D-Bus system bus, see dbus-daemon(1).
	systemBus = "/run/dbus/system_bus_socket"
	// Errors of the bus itself.
	busNoService = "org.freedesktop.DBus.Error.ServiceUnknown"
	busNoOwner   = "org.freedesktop.DBus.Error.NameHasNoOwner"
	busDenied    = "org.freedesktop.DBus.Error.AccessDenied"
	// busPatience is the timeout of a call. It is long because firewalld sometimes
	// rebuilds all its rules.
	busPatience = 30 * time.Second
)

// openBus connects to the system bus if there is no connection.
func (n *Net) openBus(ctx context.Context) error {
	if n.bus != nil {
		return nil
	}
	if err := unix.Access(systemBus, unix.F_OK); isNoPath(err) { // ten times faster than a failing dial
		return fmt.Errorf("%w: no system bus answers: %w", ErrNotExist, err)
	}
	ctx, cancel := context.WithTimeout(ctx, busPatience)
	defer cancel()
	bus, err := dbus.Dial(ctx, systemBus)
	switch {
	case errors.Is(err, dbus.ErrAuth):
		return fmt.Errorf("system bus: %w: %w", ErrPermission, err)
	case err != nil: // also ECONNREFUSED: firewalld may outlive a bus that restarts
		return fmt.Errorf("system bus: %w", err)
	}
	n.bus = bus
	return nil
}

// closeBus closes the connection to the system bus, if there is one.
func (n *Net) closeBus() error {
	if n.bus == nil {
		return nil
	}
	bus := n.bus
	n.bus = nil
	return bus.Close()
}
