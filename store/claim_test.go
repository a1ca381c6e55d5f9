package store_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/cnibox/cnibox/store"
)

// ports returns the resource of the ports from first to last.
func ports(first, last uint16, protocol, address string) store.Resource {
	p := store.Ports{First: first, Last: last, Protocol: protocol, Family: "IPv4"}
	if address != "" {
		p.Address = netip.MustParseAddr(address)
	}
	return store.Resource{Kind: store.KindPort, Ports: p}
}

// TestClaimPorts claims ports beside ports of another owner. Each claim has its expected conflict.
func TestClaimPorts(t *testing.T) {
	mine, other := store.Key{Network: "n", ContainerID: "a", IfName: "eth0"}, store.Key{Network: "n", ContainerID: "b", IfName: "eth0"}
	six := ports(80, 80, "tcp", "")
	six.Ports.Family = "IPv6"
	for _, v := range []struct {
		name         string
		held, wanted store.Resource
		taken        bool
	}{
		{"the same address", ports(80, 80, "tcp", "10.0.0.1"), ports(80, 80, "tcp", "10.0.0.1"), true},
		{"another address", ports(80, 80, "tcp", "10.0.0.1"), ports(80, 80, "tcp", "10.0.0.2"), false},
		{"all addresses", ports(80, 80, "tcp", "10.0.0.1"), ports(80, 80, "tcp", ""), true},
		{"one of all addresses", ports(80, 80, "tcp", ""), ports(80, 80, "tcp", "10.0.0.1"), true},
		{"all addresses again", ports(80, 80, "tcp", ""), ports(80, 80, "tcp", ""), true},
		{"another protocol", ports(80, 80, "tcp", ""), ports(80, 80, "udp", ""), false},
		{"another family", ports(80, 80, "tcp", ""), six, false},
		{"an address that begins alike", ports(80, 80, "tcp", "10.0.0.1"), ports(80, 80, "tcp", "10.0.0.11"), false},
		{"a port that begins alike", ports(80, 80, "tcp", ""), ports(8, 8, "tcp", ""), false},
		{"the same range", ports(80, 90, "tcp", ""), ports(80, 90, "tcp", ""), true},
		{"a range that overlaps", ports(80, 90, "tcp", ""), ports(90, 99, "tcp", ""), true},
		{"a range within", ports(80, 90, "tcp", ""), ports(85, 86, "tcp", ""), true},
		{"a range after", ports(80, 90, "tcp", ""), ports(91, 99, "tcp", ""), false},
		{"a range of another protocol", ports(80, 90, "tcp", ""), ports(80, 90, "udp", ""), false},
		{"a range of one address", ports(80, 90, "tcp", ""), ports(80, 90, "tcp", "10.0.0.1"), true},
		{"a range of another address", ports(80, 90, "tcp", "10.0.0.2"), ports(80, 90, "tcp", "10.0.0.1"), false},
		{"a port of the range", ports(80, 90, "tcp", ""), ports(85, 85, "tcp", ""), true},
		{"a port of the range of one address", ports(80, 90, "tcp", ""), ports(85, 85, "tcp", "10.0.0.1"), true},
		{"a port of all addresses", ports(80, 90, "tcp", "10.0.0.1"), ports(85, 85, "tcp", ""), true},
		{"a port beside the range", ports(80, 90, "tcp", ""), ports(8, 8, "tcp", ""), false},
		{"a range with the port", ports(85, 85, "tcp", "10.0.0.1"), ports(80, 90, "tcp", ""), true},
		{"a range with the port of another address", ports(85, 85, "tcp", "10.0.0.1"), ports(80, 90, "tcp", "10.0.0.2"), false},
		{"a range without the port", ports(8, 8, "tcp", ""), ports(80, 90, "tcp", ""), false},
		{"a range of an address that begins alike", ports(80, 90, "tcp", "10.0.0.1"), ports(80, 90, "tcp", "10.0.0.11"), false},
	} {
		t.Run(v.name, func(t *testing.T) {
			s := newStore(t)
			update(t, s, func(tx *store.Tx) error { return tx.Claim(v.held, mine, testTime) })
			update(t, s, func(tx *store.Tx) error {
				if c, err := tx.Holder(v.wanted, mine); c != nil || err != nil {
					t.Errorf("my own claim keeps me from it: %v, %v", c, err)
				}
				taken, err := tx.Holder(v.wanted, other)
				if err != nil || (taken != nil) != v.taken || taken != nil && (taken.Owner != mine || taken.What != v.wanted.String()) {
					t.Errorf("holder %v, %v, taken is %v", taken, err, v.taken)
				}
				if err := tx.Claim(v.wanted, mine, testTime); err != nil {
					t.Errorf("beside my own: %v", err)
				}
				return tx.Unclaim(mine)
			})
			update(t, s, func(tx *store.Tx) error { return tx.Claim(v.held, mine, testTime) })
			update(t, s, func(tx *store.Tx) error {
				if err := tx.Claim(v.wanted, other, testTime); errors.Is(err, store.ErrTaken) != v.taken {
					t.Errorf("claim: %v, taken is %v", err, v.taken)
				}
				return nil
			})
		})
	}
}

// TestClaimNames: claims of ports are stored under the names that an export shows, and are found again by them. A name that is not one of
// ports is a resource of its own.
func TestClaimNames(t *testing.T) {
	s := newStore(t)
	owner := store.Key{Network: "n", ContainerID: "a", IfName: "eth0"}
	six := store.Ports{First: 80, Last: 80, Protocol: "udp", Family: "IPv6", Address: netip.MustParseAddr("2001:db8::1")}
	names := map[string]store.Resource{
		"8080/tcp/IPv4/":                     ports(8080, 8080, "tcp", ""),
		"8080/tcp/IPv4/192.0.2.1":            ports(8080, 8080, "tcp", "192.0.2.1"),
		"range 8000-8100/sctp/IPv4/":         ports(8000, 8100, "sctp", ""),
		"range 8000-8100/tcp/IPv4/192.0.2.1": ports(8000, 8100, "tcp", "192.0.2.1"),
		"80/udp/IPv6/2001:db8::1":            {Kind: store.KindPort, Ports: six},
		"080/tcp/IPv4/":                      {Kind: store.KindPort, Name: "080/tcp/IPv4/"},
		"65536/tcp/IPv4/":                    {Kind: store.KindPort, Name: "65536/tcp/IPv4/"},
		"80/tcp/IPv4/localhost":              {Kind: store.KindPort, Name: "80/tcp/IPv4/localhost"},
		"tcp 80":                             {Kind: store.KindPort, Name: "tcp 80"},
	}
	for name, resource := range names {
		update(t, s, func(tx *store.Tx) error { return tx.Claim(resource, owner, testTime) })
		view(t, s, func(tx *store.Tx) error {
			claims, err := tx.Claims("")
			if len(claims) != 1 || claims[0].Name != name || claims[0].Resource() != resource {
				t.Errorf("%s is %v in the file", name, claims)
			}
			return err
		})
		update(t, s, func(tx *store.Tx) error { return tx.Unclaim(owner) })
	}
}

// TestHandOver: of a container's attachments that await ports, the first one gets those that nobody has, and later calls report that it has
// them. An attachment that ends does not count.
func TestHandOver(t *testing.T) {
	key := func(network, id string) store.Key {
		return store.Key{Network: network, ContainerID: id, IfName: "eth0"}
	}
	holder, first, second, alike := key("n1", "a"), key("n2", "a"), key("n3", "a"), key("n2", "aa")
	free, range4, taken := ports(80, 80, "tcp", ""), ports(90, 99, "udp", "10.0.0.1"), ports(85, 85, "tcp", "")
	s := newStore(t)
	update(t, s, func(tx *store.Tx) error {
		err := errors.Join(tx.Claim(free, holder, testTime), tx.Claim(range4, holder, testTime), tx.Claim(taken, alike, testTime))
		for _, k := range []store.Key{first, second, alike} {
			for _, r := range []store.Resource{free, range4, taken} {
				err = errors.Join(err, tx.Claim(store.Awaited(r.Ports, k), k, testTime))
			}
		}
		if handed, failed := tx.HandOver(first, testTime); handed {
			t.Error("ports that are held were handed over")
		} else if failed != nil {
			err = errors.Join(err, failed)
		}
		return errors.Join(err, tx.Unclaim(holder))
	})
	update(t, s, func(tx *store.Tx) error {
		handed, err := tx.HandOver(holder, testTime)
		if !handed {
			t.Error("nothing was handed over")
		}
		return err
	})
	update(t, s, func(tx *store.Tx) error {
		for _, r := range []store.Resource{free, range4} {
			if have, err := tx.Holder(r, holder); err != nil || have == nil || have.Owner != first {
				t.Errorf("%s: %v, %v, want %v", r, have, err, first)
			}
		}
		if !tx.Awaits("a") || tx.Awaits("b") {
			t.Error("it is not known who awaits ports")
		}
		for from, want := range map[store.Key]bool{holder: true, first: false} {
			if handed, err := tx.HandOver(from, testTime); err != nil || handed != want {
				t.Errorf("again from %v: %t, %v", from, handed, err)
			}
		}
		for _, r := range []store.Resource{free, range4} {
			if have, err := tx.Holder(r, holder); err != nil || have == nil || have.Owner != first {
				t.Errorf("%s after later calls: %v, %v, want %v", r, have, err, first)
			}
		}
		return nil
	})
}
