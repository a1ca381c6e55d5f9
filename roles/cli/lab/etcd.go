package lab

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/cnibox/cnibox/store/cluster/etcd"
)

// switchAddress is the switch's own, and forwarded where the nodes find etcd there.
const (
	switchAddress = "172.17.8.1/24"
	forwarded     = "172.17.8.1:2379"
)

// hostPort is the address in the URL of an etcd that can be forwarded to: its
// certificate would be of another name.
func hostPort(endpoint string) (string, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" || u.Hostname() == "" || u.Port() == "" {
		return "", fmt.Errorf("%w: --etcd-endpoint %q: give a URL as http://127.0.0.1:2379", ErrInvalid, endpoint)
	}
	return u.Host, nil
}

// etcdPrefix is that of the lab's keys; nothing else is below it.
const etcdPrefix = "/cnibox/lab"

// fillEtcd writes the configuration, and a key without a lease for each node.
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

// clearRegistry removes what the lab and its nodes wrote outside of its directory.
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
