// Package etcd is the registry of nodes in etcd, with flannel's layout for etcd v3, so that nodes of
// both programs can share a cluster:
//
//	<prefix>/config                              net-conf.json
//	<prefix>/subnets/10.5.52.0-24                one node
//	<prefix>/subnets/10.5.52.0-24&fd00:1::-64    one with both families
//
// A node's key belongs to a lease of 24 hours, which the node renews. A key without a lease is a
// reservation, and never gets a lease. The package uses etcd's JSON gateway (v3 API, etcd 3.4 and
// later).
package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/web"
)

// DefaultPrefix is flannel's prefix.
const DefaultPrefix = "/coreos.com/network"

const (
	// leaseTTL is the time after which a subnet is free again if its node does not renew the lease.
	leaseTTL    = 24 * time.Hour
	renewMargin = time.Hour
	// callTimeout bounds one request to one server.
	callTimeout = 10 * time.Second
)

// Options are the arguments of Open.
type Options struct {
	// Endpoints are etcd's URLs, such as "https://192.0.2.1:2379". The first one that
	// answers is used until it fails.
	Endpoints []string
	// Prefix begins all keys. Empty means DefaultPrefix.
	Prefix string
	// TLS authenticates both sides. Nil means the system's roots.
	TLS *web.TLS
	// Username and Password are for etcd's own authentication. Set both or none.
	Username, Password string
	// Node is the node's name, which only cluster-wide ranges need.
	Node string
	// PublicIP and PublicIPv6 identify a record without an author before Acquire.
	PublicIP, PublicIPv6 netip.Addr
	// Owner decides which records are the node's own. It may be nil.
	Owner *cluster.Owner
	// RenewMargin is the latest time before the lease's end at which it is renewed. 0 means an hour.
	RenewMargin time.Duration
	// Warn is called with each key of the configuration that has no effect, and when
	// the lease cannot be renewed; it may be nil.
	Warn func(string)
}

// Registry is etcd, opened for one node. See cluster.Registry.
type Registry struct {
	o Options
	c *client
	// acquiring serializes Acquire and Release.
	acquiring sync.Mutex
	held      held
	// watched is the table of a running Watch that reaches etcd, or nil.
	watched atomic.Pointer[cluster.Table]
	// grace is how long Watch reports a node that etcd has lost. Without the loss, etcd would have a record that its node
	// does not renew for at most leaseTTL, so a node without its agent stays as long as ever.
	grace time.Duration
}

// Open checks the options. It does not connect.
func Open(o Options) (*Registry, error) {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("%w: %s", cluster.ErrInvalid, fmt.Sprintf(format, args...)))
	}
	if o.Prefix == "" {
		o.Prefix = DefaultPrefix
	}
	o.Prefix = strings.TrimRight(o.Prefix, "/")
	if !strings.HasPrefix(o.Prefix, "/") || strings.ContainsRune(o.Prefix, 0) {
		fault("etcd prefix %q: give a path, as %q", o.Prefix, DefaultPrefix)
	}
	if len(o.Endpoints) == 0 {
		fault("etcd endpoints: there is none")
	}
	for _, e := range o.Endpoints {
		u, err := url.Parse(e)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
			fault("etcd endpoint: give a URL as https://192.0.2.1:2379, without user, path and query")
		}
	}
	if (o.Username == "") != (o.Password == "") {
		fault("etcd username and password: one is given without the other")
	}
	if o.RenewMargin == 0 {
		o.RenewMargin = renewMargin
	}
	if o.RenewMargin < 0 || o.RenewMargin >= leaseTTL {
		fault("etcd lease renewal margin is %v: give more than 0 and less than %v", o.RenewMargin, leaseTTL)
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	c, err := newClient(o)
	if err != nil {
		return nil, err
	}
	return &Registry{o: o, c: c, held: held{changed: make(chan struct{}, 1)}, grace: leaseTTL}, nil
}

func (r *Registry) warn(text string) {
	if r.o.Warn != nil {
		r.o.Warn(text)
	}
}

func (r *Registry) noConfig() error {
	return fmt.Errorf("read network configuration: %w: etcd has no key %s: put net-conf.json there", cluster.ErrUnavailable, r.configKey())
}

// Ready does nothing: this registry has no readiness.
func (r *Registry) Ready(context.Context) error { return nil }

// Close closes all connections. The lease stays, so that a restarted agent can continue with it.
func (r *Registry) Close() error {
	r.c.web.CloseIdle()
	return nil
}

// CloseFrom closes the connections from lost addresses.
func (r *Registry) CloseFrom(lost func(netip.Addr) bool) { r.c.conns.CloseFrom(lost) }

func (r *Registry) configKey() string { return r.o.Prefix + "/config" }

func (r *Registry) subnets() string { return r.o.Prefix + "/subnets/" }
