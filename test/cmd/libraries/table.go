package main

import (
	"slices"
	"strings"
)

// library is something that the program could be linked with, or is.
type library struct {
	name string
	// module is its module and version, or "" if go.mod has it or it is Go's.
	module  string
	imports []string
	// uses are statements that use what we would.
	uses string
	// linked is a build tag that leaves out a part that the program has, and dropped one of the program's that leaves out what it could have.
	linked, dropped string
}

// tagged returns the build tags of the copy.
func (l *library) tagged(tags string) string {
	all := slices.DeleteFunc(strings.Split(tags, ","), func(tag string) bool { return tag == l.dropped })
	if l.linked != "" {
		all = append(all, l.linked)
	}
	return strings.Join(all, ",")
}

func libraries() []library {
	return []library{
		{name: "HTTP/2 of net/http", linked: "nethttpomithttp2"},
		{
			name: "encoding/gob", imports: []string{"encoding/gob"},
			uses: `_ = gob.NewDecoder(os.Stdin).Decode(new(map[string]string)); _ = gob.NewEncoder(os.Stdout).Encode(map[string]string{})`,
		},
		{name: "net/rpc, with encoding/gob", imports: []string{"net/rpc"}, uses: `c := rpc.NewClient(os.Stdin); _ = c.Call("a", 1, new(int))`},
		{name: "encoding/xml", imports: []string{"encoding/xml"}, uses: `_ = xml.NewDecoder(os.Stdin).Decode(new(struct{ A string }))`},
		{name: "debug/buildinfo", imports: []string{"debug/buildinfo"}, uses: `_, _ = buildinfo.ReadFile("a")`},
		{name: "text/template", imports: []string{"text/template"}, uses: `_ = template.Must(template.New("").Parse("{{.}}")).Execute(os.Stdout, 1)`},
		{
			name: "github.com/godbus/dbus", imports: []string{"github.com/godbus/dbus/v5"},
			uses: `c, _ := dbus.ConnectSystemBus(); _ = c.Object("a", "b").Call("c", 0).Store(new(string))`,
		},
		{
			name: "github.com/google/nftables", imports: []string{"github.com/google/nftables", "github.com/google/nftables/expr"},
			uses: `c, _ := nftables.New(); _, _ = c.GetRules(nil, nil); c.AddRule(&nftables.Rule{Exprs: []expr.Any{&expr.Meta{}}}); _ = c.SetAddElements(nil, nil); _ = c.Flush()`,
		},
		{
			name: "github.com/vishvananda/netlink", imports: []string{"github.com/vishvananda/netlink"},
			uses: `_, _ = netlink.LinkList(); _ = netlink.LinkAdd(&netlink.Veth{}); _, _ = netlink.RouteList(nil, 0); _ = netlink.RouteAdd(nil); _ = netlink.AddrAdd(nil, nil)`,
		},
		{
			name: "golang.zx2c4.com/wireguard/wgctrl", module: "golang.zx2c4.com/wireguard/wgctrl@latest",
			imports: []string{"golang.zx2c4.com/wireguard/wgctrl", "golang.zx2c4.com/wireguard/wgctrl/wgtypes"},
			uses:    `c, _ := wgctrl.New(); _, _ = c.Devices(); _ = c.ConfigureDevice("a", wgtypes.Config{})`,
		},
		{
			name: "go.yaml.in/yaml/v4", module: "go.yaml.in/yaml/v4@latest", imports: []string{"go.yaml.in/yaml/v4"},
			uses: `_ = yaml.Unmarshal(nil, new(yaml.Node))`,
		},
		{
			name: "github.com/VictoriaMetrics/metrics", module: "github.com/VictoriaMetrics/metrics@latest",
			imports: []string{"github.com/VictoriaMetrics/metrics"}, uses: `metrics.GetOrCreateCounter("a").Inc(); metrics.WritePrometheus(os.Stdout, true)`,
		},
		{
			name: "github.com/prometheus/client_golang", module: "github.com/prometheus/client_golang@latest",
			imports: []string{"net/http", "github.com/prometheus/client_golang/prometheus/promhttp"}, uses: `http.Handle("/", promhttp.Handler())`,
		},
		{
			name: "github.com/gopacket/gopacket", module: "github.com/gopacket/gopacket@latest",
			imports: []string{"github.com/gopacket/gopacket", "github.com/gopacket/gopacket/layers"},
			uses:    `_ = gopacket.NewPacket(nil, layers.LayerTypeEthernet, gopacket.Default)`,
		},
		{
			name: "google.golang.org/grpc", module: "google.golang.org/grpc@latest", imports: []string{"google.golang.org/grpc"},
			uses: `c, _ := grpc.NewClient("unix:a"); c.Connect()`,
		},
		{name: "urfave/cli's documentation", dropped: "urfave_cli_no_docs"},
	}
}
