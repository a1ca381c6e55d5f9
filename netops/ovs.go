package netops

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cnibox/cnibox/internal/ovsdb"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

const (
	ovsDatabase = "Open_vSwitch"
	// ovsPatience limits a transaction, without the time that it waits for ovs-vswitchd.
	ovsPatience = 10 * time.Second
	// maxOVSWait limits OVSPort.Wait, because Apply holds locks meanwhile.
	maxOVSWait = time.Minute
	// ovsOwner is the key of a port's external_ids that has OVSPort.Owner.
	ovsOwner = "owner"
	// maxOVSTag is the largest VLAN in the database's schema.
	maxOVSTag  = 4095
	maxOVSPort = 65279
)

// OVSPort makes a link of the host a port of an Open vSwitch bridge. Open vSwitch's
// database keeps it when the link is deleted, and over reboots.
type OVSPort struct {
	// Socket is the database server: "unix:PATH", "tcp:HOST:PORT" or a path. Empty is
	// Open vSwitch's default.
	Socket string `json:"socket,omitempty"`
	Bridge string `json:"bridge,omitempty"`
	// Link is the link's name, and the port's.
	Link string `json:"link"`
	// Owner marks the port in its external_ids. An inverse deletes only a port with the same
	// mark. Verify compares it unless it is empty.
	Owner string `json:"owner,omitempty"`
	// Tag is the VLAN of an access port. Without it the port is a trunk of the VLANs Trunks,
	// or of all.
	Tag    *int  `json:"tag,omitempty"`
	Trunks []int `json:"trunks,omitempty"`
	// Type is the interface's type in the database. Empty is a link of the host.
	Type string `json:"type,omitempty"`
	// OFPort is the OpenFlow port number to ask for, or 0.
	OFPort int `json:"ofport,omitempty"`
	// PortIDs and InterfaceIDs are further external_ids of the port and of its interface.
	PortIDs      map[string]string `json:"portIDs,omitempty"`
	InterfaceIDs map[string]string `json:"interfaceIDs,omitempty"`
	// Wait is how long Apply waits for ovs-vswitchd to forward the port's packets, in
	// milliseconds. 0 does not wait.
	Wait int `json:"wait,omitempty"`
	// Uncertain means that the port may never have been made. The inverse then ignores that no
	// database server runs.
	Uncertain bool `json:"uncertain,omitempty"`
}

// Where returns Host.
func (p *OVSPort) Where() Place { return Host }

// IsShared returns false: the port belongs to one attachment.
func (p *OVSPort) IsShared() bool { return false }

// String formats the port like the arguments of ovs-vsctl(8).
func (p *OVSPort) String() string {
	s := "ovs port " + p.Link
	if p.Bridge != "" {
		s += " bridge " + p.Bridge
	}
	if p.Tag != nil {
		s += fmt.Sprintf(" tag=%d", *p.Tag)
	}
	if len(p.Trunks) > 0 {
		s += " trunks=" + numbers(p.Trunks)
	}
	if p.Type != "" {
		s += " type=" + p.Type
	}
	if p.OFPort != 0 {
		s += fmt.Sprintf(" ofport_request=%d", p.OFPort)
	}
	for _, k := range slices.Sorted(maps.Keys(p.InterfaceIDs)) {
		s += fmt.Sprintf(" external_ids:%s=%s", k, nlconn.Printable(p.InterfaceIDs[k]))
	}
	return s
}

func (p *OVSPort) validate() error {
	_, _, err := ovsdb.Endpoint(p.Socket)
	if err != nil {
		err = fmt.Errorf("socket %q: %w: %w", p.Socket, err, ErrInvalid)
	}
	errs := []error{
		err, rtnl.CheckName(p.Link), rtnl.CheckRange("ofport", p.OFPort, 0, maxOVSPort),
		rtnl.CheckRange("wait", p.Wait, 0, int(maxOVSWait/time.Millisecond)),
	}
	vlans := p.Trunks
	if p.Tag != nil {
		vlans = append(slices.Clone(vlans), *p.Tag)
	}
	for _, v := range vlans {
		errs = append(errs, rtnl.CheckRange("vlan", v, 0, maxOVSTag))
	}
	return errors.Join(errs...)
}

// removal returns the step that deletes the port.
func (p *OVSPort) removal() *Step {
	return &Step{VerbDel, &OVSPort{Socket: p.Socket, Link: p.Link, Owner: p.Owner, Uncertain: p.Uncertain}}
}

// mode returns the port's vlan_mode.
func (p *OVSPort) mode() string {
	if p.Tag != nil {
		return "access"
	}
	return "trunk"
}

// plan requires the bridge, and that no other port has the name. A port with our mark was left by an attachment whose link
// is gone, and is replaced.
func (p *OVSPort) plan(ctx context.Context, s *session) ([]Change, error) {
	have, err := s.net.ovsPort(ctx, p)
	switch {
	case err != nil:
		return nil, err
	case !have.hasBridge:
		return nil, p.noBridge()
	case have.id != "" && have.owner() != p.Owner:
		return nil, fmt.Errorf("ovs port %q %w and is not of this attachment: run 'ovs-vsctl del-port %s' if nothing uses it", p.Link, ErrExists, p.Link)
	}
	return []Change{{Do: Step{VerbAdd, p}, Undo: p.removal()}}, nil
}

func (p *OVSPort) noBridge() error {
	return fmt.Errorf("open vswitch bridge %q: %w: run 'ovs-vsctl add-br %s', or correct the key bridge", p.Bridge, ErrNotExist, p.Bridge)
}

// apply adds the port in one transaction, and waits until ovs-vswitchd has it.
func (p *OVSPort) apply(ctx context.Context, run *applier, batch []Change) error {
	n := run.net
	have, err := n.ovsPort(ctx, p)
	if err != nil {
		return describeStep(batch[0].Do, err)
	}
	if have.id != "" && have.owner() != p.Owner {
		return describeStep(batch[0].Do, ErrExists)
	}
	run.done = append(run.done, batch...) // after an error the port may have been added
	ops := p.insertions()
	if have.id != "" {
		ops = append(detachment(have.id), ops...)
	}
	results, err := n.ovsTransact(ctx, p.Socket, 0, ops...)
	if err != nil {
		return describeStep(batch[0].Do, err)
	}
	if results[len(results)-1].Count != 1 {
		return p.noBridge()
	}
	return p.await(ctx, n)
}

// insertions returns the operations that add the port. The last one adds it to its bridge.
func (p *OVSPort) insertions() []ovsdb.Operation {
	iface := map[string]any{"name": p.Link, "external_ids": ovsdb.Map(p.InterfaceIDs)}
	if p.Type != "" {
		iface["type"] = p.Type
	}
	if p.OFPort != 0 {
		iface["ofport_request"] = p.OFPort
	}
	ids := maps.Clone(p.PortIDs)
	if ids == nil {
		ids = map[string]string{}
	}
	ids[ovsOwner] = p.Owner
	port := map[string]any{
		"name": p.Link, "interfaces": ovsdb.NamedUUID("interface"), "vlan_mode": p.mode(), "external_ids": ovsdb.Map(ids),
	}
	if p.Tag != nil {
		port["tag"] = *p.Tag
	} else if len(p.Trunks) > 0 {
		var vlans []any
		for _, v := range p.Trunks {
			vlans = append(vlans, v)
		}
		port["trunks"] = ovsdb.Set(vlans...)
	}
	return []ovsdb.Operation{
		{Op: "insert", Table: "Interface", UUIDName: "interface", Row: iface},
		{Op: "insert", Table: "Port", UUIDName: "port", Row: port},
		{Op: "mutate", Table: "Bridge", Where: named(p.Bridge), Mutations: []ovsdb.Mutation{{"ports", "insert", ovsdb.Set(ovsdb.NamedUUID("port"))}}},
	}
}

// detachment returns the operations that remove a port from its bridge. The server then deletes its rows.
func detachment(id string) []ovsdb.Operation {
	return []ovsdb.Operation{{
		Op: "mutate", Table: "Bridge", Where: []ovsdb.Condition{{"ports", "includes", ovsdb.UUID(id)}},
		Mutations: []ovsdb.Mutation{{"ports", "delete", ovsdb.Set(ovsdb.UUID(id))}},
	}}
}

func named(name string) []ovsdb.Condition { return []ovsdb.Condition{{"name", "==", name}} }

// await waits until ovs-vswitchd has given the port an OpenFlow number: then it is a port of the datapath, so the packets that
// the container sends when its interface comes up are forwarded.
func (p *OVSPort) await(ctx context.Context, n *Net) error {
	if p.Wait == 0 {
		return nil
	}
	columns := []string{"ofport", "error"}
	results, err := n.ovsTransact(ctx, p.Socket, time.Duration(p.Wait)*time.Millisecond,
		ovsdb.Operation{
			Op: "wait", Table: "Interface", Where: named(p.Link), Columns: []string{"ofport"}, Until: "!=", Timeout: p.Wait,
			Rows: []map[string]any{{"ofport": ovsdb.Set()}},
		},
		ovsdb.Operation{Op: "select", Table: "Interface", Where: named(p.Link), Columns: columns})
	if ovsdb.IsTimeout(err) {
		return fmt.Errorf("ovs port %q: %w: ovs-vswitchd has not added it to bridge %q within %d ms: "+
			"start ovs-vswitchd if it does not run, or raise link_state_check_retries", p.Link, ErrBusy, p.Bridge, p.Wait)
	}
	if err != nil {
		return fmt.Errorf("await ovs port %q: %w", p.Link, err)
	}
	rows := results[1].Rows
	if len(rows) == 0 {
		return fmt.Errorf("ovs port %q: %w: another program deleted it", p.Link, ErrNotExist)
	}
	if number := rows[0].Ints("ofport"); len(number) == 1 && number[0] > 0 {
		return nil
	}
	why := cmp.Or(printableLine(rows[0].Text("error")), "it refused the port: see its log")
	return fmt.Errorf("ovs port %q: %w: ovs-vswitchd: %s", p.Link, ErrNotSupported, why)
}

// undo deletes the port, if it has the mark.
func (p *OVSPort) undo(ctx context.Context, s *session, _ Verb) error {
	have, err := s.net.ovsPort(ctx, p)
	if p.Uncertain && errors.Is(err, ErrNotExist) {
		return nil
	}
	if err != nil {
		return withoutErrno(err)
	}
	if have.id == "" || have.owner() != p.Owner {
		return nil
	}
	_, err = s.net.ovsTransact(ctx, p.Socket, 0, detachment(have.id)...)
	return withoutErrno(err)
}

// withoutErrno hides the errno of a connection. In an inverse it would mean that the object is absent.
func withoutErrno(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrBusy, err.Error())
}

func (p *OVSPort) verify(ctx context.Context, s *session) ([]Difference, error) {
	have, err := s.net.ovsPort(ctx, p)
	if err != nil || have.id == "" || p.Owner != "" && have.owner() != p.Owner {
		return absentIf(err, p)
	}
	results, err := s.net.ovsTransact(ctx, p.Socket, 0,
		ovsdb.Operation{Op: "select", Table: "Bridge", Where: []ovsdb.Condition{{"ports", "includes", ovsdb.UUID(have.id)}}, Columns: []string{"name"}},
		ovsdb.Operation{Op: "select", Table: "Interface", Where: named(p.Link), Columns: []string{"type", "error", "external_ids"}})
	if err != nil {
		return nil, err
	}
	d := differences{object: p}
	d.compare("bridge", p.Bridge, texts(results[0].Rows, "name"))
	d.compare("vlan_mode", p.mode(), printableLine(have.row.Text("vlan_mode")))
	tag := ""
	if p.Tag != nil {
		tag = fmt.Sprint(*p.Tag)
	}
	d.compare("tag", tag, numbers(have.row.Ints("tag")))
	d.compare("trunks", numbers(p.Trunks), numbers(have.row.Ints("trunks")))
	d.compare("type", p.Type, texts(results[1].Rows, "type"))
	d.compare("error", "", texts(results[1].Rows, "error"))
	for _, row := range results[1].Rows {
		ids := row.Map("external_ids")
		for _, k := range slices.Sorted(maps.Keys(p.InterfaceIDs)) {
			d.compare("external_ids:"+k, p.InterfaceIDs[k], printableLine(ids[k]))
		}
	}
	return d.list, nil
}

// texts returns a column of rows, of which there should be one.
func texts(rows []ovsdb.Row, column string) string {
	var all []string
	for _, r := range rows {
		if t := printableLine(r.Text(column)); t != "" {
			all = append(all, t)
		}
	}
	return strings.Join(all, ",")
}

// numbers returns "1,2". The database returns a set in the order of its values.
func numbers(list []int) string {
	texts := make([]string, len(list))
	for i, n := range list {
		texts[i] = fmt.Sprint(n)
	}
	return strings.Join(texts, ",")
}

// printableLine returns a text of the server's for a message.
func printableLine(s string) string { return nlconn.Printable(s[:min(len(s), 200)]) }

// ovsPortRow is a port that the database has, if id is not empty.
type ovsPortRow struct {
	id  string
	row ovsdb.Row
	// hasBridge reports whether there is the wanted bridge.
	hasBridge bool
}

func (r *ovsPortRow) owner() string { return r.row.Map("external_ids")[ovsOwner] }

// ovsPort reads the port with the name of p, and whether the bridge of p exists.
func (n *Net) ovsPort(ctx context.Context, p *OVSPort) (*ovsPortRow, error) {
	results, err := n.ovsTransact(ctx, p.Socket, 0,
		ovsdb.Operation{Op: "select", Table: "Port", Where: named(p.Link), Columns: []string{"_uuid", "vlan_mode", "tag", "trunks", "external_ids"}},
		ovsdb.Operation{Op: "select", Table: "Bridge", Where: named(p.Bridge), Columns: []string{"_uuid"}})
	if err != nil {
		return nil, err
	}
	have := &ovsPortRow{hasBridge: len(results[1].Rows) > 0}
	for _, row := range results[0].Rows {
		have.id, have.row = row.ID(), row
	}
	return have, nil
}

// OVSBridge returns nil if a database server of Open vSwitch has a bridge. The error wraps ErrNotExist if the server does
// not run or has no such bridge.
func (n *Net) OVSBridge(ctx context.Context, socket, bridge string) error {
	p := &OVSPort{Socket: socket, Bridge: bridge}
	have, err := n.ovsPort(ctx, p)
	if err == nil && !have.hasBridge {
		err = p.noBridge()
	}
	return err
}

// maxStrays bounds the ports that one call of StrayOVSPorts looks at.
const maxStrays = 256

// StrayOVSPorts lists ports whose mark begins with a prefix, which have no link, and which do not forward. Deletions of links
// and reboots leave them.
func (n *Net) StrayOVSPorts(ctx context.Context, socket, prefix string) ([]*OVSPort, error) {
	results, err := n.ovsTransact(ctx, socket, 0,
		ovsdb.Operation{Op: "select", Table: "Interface", Where: []ovsdb.Condition{{"link_state", "!=", "up"}}, Columns: []string{"name"}})
	if err != nil {
		return nil, err
	}
	s := n.session(nil)
	var ops []ovsdb.Operation
	for _, row := range results[0].Rows {
		name := row.Text("name")
		if rtnl.CheckName(name) != nil || len(ops) == maxStrays {
			continue
		}
		l, err := s.findLink(ctx, Host, name)
		if err != nil {
			return nil, err
		}
		if l == nil {
			ops = append(ops, ovsdb.Operation{Op: "select", Table: "Port", Where: named(name), Columns: []string{"name", "external_ids"}})
		}
	}
	if len(ops) == 0 {
		return nil, nil
	}
	if results, err = n.ovsTransact(ctx, socket, 0, ops...); err != nil {
		return nil, err
	}
	var strays []*OVSPort
	for _, r := range results {
		for _, row := range r.Rows {
			p := &OVSPort{Socket: socket, Link: row.Text("name"), Owner: row.Map("external_ids")[ovsOwner]}
			if strings.HasPrefix(p.Owner, prefix) && p.validate() == nil {
				strays = append(strays, p)
			}
		}
	}
	return strays, nil
}

// OVSPortOf returns the port that has all the given external_ids, or nil.
func (n *Net) OVSPortOf(ctx context.Context, socket string, ids map[string]string) (*OVSPort, error) {
	results, err := n.ovsTransact(ctx, socket, 0, ovsdb.Operation{
		Op: "select", Table: "Port", Where: []ovsdb.Condition{{"external_ids", "includes", ovsdb.Map(ids)}}, Columns: []string{"name", "external_ids"},
	})
	if err != nil {
		return nil, err
	}
	for _, row := range results[0].Rows {
		p := &OVSPort{Socket: socket, Link: row.Text("name"), Owner: row.Map("external_ids")[ovsOwner]}
		if p.validate() == nil {
			return p, nil
		}
	}
	return nil, nil
}

// ovsTransact makes a transaction that may wait for some time. The error wraps ErrNotExist if no server listens,
// ErrPermission, ErrExists or ErrBusy.
func (n *Net) ovsTransact(ctx context.Context, socket string, wait time.Duration, ops ...ovsdb.Operation) ([]ovsdb.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, ovsPatience+wait)
	defer cancel()
	if n.ovs != nil && n.ovsSocket != socket {
		_ = n.closeOVS()
	}
	if n.ovs == nil {
		conn, err := ovsdb.Dial(ctx, socket)
		if err != nil {
			return nil, ovsError(socket, err)
		}
		n.ovs, n.ovsSocket = conn, socket
	}
	results, err := n.ovs.Transact(ctx, ovsDatabase, ops...)
	if err == nil {
		return results, nil
	}
	if errors.As(err, new(*ovsdb.Error)) {
		return nil, ovsRefusal(err)
	}
	_ = n.closeOVS() // the connection is unusable
	return nil, ovsError(socket, err)
}

// ovsError explains an error of the connection.
func ovsError(socket string, err error) error {
	_, address, _ := ovsdb.Endpoint(socket)
	var class error
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("open vswitch: %w: no ovsdb-server listens on %s: start openvswitch, or correct the key socket_file", ErrNotExist, address)
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		class = ErrPermission
	default:
		class = ErrBusy
	}
	return fmt.Errorf("open vswitch: ovsdb-server on %s: %w: %s", address, class, nlconn.Printable(err.Error()))
}

// ovsRefusal adds the sentinel error of a transaction that the server refused, and makes its text printable.
func ovsRefusal(err error) error {
	var refused *ovsdb.Error
	if !errors.As(err, &refused) || ovsdb.IsTimeout(err) {
		return err
	}
	class := ErrInvalid
	if strings.Contains(refused.Details, "identical values") {
		class = ErrExists
	}
	return fmt.Errorf("open vswitch: %w: %s", class, printableLine(refused.Error()))
}

func (n *Net) closeOVS() error {
	if n.ovs == nil {
		return nil
	}
	conn := n.ovs
	n.ovs = nil
	return conn.Close()
}
