package netops

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// setting is an attribute that one request changes on a link that exists.
type setting struct {
	// name is the attribute's name in ip-link(8).
	name string
	// value returns comparable text, or "" if the Link leaves the attribute unchanged.
	value func(l *Link) string
	// copy sets the attribute as another Link has it. Unset of to is not nil.
	copy func(to, from *Link)
}

// Names of settings.
const (
	aliasSetting      = "alias"
	mtuSetting        = "mtu"
	txChecksumSetting = "tx-checksum"
)

// linkSettings lists the attributes that a request changes, apart from the flags of a bridge port.
func linkSettings() []setting {
	return []setting{
		{"address", func(l *Link) string { return canonicalMAC(l.MAC) }, func(to, from *Link) { to.MAC = from.MAC }},
		{mtuSetting, func(l *Link) string { return toggled(l.MTU != 0, false, strconv.Itoa(l.MTU), "") }, func(to, from *Link) { to.MTU = from.MTU }},
		{"state", func(l *Link) string { return toggled(l.Up, l.Down, "up", "down") }, func(to, from *Link) { to.Up, to.Down = from.Up, from.Down }},
		{
			"promisc", func(l *Link) string { return toggled(l.Promisc, l.unset().Promisc, "on", "off") },
			func(to, from *Link) { to.Promisc, to.Unset.Promisc = from.Promisc, from.unset().Promisc },
		},
		{
			"allmulticast", func(l *Link) string { return toggled(l.AllMulti, l.unset().AllMulti, "on", "off") },
			func(to, from *Link) { to.AllMulti, to.Unset.AllMulti = from.AllMulti, from.unset().AllMulti },
		},
		{
			"arp", func(l *Link) string { return toggled(l.ARP, l.unset().ARP, "on", "off") },
			func(to, from *Link) { to.ARP, to.Unset.ARP = from.ARP, from.unset().ARP },
		},
		{"txqueuelen", func(l *Link) string { return idText(l.TxQLen) }, func(to, from *Link) { to.TxQLen = from.TxQLen }},
		{txChecksumSetting, func(l *Link) string { return l.TxChecksum }, func(to, from *Link) { to.TxChecksum = from.TxChecksum }},
		{
			aliasSetting, func(l *Link) string { return toggled(l.Alias != "", l.unset().Alias, l.Alias, "none") },
			func(to, from *Link) { to.Alias, to.Unset.Alias = from.Alias, from.unset().Alias },
		},
		{
			"master", func(l *Link) string { return toggled(l.Master != "", l.unset().Master, l.Master, "none") },
			func(to, from *Link) { to.Master, to.Unset.Master = from.Master, from.unset().Master },
		},
	}
}

// toggled returns the text of an attribute that a Link sets or unsets, or "" if it does neither.
func toggled(set, unset bool, value, none string) string {
	switch {
	case set:
		return value
	case unset:
		return none
	}
	return ""
}

// unset returns the properties that l clears.
func (l *Link) unset() Unset {
	if l.Unset == nil {
		return Unset{}
	}
	return *l.Unset
}

// present returns the Link with l's name that has all settings of the existing link have. Its MAC is the one
// that it has outside of a bond. It reads the offload only if l sets it.
func (l *Link) present(ctx context.Context, s *session, have *rtnl.Link) (*Link, error) {
	master, err := "", error(nil)
	if l.Master != "" || l.unset().Master {
		master, err = s.linkName(ctx, l.In, have.Master)
	}
	mac := have.MAC
	if len(have.BeforeBond) > 0 {
		mac = have.BeforeBond
	}
	p := &Link{
		In: l.In, Shared: l.Shared, Name: l.Name, MAC: mac.String(), MTU: have.MTU, Up: have.IsUp(), Down: !have.IsUp(),
		Alias: have.Alias, Master: master, Port: have.Port, Promisc: have.IsPromisc(), AllMulti: have.IsAllMulti(), ARP: !have.IsNoARP(), TxQLen: &have.TxQLen,
		Unset: &Unset{Promisc: !have.IsPromisc(), AllMulti: !have.IsAllMulti(), Master: master == "", Alias: have.Alias == "", ARP: have.IsNoARP()},
	}
	if l.TxChecksum != "" && err == nil {
		var on uint32
		on, err = s.ethtool(l, unix.ETHTOOL_GTXCSUM, 0)
		p.TxChecksum = onOff(on != 0)
	}
	return p, err
}

// ethtool makes an ethtool request for the link.
func (s *session) ethtool(l *Link, command, value uint32) (uint32, error) {
	c, err := s.conn(l.In)
	if err != nil {
		return 0, err
	}
	got, err := c.EthtoolValue(l.Name, command, value)
	return got, nlconn.Explain(err, fmt.Sprintf("link %q: %s", l.Name, txChecksumSetting))
}

// difference returns two Links: set changes the settings in which the existing link differs from l,
// and old restores them. Both are nil if nothing differs.
func (l *Link) difference(have *rtnl.Link, present *Link) (set, old *Link) {
	set = &Link{In: l.In, Shared: l.Shared, Name: l.Name, Unset: &Unset{}}
	old = &Link{In: l.In, Shared: l.Shared, Name: l.Name, Unset: &Unset{}}
	differs := l.Port != nil && (have.Port == nil || !l.Port.Is(have.Port))
	if differs {
		set.Port, old.Port = l.Port, have.Port
	}
	for _, s := range linkSettings() {
		if want := s.value(l); want != "" && want != s.value(present) {
			s.copy(set, l)
			s.copy(old, present)
			differs = true
		}
	}
	if !differs {
		return nil, nil
	}
	for _, end := range []*Link{set, old} {
		if *end.Unset == (Unset{}) {
			end.Unset = nil
		}
	}
	return set, old
}

// verifySettings compares the settings of an existing link. It leaves out the alias, whose text behind the label is for people, and
// the MTU of a bond's link, which is the bond's: another attachment may have bonded it.
func (l *Link) verifySettings(ctx context.Context, s *session, have *rtnl.Link, prefix string, d *differences) error {
	present, err := l.present(ctx, s, have)
	for _, a := range linkSettings() {
		if want := a.value(l); want != "" && a.name != aliasSetting && (a.name != mtuSetting || len(have.BeforeBond) == 0) {
			d.compare(prefix+a.name, want, a.value(present))
		}
	}
	return err
}

// header returns the header of a request that sets the link's flags.
func (l *Link) header(index int) *nl.IfInfomsg {
	ifi, u := nl.NewIfInfomsg(unix.AF_UNSPEC), l.unset()
	ifi.Index = int32(index)
	rtnl.SetFlag(ifi, l.Up, l.Down, unix.IFF_UP)
	rtnl.SetFlag(ifi, l.Promisc, u.Promisc, unix.IFF_PROMISC)
	rtnl.SetFlag(ifi, l.AllMulti, u.AllMulti, unix.IFF_ALLMULTI)
	rtnl.SetFlag(ifi, u.ARP, l.ARP, unix.IFF_NOARP)
	return ifi
}

// addOwn appends MAC, MTU and queue length, as far as l sets them.
func (l *Link) addOwn(b *nlconn.Body) {
	rtnl.AddHardware(b, l.MAC, l.MTU)
	if l.TxQLen != nil {
		b.Uint32(unix.IFLA_TXQLEN, *l.TxQLen)
	}
}

// canonicalMAC returns the colon form of a MAC, and "" for none.
func canonicalMAC(text string) string {
	mac, err := net.ParseMAC(text)
	if err != nil {
		return ""
	}
	return mac.String()
}
