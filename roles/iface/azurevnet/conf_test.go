package azurevnet

import (
	"testing"

	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestValidate: all errors are reported at once, each with its path.
func TestValidate(t *testing.T) {
	rolestest.CheckFaults(t, Role(), []rolestest.FaultyConf{
		{Name: "the article's", Conf: `{"cniVersion":"0.3.0","name":"azure","type":"azure-vnet","mode":"bridge","bridge":"azure0","ipam":{"type":"azure-vnet-ipam"}}`},
		{Name: "no mode is tunnel", Conf: `{"ipam":{"type":"azure-vnet-ipam"}}`},
		{Name: "every key that has no effect", Conf: `{"adapterName":"x","logLevel":"debug","logTarget":"file","executionMode":"default","enableSnatOnHost":true,
			"enableExactMatchForPodName":true,"infraVnetAddressSpace":"10.0.0.0/8","podNamespaceForDualNetwork":["kube-system"],"cnsurl":"http://localhost:10090",
			"ipv6Mode":"ipv6nat","serviceCidrs":"10.0.0.0/16","vnetCidrs":"10.240.0.0/16","disableIPTableLock":true,"disableAsyncDelete":true,
			"windowsSettings":{"enableLoopbackDSR":true},"AdditionalArgs":[{"name":"EndpointPolicy","value":{}}],"env":"test","ipam":{"type":"azure-vnet-ipam"}}`},
		{Name: "all good", Conf: `{"mode":"tunnel","master":"eth0","bridge":"azure0","mtu":1400,"ipsToRouteViaHost":["169.254.20.10"],"disableHairpinOnHostInterface":true,
			"runtimeConfig":{"dns":{"servers":["10.0.0.10"],"searches":["svc.cluster.local"]}},"ipam":{"type":"azure-vnet-ipam"}}`},
		{Name: "a VLAN", Conf: `{"mode":"transparent-vlan","master":"eth0","vlanId":4094,"ipam":{"type":"azure-vnet-ipam"}}`},
		{Name: "tenants", Conf: `{"mode":"transparent-vlan","multiTenancy":true,"ipam":{"type":"azure-vnet-ipam"}}`, Paths: []string{"vlanId", "multiTenancy"}},
		{Name: "no such VLAN", Conf: `{"mode":"transparent-vlan","vlanId":4095,"ipam":{"type":"azure-vnet-ipam"}}`, Paths: []string{"vlanId"}},
		{Name: "less than none", Conf: `{"mode":"bridge","vlanId":-1,"ipam":{"type":"azure-vnet-ipam"}}`, Paths: []string{"vlanId"}},
		{Name: "a VLAN in a mode without", Conf: `{"mode":"transparent","vlanId":7,"ipam":{"type":"azure-vnet-ipam"}}`, Paths: []string{"vlanId"}},
		{Name: "empty", Conf: `{}`, Paths: []string{"ipam.type"}},
		{Name: "Windows' mode", Conf: `{"mode":"l2bridge","ipam":{"type":"azure-vnet-ipam"}}`, Paths: []string{"mode"}},
		{Name: "a mode and addresses of Azure only", Conf: `{"mode":"transparent-tunnel","ipam":{"type":"azure-cns"}}`, Paths: []string{"mode", "ipam.type"}},
		{Name: "tenants without CNS", Conf: `{"mode":"bridge","multiTenancy":true,"ipam":{"type":"azure-vnet-ipam"}}`, Paths: []string{"multiTenancy"}},
		{Name: "one link for two", Conf: `{"mode":"bridge","master":"eth0","bridge":"eth0","ipam":{"type":"azure-vnet-ipam"}}`, Paths: []string{"bridge"}},
		{
			Name: "several at once", Conf: `{"mode":"l2","master":"a/b","bridge":"way too long a name","mtu":-1,"ipsToRouteViaHost":["::1","x","224.0.0.1"]}`,
			Paths: []string{"mode", "master", "bridge", "mtu", "ipam.type", "ipsToRouteViaHost[0]", "ipsToRouteViaHost[1]", "ipsToRouteViaHost[2]"},
		},
		{Name: "wrong type", Conf: `{"mode":7}`, Paths: []string{"mode", "ipam.type"}},
		{Name: "state files", Conf: `{"stateFiles":false,"stateDir":"run","ipam":{"type":"azure-vnet-ipam"}}`, Paths: []string{"stateDir"}},
	})
}

// FuzzConf: reading and validating any configuration does not panic.
func FuzzConf(f *testing.F) {
	f.Add([]byte(`{"mode":"bridge","bridge":"azure0","ipsToRouteViaHost":["169.254.20.10"],"ipam":{"type":"azure-vnet-ipam"}}`))
	f.Add([]byte(`{"runtimeConfig":{"dns":{"servers":["1.2.3.4"]}},"windowsSettings":[]}`))
	f.Fuzz(func(_ *testing.T, conf []byte) {
		_, _ = Role().New(conf)
		_, _ = Role().Undo(conf)
	})
}
