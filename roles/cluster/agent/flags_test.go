package agent

import (
	"errors"
	"flag"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/roles"
)

// TestFlags: flannel's flags and environment variables have the same meaning as for flanneld.
func TestFlags(t *testing.T) {
	s, err := parseFlags(flanneld, "v1", []string{
		"--ip-masq", "-iface=eth1", "--iface", "10.1.2.3,eth2", "--iface-regex", "^ens", "--public-ip=192.0.2.1", "--public-ipv6=2001:db8::1",
		"--iface-can-reach=198.51.100.1", "-kube-subnet-mgr", "-v=4", "--ip-masq-fully-random-disable", "--ip-blackhole-route=false",
		"--healthz-port=8081", "--subnet-lease-renew-margin=30", "--ip-masq-except", "192.0.2.0/24",
	}, []string{"FLANNELD_PUBLIC_IP=203.0.113.9", "FLANNELD_HEALTHZ_IP=127.0.0.1", "FLANNELD_IPTABLES_FORWARD_RULES=false", "FLANNELD_ETCD_PASSWORD=secret"})
	if err != nil {
		t.Fatal(err)
	}
	u := s.underlay
	if !slices.Equal(u.ifaces, []string{"eth1", "10.1.2.3", "eth2"}) || len(u.regexes) != 1 || u.canReach != netip.MustParseAddr("198.51.100.1") ||
		u.public4 != netip.MustParseAddr("192.0.2.1") || u.public6 != netip.MustParseAddr("2001:db8::1") {
		t.Errorf("underlay %+v", u)
	}
	if !s.ipMasq || s.forward || !s.registry.kube || s.registry.etcd.Password != "secret" || s.registry.renewMargin != 30*time.Minute {
		t.Errorf("%+v", s)
	}
	if s.healthAddr() != "127.0.0.1:8081" || !slices.Equal(s.ignored, []string{"v"}) || !s.keepPorts || len(s.exceptions) != 1 {
		t.Errorf("health %q, ignored %q, exceptions %v", s.healthAddr(), s.ignored, s.exceptions)
	}
	if s.subnetEnv != "/run/flannel/subnet.env" || s.netConf != "/etc/kube-flannel/net-conf.json" || s.registry.annotations != "flannel.alpha.coreos.com" {
		t.Errorf("defaults %+v", s)
	}
}

// TestRegistryOfFlags: exactly one registry is used. The default is the directory, or etcd under
// the name flanneld.
func TestRegistryOfFlags(t *testing.T) {
	for _, tt := range []struct {
		role string
		args []string
		etcd int
		dir  string
		kube bool
		err  string
	}{
		{"agent", nil, 0, "", false, ""},
		{flanneld, nil, 2, "", false, ""},
		{flanneld, []string{"-cluster-dir", "/x"}, 0, "/x", false, ""},
		{"agent", []string{"-etcd-endpoints=https://a:2379, https://b:2379,"}, 2, "", false, ""},
		{flanneld, []string{"-kube-subnet-mgr", "-etcd-endpoints=http://a:2379"}, 0, "", true, ""},
		{"agent", []string{"-kube-subnet-mgr", "-cluster-dir=/x"}, 0, "", false, "-cluster-dir and -kube-subnet-mgr: give one registry"},
		{"agent", []string{"-ranges-only"}, 0, "", false, "-ranges-only: give the registry of all nodes"},
		{"agent", []string{"-ranges-only", "-cluster-dir=/x"}, 0, "/x", false, ""},
		{flanneld, []string{"-ranges-only"}, 2, "", false, ""},
	} {
		s, err := parseFlags(tt.role, "v1", tt.args, nil)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%s %q: %v, want %q", tt.role, tt.args, err, tt.err)
			}
			continue
		}
		if err != nil || len(s.registry.etcd.Endpoints) != tt.etcd || s.registry.dir != tt.dir || s.registry.kube != tt.kube {
			t.Errorf("%s %q: %+v, %v", tt.role, tt.args, s.registry, err)
		}
	}
}

// TestFlagFaults: every fault is reported with the flag and the valid values.
func TestFlagFaults(t *testing.T) {
	_, err := parseFlags("agent", "v1", []string{"-cluster-dir", "x", "-healthz-port=70000", "-etcd-certfile=/c", "y"}, []string{"FLANNELD_PUBLIC_IP=nine", "FLANNELD_IP_BLACKHOLE_ROUTE=true"})
	if !errors.Is(err, roles.ErrUsage) {
		t.Errorf("no fault of usage: %v", err)
	}
	for _, want := range []string{
		`-cluster-dir: "x" is not an absolute path`, "-healthz-port: 70000 is not a port", "-etcd-certfile and -etcd-keyfile", `"y" is not a flag`,
		`FLANNELD_PUBLIC_IP: "nine" is not an IPv4 address`, "FLANNELD_IP_BLACKHOLE_ROUTE: the agent makes no blackhole route",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q in it", err, want)
		}
	}
	for _, args := range [][]string{{"-nosuch"}, {"-iface-regex", "("}, {"-public-ip", "2001:db8::1"}, {"-public-ip", "127.0.0.1"}, {"-ip-masq-except", "10.0.0.1/8"}, {"-etcd-endpoints", ""}, {"-etcd-endpoints= ,"}, {"-vxlan-port=0"}, {"-vxlan-port=65536"}, {"-vxlan-port=abc"}, {"-vxlan-tx-checksum-offload=auto"}, {"-subnet-lease-renew-margin=0"}} {
		if _, err := parseFlags("agent", "v1", args, nil); !errors.Is(err, roles.ErrUsage) || !strings.Contains(err.Error(), "'cnibox agent -help'") || !strings.Contains(err.Error(), strings.Split(args[0], "=")[0]) {
			t.Errorf("%q: %v", args, err)
		}
	}
	if _, err := parseFlags("agent", "v1", []string{"-help"}, nil); !errors.Is(err, flag.ErrHelp) || !strings.Contains(err.Error(), "\n  -iface NAME: ") {
		t.Errorf("-help: %v", err)
	}
	if _, err := parseFlags("agent", "v1.2", []string{"--version"}, nil); !errors.Is(err, flag.ErrHelp) || err.Error() != "v1.2" {
		t.Errorf("-version: %v", err)
	}
}

// FuzzFlags: no command line or environment leads to a panic.
func FuzzFlags(f *testing.F) {
	f.Add("-iface=eth0", "FLANNELD_IFACE=x")
	f.Add("--ip-masq-except=::/0", "FLANNELD_V=")
	f.Fuzz(func(_ *testing.T, arg, env string) {
		_, _ = parseFlags("agent", "v1", strings.Fields(arg), []string{env})
	})
}
