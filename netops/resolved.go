package netops

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/cnibox/cnibox/internal/dbus"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// D-Bus interface of systemd-resolved, see org.freedesktop.resolve1(5).
const (
	resolvedName     = "org.freedesktop.resolve1"
	resolvedPath     = "/org/freedesktop/resolve1"
	resolvedManager  = "org.freedesktop.resolve1.Manager"
	resolvedLink     = "org.freedesktop.resolve1.Link"
	resolvedLinkBusy = "org.freedesktop.resolve1.LinkBusy"
	resolvedNoLink   = "org.freedesktop.resolve1.NoSuchLink"
	busProperties    = "org.freedesktop.DBus.Properties"
)

// LinkDNS copies systemd-resolved's name servers and search domains from one
// link to another. It is needed when a bridge takes over the addresses of an
// uplink. It does nothing if systemd-resolved is not running, if it has no
// servers for From, or if systemd-networkd manages Link. The inverse makes
// systemd-resolved delete the copy.
type LinkDNS struct {
	// Link receives the settings of From.
	Link string `json:"link"`
	From string `json:"from"`
}

// Where returns the host's namespace.
func (d *LinkDNS) Where() Place { return Host }

// IsShared returns true: the links belong to the node.
func (d *LinkDNS) IsShared() bool { return true }

// String names both links.
func (d *LinkDNS) String() string { return "dns of " + d.From + " for " + d.Link }

func (d *LinkDNS) validate() error {
	errs := []error{rtnl.CheckName(d.Link), rtnl.CheckName(d.From)}
	if d.Link == d.From {
		errs = append(errs, fmt.Errorf("link %q and its source are the same: %w", d.Link, ErrInvalid))
	}
	return errors.Join(errs...)
}

// resolvedSettings holds systemd-resolved's settings for a link, in the types of its
// D-Bus properties.
type resolvedSettings struct {
	Servers []struct { // DNSEx
		Family  int32
		Address []byte
		Port    uint16
		Name    string
	}
	Domains []struct {
		Name      string
		RouteOnly bool
	}
	DefaultRoute bool
}

func (d *LinkDNS) plan(ctx context.Context, s *session) ([]Change, error) {
	c := []Change{{Do: Step{VerbAdd, d}}}
	from, err := s.dnsOf(ctx, d.From)
	if err != nil || from == nil {
		return nil, err
	}
	if s.isNew(Host, d.Link) {
		return c, nil
	}
	have, err := s.dnsOf(ctx, d.Link)
	if err != nil || have != nil && reflect.DeepEqual(have, from) {
		return nil, err
	}
	return c, nil
}

func (d *LinkDNS) verify(ctx context.Context, s *session) ([]Difference, error) {
	changes, err := d.plan(ctx, s)
	if errors.Is(err, ErrNotExist) || err == nil && len(changes) > 0 {
		return absentIf(nil, d)
	}
	return nil, err
}

// apply copies the settings.
func (d *LinkDNS) apply(ctx context.Context, run *applier, batch []Change) error {
	return describeStep(batch[0].Do, d.copy(ctx, run.session))
}

func (d *LinkDNS) copy(ctx context.Context, s *session) error {
	dns, err := s.dnsOf(ctx, d.From)
	if err != nil || dns == nil {
		return err
	}
	index, err := s.indexOf(ctx, Host, d.Link)
	if err != nil {
		return err
	}
	for _, set := range []struct {
		method string
		value  any
	}{{"SetLinkDNSEx", dns.Servers}, {"SetLinkDomains", dns.Domains}, {"SetLinkDefaultRoute", dns.DefaultRoute}} {
		err := s.net.callResolved(ctx, resolvedCall(set.method), nil, int32(index), set.value)
		if isBusError(err, resolvedLinkBusy) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// undo deletes the copied settings.
func (d *LinkDNS) undo(ctx context.Context, s *session, _ Verb) error {
	l, err := s.findLink(ctx, Host, d.Link)
	if err != nil || l == nil {
		return err
	}
	err = s.net.callResolved(ctx, resolvedCall("RevertLink"), nil, int32(l.Index))
	if errors.Is(err, ErrNotExist) || isBusError(err, resolvedLinkBusy) || isBusError(err, resolvedNoLink) {
		return nil
	}
	return err
}

// dnsOf returns systemd-resolved's settings for a link. It returns nil if
// systemd-resolved is not running or has no servers for the link.
func (s *session) dnsOf(ctx context.Context, link string) (*resolvedSettings, error) {
	if err := s.net.openBus(ctx); errors.Is(err, ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("systemd-resolved: %w", err)
	}
	index, err := s.indexOf(ctx, Host, link)
	if err != nil {
		return nil, err
	}
	var path string
	err = s.net.callResolved(ctx, resolvedCall("GetLink"), &path, int32(index))
	if errors.Is(err, ErrNotExist) || isBusError(err, resolvedNoLink) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var dns resolvedSettings
	get := dbus.Method{Destination: resolvedName, Path: path, Interface: busProperties, Name: "Get"}
	for _, p := range []struct {
		name  string
		value any
	}{{"DNSEx", &dns.Servers}, {"Domains", &dns.Domains}, {"DefaultRoute", &dns.DefaultRoute}} {
		if err := s.net.callResolved(ctx, get, p.value, resolvedLink, p.name); err != nil {
			return nil, err
		}
	}
	if len(dns.Servers) == 0 {
		return nil, nil
	}
	return &dns, nil
}

func resolvedCall(name string) dbus.Method {
	return dbus.Method{Destination: resolvedName, Path: resolvedPath, Interface: resolvedManager, Name: name}
}

// callResolved calls a method. The error wraps ErrNotExist if systemd-resolved
// is not running.
func (n *Net) callResolved(ctx context.Context, m dbus.Method, answer any, args ...any) error {
	if err := n.openBus(ctx); err != nil {
		return fmt.Errorf("systemd-resolved: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, busPatience)
	defer cancel()
	err := n.bus.Call(ctx, m, answer, args...)
	if err == nil {
		return nil
	}
	var failed *dbus.Error
	if !errors.As(err, &failed) { // the connection is unusable
		return fmt.Errorf("systemd-resolved: %s: %w", m.Name, errors.Join(err, n.closeBus()))
	}
	switch failed.Name {
	case busNoService, busNoOwner:
		return fmt.Errorf("systemd-resolved: %w: it is not running", ErrNotExist)
	case busDenied:
		return fmt.Errorf("systemd-resolved: %s: %w: %w", m.Name, ErrPermission, err)
	}
	return fmt.Errorf("systemd-resolved: %s: %w", m.Name, err)
}

func isBusError(err error, name string) bool {
	var failed *dbus.Error
	return errors.As(err, &failed) && failed.Name == name
}
