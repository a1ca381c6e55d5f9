package cloudsim

import (
	"fmt"
	"net/http"
	"strings"
)

const hetznerName = "hetzner"

// hetzner writes YAML. Its private networks are IPv4 and have alias addresses for pods.
func hetzner() *provider {
	return &provider{name: hetznerName, at: []string{"169.254.169.254:80"}, below: []string{"/hetzner/v1/metadata"}, serve: serveHetzner}
}

func serveHetzner(q *query) reply {
	if q.Method != http.MethodGet {
		return page(http.StatusMethodNotAllowed)
	}
	private := hetznerPrivate(q.view)
	switch strings.TrimSuffix(q.path, "/") {
	case "/hetzner/v1/metadata":
		return answer(http.StatusOK, typeYAML, hetznerPublic+"private-networks:"+below(private))
	case "/hetzner/v1/metadata/private-networks":
		if private == "" {
			return answer(http.StatusOK, typeYAML, "[]\n")
		}
		return answer(http.StatusOK, typeYAML, private)
	case "/hetzner/v1/metadata/public-ipv4":
		return answer(http.StatusOK, typeText, "198.51.100.10")
	case "/hetzner/v1/metadata/instance-id":
		return answer(http.StatusOK, typeText, "4711")
	}
	return page(http.StatusNotFound)
}

// hetznerPublic is the public interface, with one address: the model's interfaces are those of private networks.
const hetznerPublic = `availability-zone: fsn1-dc14
hostname: node-0
instance-id: 4711
local-ipv4: ''
network-config:
  config:
  - mac_address: 96:00:00:00:00:01
    name: eth0
    subnets:
    - dns_nameservers:
      - 185.12.64.1
      - 185.12.64.2
      ipv4: true
      type: dhcp
    type: physical
  version: 1
public-ipv4: 198.51.100.10
region: eu-central
`

func below(list string) string {
	if list == "" {
		return " []\n"
	}
	return "\n" + list
}

func hetznerPrivate(v *view) string {
	var b strings.Builder
	for i := range v.nics {
		n := &v.nics[i]
		s := subnet(n, false)
		if s == nil {
			continue
		}
		network := s.Prefix.String()
		if all := ofFamily(n.Network, false); len(all) > 0 {
			network = all[0].String()
		}
		own := first(s.Own)
		fmt.Fprintf(&b, "- ip: %s\n  alias_ips: [%s]\n", yamlText(own), strings.Join(texts(s.Addresses), ", "))
		fmt.Fprintf(&b, "  interface_num: %d\n  mac_address: %s\n", n.Device+1, yamlText(v.write(n, macColons)))
		fmt.Fprintf(&b, "  network_id: %d\n  network_name: net-%d\n  network: %s\n  subnet: %s\n  gateway: %s\n",
			4124728+i, i, network, s.Prefix, gateway(s))
	}
	return b.String()
}

// yamlText quotes texts that YAML would not read as a text: the empty one, and "*".
func yamlText(s string) string {
	if s == "" || strings.HasPrefix(s, anyMAC) {
		return "'" + s + "'"
	}
	return s
}
