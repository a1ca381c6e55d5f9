// Command flanneld is flannel's daemon on etcd, for the tests. It consists of flannel's own registry, device and peers
// (github.com/flannel-io/flannel), without the backends, cloud SDKs and Kubernetes client of flannel's command, which take three
// times as long to compile; one of them needs a C compiler. Without -ip-masq it makes no packet filter rules at all, like flanneld
// with --iptables-forward-rules=false.
package main

import (
	"context"
	"flag"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/flannel-io/flannel/pkg/backend"
	_ "github.com/flannel-io/flannel/pkg/backend/vxlan"
	_ "github.com/flannel-io/flannel/pkg/backend/wireguard"
	"github.com/flannel-io/flannel/pkg/ip"
	"github.com/flannel-io/flannel/pkg/ipmatch"
	"github.com/flannel-io/flannel/pkg/subnet"
	"github.com/flannel-io/flannel/pkg/subnet/etcd"
	"github.com/flannel-io/flannel/pkg/trafficmngr/iptables"
	"k8s.io/klog/v2"
)

func main() {
	endpoints := flag.String("etcd-endpoints", "http://127.0.0.1:2379", "")
	prefix := flag.String("etcd-prefix", "/coreos.com/network", "")
	iface := flag.String("iface", "", "")
	file := flag.String("subnet-file", "/run/flannel/subnet.env", "")
	masq := flag.Bool("ip-masq", false, "")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, stop, *endpoints, *prefix, *iface, *file, *masq); err != nil {
		klog.Fatal(err)
	}
}

// run does what flanneld does, in its order: configuration, interface, device and lease, rules, the file for plugins, then peers
// until it is stopped.
func run(ctx context.Context, stop func(), endpoints, prefix, iface, file string, masq bool) error {
	const renewMargin = 60 // minutes, flanneld's default
	registry, err := etcd.NewLocalManager(ctx, &etcd.EtcdConfig{Endpoints: strings.Split(endpoints, ","), Prefix: prefix}, ip.IP4Net{}, ip.IP6Net{}, renewMargin)
	if err != nil {
		return err
	}
	config, err := registry.GetNetworkConfig(ctx)
	if err != nil {
		return err
	}
	families, err := ipmatch.GetIPFamily(config.EnableIPv4, config.EnableIPv6)
	if err != nil {
		return err
	}
	external, err := ipmatch.LookupExtIface(iface, "", "", families, ipmatch.PublicIPOpts{})
	if err != nil {
		return err
	}
	network, err := register(ctx, registry, external, config)
	if err != nil {
		return err
	}
	lease := network.Lease()
	if masq {
		const resync = 5 // seconds, flanneld's default
		rules := &iptables.IPTablesManager{}
		if err := rules.Init(ctx); err != nil {
			return err
		}
		if err := rules.SetupAndEnsureMasqRules(ctx, config.Network, lease.Subnet, config.Network, config.IPv6Network, lease.IPv6Subnet, config.IPv6Network, lease, resync, false); err != nil {
			return err
		}
		rules.SetupAndEnsureForwardRules(ctx, config.Network, config.IPv6Network, resync)
	}
	if err := registry.HandleSubnetFile(file, config, masq, lease.Subnet, lease.IPv6Subnet, network.MTU()); err != nil {
		return err
	}
	var all sync.WaitGroup
	all.Go(func() { network.Run(ctx) })
	if err := ready(); err != nil {
		return err
	}
	err = registry.CompleteLease(ctx, lease, &all) // until ctx ends, or the lease is removed
	revoked := ctx.Err() == nil
	stop()
	all.Wait()
	if revoked {
		return err
	}
	return nil
}

func register(ctx context.Context, registry subnet.Manager, external *backend.ExternalInterface, config *subnet.Config) (backend.Network, error) {
	b, err := backend.NewManager(ctx, registry, external).GetBackend(config.BackendType)
	if err != nil {
		return nil, err
	}
	var running sync.WaitGroup
	return b.RegisterNetwork(ctx, &running, config)
}

// ready notifies the process that started it (sd_notify(3)).
func ready() error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	c, err := net.Dial("unixgram", path)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Write([]byte("READY=1"))
	return err
}
