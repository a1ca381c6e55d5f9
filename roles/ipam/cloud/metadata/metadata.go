// Package metadata asks clouds which addresses this node has for its pods, and
// gives every cloud's answer the one form of store.CloudNIC.
//
// Each provider is a file: what it asks, and a decoder, which is a pure function
// of the bytes that came back. normalise, which all of them end with, decides
// what of a reply can be used. Replies are hostile: they are bounded, and what is
// wrong in one is left out by name instead of spoiling the rest.
package metadata

import (
	"context"
	"net/netip"
	"time"

	"github.com/cnibox/cnibox/store"
)

// Query is one question to a cloud.
type Query struct {
	// URL replaces the provider's own base URL; see CheckURL.
	URL string
	// File is read instead by the provider "file".
	File string
	// HeaderTimeout bounds the wait for a reply to begin; 0 is 10 s.
	HeaderTimeout time.Duration
	// Own are the addresses that links of this node have: never a pod's.
	Own []netip.Addr
	// DMI is where auto looks for what the machine says of itself; empty: the
	// kernel's directory.
	DMI string
}

// Reply is what a cloud gives.
type Reply struct {
	// Provider is who answered: auto's choice, else the provider itself.
	Provider string
	// NICs are by device number and MAC, whatever the order of the reply.
	NICs []store.CloudNIC
	// Dropped is what of the reply is not used, and why.
	Dropped []string
}

// Provider is one way to ask.
type Provider struct {
	// Name is the provider's in configurations: "aws".
	Name string
	// Summary is one line, without a final period.
	Summary string
	// Default is the URL, or the file, that is asked when none is given; empty where
	// there is none.
	Default string
	// Fetch asks. Its errors are ErrUnavailable, ErrRefused, ErrNoAddresses and
	// ErrInvalid, or that of ctx. With ErrNoAddresses there is a Reply too when a good one came
	// that shows no addresses for pods.
	Fetch func(ctx context.Context, q Query) (*Reply, error)
}

// Providers are all, auto first.
func Providers() []Provider {
	return []Provider{
		auto(), azure(), azureIMDS(), aws(), gcp(), alibaba(), tencent(), oracle(),
		openstack(), digitalOcean(), hetzner(), vultr(), file(),
	}
}

// Lookup finds a provider by its name.
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
