// Package metadata queries clouds for the addresses that this node has for its pods, and converts
// each cloud's reply to store.CloudNIC.
//
// Each provider is a file with its requests and a decoder, which is a pure function of the reply.
// normalise then selects the usable part of a reply. Replies are not trusted: their size is limited,
// and an invalid part is dropped and reported without affecting the rest.
package metadata

import (
	"context"
	"net/netip"
	"time"

	"github.com/cnibox/cnibox/store"
)

// Query is a query to a cloud.
type Query struct {
	// URL replaces the provider's base URL. See CheckURL.
	URL string
	// File is the path for the provider "file".
	File string
	// HeaderTimeout limits the wait for the header of a reply. 0 means 10 s.
	HeaderTimeout time.Duration
	// Own are the addresses of this node's links. Pods never get them.
	Own []netip.Addr
	// DMI is the directory of DMI fields for auto. Empty means the kernel's directory.
	DMI string
}

// Reply is a cloud's reply.
type Reply struct {
	// Provider is the provider that replied. For auto it is the detected one.
	Provider string
	// NICs are sorted by device number and MAC.
	NICs []store.CloudNIC
	// Dropped lists the unused parts of the reply with the reasons.
	Dropped []string
}

// Provider is a source of addresses.
type Provider struct {
	// Name is the name in configurations, such as "aws".
	Name string
	// Summary is one line without a final period.
	Summary string
	// Default is the default URL or file, or empty.
	Default string
	// Fetch sends the query. Its errors are ErrUnavailable, ErrRefused, ErrNoAddresses, ErrInvalid,
	// and ctx's. With ErrNoAddresses there is a Reply, too, if the reply was valid.
	Fetch func(ctx context.Context, q Query) (*Reply, error)
}

// Providers returns all providers, auto first.
func Providers() []Provider {
	return []Provider{
		auto(), azure(), azureIMDS(), aws(), gcp(), alibaba(), tencent(), oracle(),
		openstack(), digitalOcean(), hetzner(), vultr(), file(),
	}
}

// Lookup returns a provider by its name.
func Lookup(name string) (Provider, bool) {
	for _, p := range Providers() {
		if p.Name == name {
			return p, true
		}
	}
	return Provider{}, false
}

func providerNames() []string {
	var names []string
	for _, p := range Providers() {
		names = append(names, p.Name)
	}
	return names
}
