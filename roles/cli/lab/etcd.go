package lab

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/cnibox/cnibox/store/cluster/etcd"
)

// switchAddress is the switch's own address. The nodes reach the forwarded etcd at it.
const (
	switchAddress = "172.17.8.1/24"
	forwarded     = "172.17.8.1:2379"
)

// hostPort returns the address in the URL of an etcd without TLS. Forwarding changes the host name,
// so a certificate would not match.
func hostPort(endpoint string) (string, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" || u.Hostname() == "" || u.Port() == "" {
		return "", fmt.Errorf("%w: --etcd-endpoint %q: give a URL as http://127.0.0.1:2379", ErrInvalid, endpoint)
	}
	return u.Host, nil
}

// etcdPrefix is the prefix of the lab's keys.
const etcdPrefix = "/cnibox/lab"

// fillEtcd writes the configuration and one key without a lease for each node.
func fillEtcd(ctx context.Context, s *State) error {
	a, err := etcd.NewAdmin(etcd.Options{Endpoints: []string{s.Endpoint}, Prefix: etcdPrefix})
	if err != nil {
		return err
	}
	errs := []error{a.SetConfig(ctx, []byte(config))}
	for i := range s.Nodes {
		errs = append(errs, a.Reserve(ctx, s.Nodes[i].PodNetwork, s.Nodes[i].Address.Addr()))
	}
	return errors.Join(append(errs, a.Close())...)
}

// clearRegistry removes the lab's and its nodes' keys in etcd.
func clearRegistry(ctx context.Context, s *State) error {
	if s.Registry != "etcd" {
		return nil
	}
	a, err := etcd.NewAdmin(etcd.Options{Endpoints: []string{s.Endpoint}, Prefix: etcdPrefix})
	if err != nil {
		return err
	}
	return errors.Join(a.Clear(ctx), a.Close())
}
