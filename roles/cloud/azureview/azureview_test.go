package azureview_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/node"
	"github.com/cnibox/cnibox/roles/cloud/azureview"
	"github.com/cnibox/cnibox/store"
)

var update = flag.Bool("update", false, "write the goldens anew")

func TestMain(m *testing.M) {
	if dir := os.Getenv(writerEnv); dir != "" {
		os.Exit(runWriter(dir))
	}
	netopstest.Main(m)
}

const (
	nicMAC = "00:0d:3a:51:c4:90"
)

var testTime = time.Date(2019, 3, 22, 14, 30, 27, 934886517, time.UTC)

// open is a node whose state and files are below dir, and what it logs.
func open(t testing.TB, dir string) (*roles.Host, *bytes.Buffer) {
	t.Helper()
	log := new(bytes.Buffer)
	h, done, err := node.Open(t.Context(), node.Options{
		RunDir: filepath.Join(dir, "run"), StateDir: filepath.Join(dir, "lib"), CacheDirs: []string{filepath.Join(dir, "none")},
		Role: "azure-vnet", Program: "v1.0.17", Log: slog.New(slog.NewTextHandler(log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(done)
	h.Now = func() time.Time { return testTime }
	return h, log
}

func change(t testing.TB, h *roles.Host, fn func(tx *store.Tx) error) {
	t.Helper()
	if err := h.Store.Update(t.Context(), fn); err != nil {
		t.Fatal(err)
	}
}

// attached is an attachment's record as azure-vnet's ADD leaves it.
func attached(t testing.TB, network, id, address string) *store.Attachment {
	t.Helper()
	p := netip.MustParsePrefix(address)
	raw, err := azureview.Endpoint{
		Mode: "bridge", Master: "eth0", MasterMAC: nicMAC, Bridge: "azure0",
		Own:    []netip.Prefix{netip.MustParsePrefix("10.240.0.35/16")},
		Result: result(address, p.Masked().Addr().Next().String()),
	}.Note()
	if err != nil {
		t.Fatal(err)
	}
	return &store.Attachment{
		Key: store.Key{Network: network, ContainerID: id, IfName: "eth0"}, Pod: "kube-system/dns-" + id[:4],
		Netns: store.Netns{Path: "/proc/5336/ns/net"}, HostLink: "azv5a6822c76a3", MAC: "9e:47:ca:ad:16:c6",
		Addresses: []netip.Prefix{p}, Note: raw, Created: testTime, Updated: testTime,
		Parts: []store.Part{{Role: "azure-vnet", State: store.Done, Time: testTime}},
	}
}

func result(address, gateway string) *roles.Result {
	r := new(roles.Result)
	err := json.Unmarshal(fmt.Appendf(nil, `{"ips":[{"address":%q,"gateway":%q}],"routes":[{"dst":"0.0.0.0/0","gw":%q}],
		"dns":{"nameservers":["168.63.129.16"]}}`, address, gateway, gateway), r)
	if err != nil {
		panic(err)
	}
	return r
}

func lease(network, id, address string) store.Lease {
	return store.Lease{
		Address: netip.MustParseAddr(address), Owner: store.Key{Network: network, ContainerID: id, IfName: "eth0"},
		Time: testTime, Source: "azure http://168.63.129.16", NIC: nicMAC,
	}
}

func source(addresses ...netip.Addr) *store.CloudSource {
	return &store.CloudSource{Name: "azure http://168.63.129.16", Fetched: testTime, Revision: 1, NICs: []store.CloudNIC{{
		MAC: nicMAC, Primary: true, Subnets: []store.CloudSubnet{{
			Prefix: netip.MustParsePrefix("10.240.0.0/16"), Gateway: netip.MustParseAddr("10.240.0.1"),
			Own: []netip.Addr{netip.MustParseAddr("10.240.0.35")}, Addresses: addresses,
		}},
	}}}
}

func reserve(tx *store.Tx, leases ...store.Lease) error {
	var errs []error
	for _, l := range leases {
		dir := store.CloudDataDir
		if l.Source == "" {
			dir = "/var/lib/cni/networks"
		}
		p, err := tx.Pool(store.PoolID{DataDir: dir, Network: l.Owner.Network})
		if err == nil {
			err = p.Reserve(l)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func addrs(texts ...string) []netip.Addr {
	var all []netip.Addr
	for _, s := range texts {
		all = append(all, netip.MustParseAddr(s))
	}
	return all
}

// golden compares a file with one of testdata, but for what differs in each run.
func golden(t *testing.T, h *roles.Host, f azureview.File) {
	t.Helper()
	raw := read(t, h, f)
	var stamp struct {
		Cnibox struct {
			ViewOf, File string
			Number       int
		}
	}
	if err := json.Unmarshal(raw, &stamp); err != nil {
		t.Fatal(err)
	}
	if stamp.Cnibox.ViewOf != h.Store.Path() {
		t.Errorf("%s is of %q, want %q", f, stamp.Cnibox.ViewOf, h.Store.Path())
	}
	got := strings.NewReplacer(
		stamp.Cnibox.ViewOf, "NODE.DB", stamp.Cnibox.File, "CREATED", fmt.Sprintf(`"number": %d`, stamp.Cnibox.Number), `"number": N`,
	).Replace(string(raw))
	path := filepath.Join("testdata", string(f))
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (-want +got):\n%s", f, d)
	}
	indented := new(bytes.Buffer) // as json.MarshalIndent(…, "", "\t") has it, with which azure's are written
	if err := json.Indent(indented, raw, "", "\t"); err != nil || indented.String() != string(raw) {
		t.Errorf("%s is not indented as encoding/json does: %v\n%s", f, err, cmp.Diff(indented.String(), string(raw)))
	}
}

func read(t testing.TB, h *roles.Host, f azureview.File) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(h.Store.RunDir(), string(f)))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// The article's node, with what it has not: a pod whose record was rebuilt, one
// that is still being attached, one of another role, two of the same first eight
// characters, an address that the cloud withdrew, and IPv6.
func TestGolden(t *testing.T) {
	h, log := open(t, t.TempDir())
	rebuilt := attached(t, "azure", "bbbbbbbb-rebuilt", "10.240.0.40/16")
	rebuilt.Note, rebuilt.Parts = nil, []store.Part{{Role: "rebuilt", State: store.Done}}
	pending := attached(t, "azure", "cccccccc-pending", "10.240.0.41/16")
	pending.Parts[0].State = store.Pending
	other := attached(t, "azure", "dddddddd-other", "10.240.0.42/16")
	other.Parts[0].Role, other.HostLink, other.Note = "bridge", "veth0123456789a", nil
	six := attached(t, "azure", "eeeeeeee-six", "fd00:240::7/64")
	plain := attached(t, "azure", "ffffffff-\"plain\"", "10.240.0.43/16")
	plain.Pod, plain.Netns.Path, plain.MAC = "", "", ""
	change(t, h, func(tx *store.Tx) error {
		first := attached(t, "azure", "1bd38ad8d840dd1f84597d4343b3bd11", "10.240.0.94/16")
		first.Pod = "kube-system/addon-http-application-routing-external-dns-74db4f974b-8w4wz"
		errs := []error{tx.PutCloudSource(source(addrs("10.240.0.36", "10.240.0.37", "10.240.0.94")...))}
		for _, a := range []*store.Attachment{
			first, rebuilt, pending, other, six, plain,
			attached(t, "azure", "aaaaaaaa-1", "10.240.0.36/16"), attached(t, "azure", "aaaaaaaa-2", "10.240.0.37/16"),
		} {
			errs = append(errs, tx.PutAttachment(a))
		}
		ours := lease("local", "1", "10.240.0.37")
		ours.Source, ours.NIC = "", ""
		return errors.Join(append(errs, reserve(tx,
			lease("azure", "1bd38ad8d840dd1f84597d4343b3bd11", "10.240.0.94"), lease("azure", "aaaaaaaa-1", "10.240.0.36"),
			lease("azure", "bbbbbbbb-rebuilt", "10.240.0.40"), lease("azure", "eeeeeeee-six", "fd00:240::7"), ours,
		))...)
	})
	for _, f := range []azureview.File{azureview.Network, azureview.Addresses} {
		azureview.Write(t.Context(), h, new(azureview.Conf), f)
		golden(t, h, f)
	}
	if log.Len() > 0 {
		t.Errorf("logged: %s", log)
	}
}

// networkFile and endpointOf are how azure's v1.0.17 reads azure-vnet.json (its
// network/manager.go, network.go, endpoint.go).
type networkFile struct {
	Network struct {
		Version            string
		TimeStamp          time.Time
		ExternalInterfaces map[string]*struct {
			Name     string
			Networks map[string]*struct {
				ID, Mode string
				VlanID   int
				Subnets  []struct {
					Family  int
					Prefix  net.IPNet
					Gateway net.IP
				}
				Endpoints        map[string]*endpointOf
				DNS              dnsOf
				EnableSnatOnHost bool
			}
			Subnets                  []string
			BridgeName               string
			MacAddress               net.HardwareAddr
			IPAddresses              []*net.IPNet
			Routes                   []*struct{ Dst *net.IPNet }
			IPv4Gateway, IPv6Gateway net.IP
			// Of later versions.
			DNSInfo dnsOf
		}
	}
	Cnibox struct {
		File   time.Time
		Number uint64
	}
}

type dnsOf struct {
	Suffix           string
	Servers, Options []string
}

type endpointOf struct {
	ID, SandboxKey, IfName, HostIfName string
	MacAddress                         net.HardwareAddr
	InfraVnetIP                        net.IPNet
	IPAddresses                        []net.IPNet
	Gateways                           []net.IP
	DNS                                dnsOf
	Routes                             []struct {
		Dst             net.IPNet
		Src, Gw         net.IP
		Protocol, Scope int
		DevName         string
		Priority, Table int
	}
	VlanID                                                int
	EnableSnatOnHost, EnableInfraVnet, EnableMultitenancy bool
	NetworkNameSpace, ContainerID, PODName, PODNameSpace  string
	// Of today's.
	LocalIP, NetworkContainerID, NetNs, NICType string
	SecondaryInterfaces                         map[string]json.RawMessage
}

// addressFile is how azure reads azure-vnet-ipam.json.
type addressFile struct {
	IPAM struct {
		Version       string
		TimeStamp     time.Time
		AddressSpaces map[string]*struct {
			ID    string
			Scope int
			Pools map[string]*struct {
				ID, IfName string
				Subnet     net.IPNet
				Gateway    net.IP
				Addresses  map[string]*struct {
					ID    string
					Addr  net.IP
					InUse bool
				}
				IsIPv6             bool
				Priority, RefCount int
			}
		}
	}
}

func decode[T any](t testing.TB, raw []byte) *T {
	t.Helper()
	v := new(T)
	if err := json.Unmarshal(raw, v); err != nil {
		t.Fatalf("%v in:\n%s", err, raw)
	}
	return v
}

// What azure's types read are the very values.
func TestReader(t *testing.T) {
	h, _ := open(t, t.TempDir())
	change(t, h, func(tx *store.Tx) error {
		return errors.Join(tx.PutAttachment(attached(t, "azure", "1bd38ad8d840", "10.240.0.94/16")),
			tx.PutCloudSource(source(addrs("10.240.0.94", "10.240.0.95")...)), reserve(tx, lease("azure", "1bd38ad8d840", "10.240.0.94")))
	})
	azureview.Write(t.Context(), h, new(azureview.Conf), azureview.Network)
	azureview.Write(t.Context(), h, new(azureview.Conf), azureview.Addresses)
	got := decode[networkFile](t, read(t, h, azureview.Network)).Network
	x := got.ExternalInterfaces["eth0"]
	if got.Version != "v1.0.17" || !got.TimeStamp.Equal(testTime) || x.BridgeName != "azure0" || x.MacAddress.String() != nicMAC ||
		!x.IPv4Gateway.Equal(net.IPv4(10, 240, 0, 1)) || x.IPAddresses[0].String() != "10.240.0.35/16" || x.Subnets[0] != "10.240.0.0/16" {
		t.Errorf("read %+v of %+v", x, got)
	}
	n := x.Networks["azure"]
	e := n.Endpoints["1bd38ad8-eth0"]
	if n.Mode != "bridge" || n.Subnets[0].Prefix.String() != "10.240.0.0/16" || n.Subnets[0].Family != 2 || e == nil {
		t.Fatalf("read network %+v", n)
	}
	if e.MacAddress.String() != "9e:47:ca:ad:16:c6" || e.IPAddresses[0].String() != "10.240.0.94/16" || e.PODNameSpace != "kube-system" ||
		e.Routes[0].Dst.String() != "0.0.0.0/0" || !e.Routes[0].Gw.Equal(net.IPv4(10, 240, 0, 1)) || e.DNS.Servers[0] != "168.63.129.16" {
		t.Errorf("read endpoint %+v", e)
	}
	p := decode[addressFile](t, read(t, h, azureview.Addresses)).IPAM.AddressSpaces["local"].Pools["10.240.0.0/16"]
	if p.IfName != "eth0" || p.Priority != 0 || p.RefCount != 1 || len(p.Addresses) != 2 || !p.Addresses["10.240.0.94"].InUse ||
		p.Addresses["10.240.0.94"].ID != "1bd38ad8d840" || p.Addresses["10.240.0.95"].InUse || p.Subnet.String() != "10.240.0.0/16" {
		t.Errorf("read pool %+v", p)
	}
}

// shown is what the files tell: "container address" of each endpoint, and of each
// address in use.
func shown(t testing.TB, h *roles.Host) (endpoints, inUse []string) {
	t.Helper()
	for _, x := range decode[networkFile](t, read(t, h, azureview.Network)).Network.ExternalInterfaces {
		for _, n := range x.Networks {
			for id, e := range n.Endpoints {
				if e.ID != id {
					t.Errorf("endpoint %q is called %q", id, e.ID)
				}
				endpoints = append(endpoints, e.ContainerID+" "+e.IPAddresses[0].String())
			}
		}
	}
	for _, p := range decode[addressFile](t, read(t, h, azureview.Addresses)).IPAM.AddressSpaces["local"].Pools {
		for text, a := range p.Addresses {
			if a.InUse {
				inUse = append(inUse, a.ID+" "+text)
			}
		}
	}
	slices.Sort(endpoints)
	slices.Sort(inUse)
	return endpoints, inUse
}

// stored is what shown must be.
func stored(t testing.TB, h *roles.Host) (endpoints, inUse []string) {
	t.Helper()
	err := h.Store.View(t.Context(), func(tx *store.Tx) error {
		d, err := tx.Export()
		if err != nil {
			return err
		}
		for _, a := range d.Attachments {
			endpoints = append(endpoints, a.ContainerID+" "+a.Addresses[0].String())
		}
		for _, p := range d.Pools {
			for _, l := range p.Leases {
				inUse = append(inUse, l.Owner.ContainerID+" "+l.Address.String())
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(endpoints)
	slices.Sort(inUse)
	return endpoints, inUse
}

func TestRandomChanges(t *testing.T) {
	h, log := open(t, t.TempDir())
	change(t, h, func(tx *store.Tx) error { return tx.PutCloudSource(source(addrs("10.240.0.36", "10.240.3.9")...)) })
	rnd := rand.New(rand.NewPCG(7, 9))
	for range 300 {
		i := rnd.IntN(40)
		id := fmt.Sprintf("%08d-%d", i/3, i) // three with one name in the file
		address := fmt.Sprintf("10.240.%d.%d", i%5, 40+i)
		key := store.Key{Network: fmt.Sprintf("azure%d", i%2), ContainerID: id, IfName: "eth0"}
		change(t, h, func(tx *store.Tx) error {
			if _, err := tx.DeleteLeases(key); err != nil {
				return err
			}
			if rnd.IntN(3) == 0 {
				return tx.DeleteAttachment(key)
			}
			a := attached(t, key.Network, id, address+"/16")
			a.HostLink = fmt.Sprintf("azv%d", rnd.Int32()) // changes while the key stays
			return errors.Join(tx.PutAttachment(a), reserve(tx, lease(key.Network, id, address)))
		})
		azureview.Write(t.Context(), h, new(azureview.Conf), azureview.Network)
		azureview.Write(t.Context(), h, new(azureview.Conf), azureview.Addresses)
		gotEndpoints, gotUse := shown(t, h)
		wantEndpoints, wantUse := stored(t, h)
		if !reflect.DeepEqual(gotEndpoints, wantEndpoints) || !reflect.DeepEqual(gotUse, wantUse) {
			t.Fatalf("endpoints %q, want %q; in use %q, want %q", gotEndpoints, wantEndpoints, gotUse, wantUse)
		}
	}
	if log.Len() > 0 {
		t.Errorf("logged: %s", log)
	}
}

// BenchmarkWrite writes azure-vnet.json after one of 250 endpoints changed.
func BenchmarkWrite(b *testing.B) {
	dir, err := os.MkdirTemp("/dev/shm", "azureview")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	h, _ := open(b, dir)
	changes := json.RawMessage(`["` + strings.Repeat("x", 2500) + `"]`)
	put := func(i int, link string) {
		a := attached(b, "azure", fmt.Sprintf("%08d%056d", i, i), fmt.Sprintf("10.240.0.%d/16", i%250+1))
		a.HostLink, a.Parts[0].Changes = link, changes
		change(b, h, func(tx *store.Tx) error { return tx.PutAttachment(a) })
	}
	var all []netip.Addr
	for i := range 250 {
		put(i, "azv")
		all = append(all, netip.AddrFrom4([4]byte{10, 240, 1, byte(i + 1)}))
		change(b, h, func(tx *store.Tx) error { return reserve(tx, lease("azure", fmt.Sprint(i), all[i].String())) })
	}
	change(b, h, func(tx *store.Tx) error { return tx.PutCloudSource(source(all...)) })
	for _, f := range []azureview.File{azureview.Network, azureview.Addresses} {
		b.Run(string(f), func(b *testing.B) {
			azureview.Write(b.Context(), h, new(azureview.Conf), f)
			var took []time.Duration // StopTimer costs more than what is measured
			for b.Loop() {
				put(len(took)%250, fmt.Sprintf("azv%d", len(took)))
				start := time.Now()
				azureview.Write(b.Context(), h, new(azureview.Conf), f)
				took = append(took, time.Since(start))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
			b.ReportMetric(0, "ns/op")
		})
	}
}
