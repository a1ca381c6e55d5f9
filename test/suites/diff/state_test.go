package diff

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// dump is the output of iproute2 for one namespace.
type dump struct {
	container            string // "" for the host
	links, routes, rules []map[string]any
	neighbours           []map[string]any
}

// prefix returns the first word of the names of the namespace's facts.
func (d *dump) prefix() string {
	if d.container == "" {
		return "host"
	}
	return d.container
}

// state adds the state of the host and the containers.
func (h *host) state(f facts, when string, containers []string) error {
	dumps := make([]*dump, 0, 1+len(containers))
	for _, c := range append([]string{""}, containers...) {
		if c != "" {
			if _, err := os.Stat(netns(c)); err != nil {
				continue // a step removed it
			}
		}
		d, err := h.dump(c)
		if err != nil {
			return err
		}
		dumps = append(dumps, d)
	}
	h.learn(dumps)
	for _, d := range dumps {
		d.facts(f, when+": "+d.prefix()+" ")
		if err := errors.Join(h.sysctls(f, when, d), h.qdiscs(f, when+": "+d.prefix()+" ", d.container)); err != nil {
			return err
		}
	}
	if err := h.vlans(f, when+": host "); err != nil {
		return err
	}
	return h.ruleset(f, when+": host ")
}

func (h *host) dump(container string) (*dump, error) {
	d := &dump{container: container}
	for _, batch := range []struct {
		family string
		ask    string
		to     []*[]map[string]any
	}{
		{"-family inet", "route show table all\nrule show\n", []*[]map[string]any{&d.routes, &d.rules}},
		{"-family inet6", "route show table all\nrule show\n", []*[]map[string]any{&d.routes, &d.rules}},
		{"", "addr show\nneigh show nud permanent\n", []*[]map[string]any{&d.links, &d.neighbours}},
	} {
		args := append([]string{"ip", "-json", "-details"}, strings.Fields(batch.family)...)
		if container != "" {
			args = append(args, "-netns", container)
		}
		text, err := h.feed(batch.ask, append(args, "-batch", "-")...)
		if err != nil {
			return nil, err
		}
		answers := json.NewDecoder(strings.NewReader(text))
		for _, to := range batch.to {
			var rows []map[string]any
			if err := answers.Decode(&rows); err != nil {
				return nil, fmt.Errorf("decode the answers to %q: %w", batch.ask, err)
			}
			*to = append(*to, rows...)
		}
	}
	return d, nil
}

// facts adds the namespace's objects.
func (d *dump) facts(f facts, prefix string) {
	for _, l := range d.links {
		name := text(l["ifname"])
		addresses, _ := l["addr_info"].([]any)
		delete(l, "addr_info")
		f.object(prefix+"link "+name, l, transient)
		for _, a := range addresses {
			d.address(f, prefix+"addr "+name+" ", a)
		}
	}
	for _, r := range d.routes {
		dst, dev := text(r["dst"]), text(r["dev"])
		if text(r["table"]) == "local" || strings.HasPrefix(dst, "fe80::") || strings.HasPrefix(dst, "ff00::") {
			continue // the kernel's own
		}
		key := fmt.Sprintf("%sroute %s", prefix, dst)
		for _, part := range []string{"gateway", "metric"} {
			if v, ok := r[part]; ok {
				key += fmt.Sprintf(" %s %v", part, v)
			}
		}
		if dev != "" {
			key += " dev " + dev
		}
		f.object(key, r, func(k string) bool { return slices.Contains([]string{"dst", "dev", "gateway", "metric"}, k) })
	}
	for _, r := range d.rules {
		f.object(fmt.Sprintf("%srule %v", prefix, r["priority"]), r, nil)
	}
	for _, n := range d.neighbours {
		f.object(fmt.Sprintf("%sneighbour %s dev %s", prefix, text(n["dst"]), text(n["dev"])), n, nil)
	}
}

// address adds one address. Link-local addresses are left out, since they appear with the carrier at any time. On the host an
// address may still be tentative; in a container it may not.
func (d *dump) address(f facts, prefix string, v any) {
	a, _ := v.(map[string]any)
	if text(a["scope"]) == "link" && text(a["family"]) == "inet6" {
		return
	}
	f.object(fmt.Sprintf("%s%s/%v", prefix, text(a["local"]), a["prefixlen"]), a, func(k string) bool {
		return d.container == "" && k == "tentative"
	})
}

// transient reports which keys of a link are left out: numbers that the kernel assigns, the carrier's state, and a bridge's timers
// and IDs, which contain MACs that other facts have.
func transient(key string) bool {
	return slices.Contains([]string{
		"ifname", "ifindex", "link_index", "link_netnsid", "operstate", "topology_change_ack", "config_pending", "root_id", "root_port", "root_path_cost",
		"bridge_id", "designated_port", "designated_cost", "id", "no", "state", "topology_change", "topology_change_detected",
	}, key) || strings.HasSuffix(key, "_timer")
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

// learn names what was chosen at random: the host ends of pairs and all MACs that were not requested.
func (h *host) learn(dumps []*dump) {
	random := regexp.MustCompile(`^veth[0-9a-f]{8,11}$`)
	ends := map[string]string{}
	for _, d := range dumps[1:] {
		for _, l := range d.links {
			if kind(l) == "veth" && l["link_index"] != nil {
				ends[fmt.Sprint(l["link_index"])] = d.container + "/" + text(l["ifname"])
			}
		}
	}
	for _, l := range dumps[0].links {
		if name := text(l["ifname"]); random.MatchString(name) {
			end := text(l["link"])
			if end == "" {
				end = ends[fmt.Sprint(l["ifindex"])]
			}
			h.call(name, "veth("+end+")")
		}
	}
	for _, d := range dumps[1:] {
		for _, l := range d.links {
			if name := text(l["ifname"]); random.MatchString(name) {
				h.call(name, "temporary")
			}
		}
	}
	for _, d := range append(slices.Clone(dumps[1:]), dumps[0]) {
		for _, l := range d.links {
			if mac := text(l["address"]); len(mac) == len("02:00:00:00:00:01") && !strings.HasSuffix(mac, ":00:00:00:00:00") {
				h.call(mac, fmt.Sprintf("MAC(%s %s)", d.prefix(), strings.NewReplacer(h.names...).Replace(text(l["ifname"]))))
			}
		}
	}
}

// call gives a random word a name. The first name stays.
func (h *host) call(word, name string) {
	if strings.Contains(h.given, word) {
		return
	}
	for i := 0; i < len(h.names); i += 2 {
		if h.names[i] == word {
			return
		}
	}
	h.names = append(h.names, word, name)
}

func kind(link map[string]any) string {
	info, _ := link["linkinfo"].(map[string]any)
	return text(info["info_kind"])
}

// sysctls adds all settings of every interface, and forwarding.
func (h *host) sysctls(f facts, when string, d *dump) error {
	return h.in(d.container, func() error {
		files := []string{"/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv4/ip_unprivileged_port_start", "/proc/sys/net/core/somaxconn"}
		for _, pattern := range []string{"/proc/sys/net/ipv4/conf/*/*", "/proc/sys/net/ipv6/conf/*/*"} {
			found, err := filepath.Glob(pattern)
			if err != nil {
				return err
			}
			files = append(files, found...)
		}
		for _, file := range files {
			value, err := os.ReadFile(file)
			if err != nil {
				continue // some are for writing only, or have no value
			}
			f.add(fmt.Sprintf("%s: %s sysctl %s", when, d.prefix(), strings.TrimPrefix(file, "/proc/sys/net/")), strings.TrimSpace(string(value)))
		}
		return nil
	})
}

// qdiscs adds queueing disciplines except those that the kernel chooses itself.
func (h *host) qdiscs(f facts, prefix, container string) error {
	if !h.shaped {
		return nil
	}
	ask := []string{"tc", "-json", "qdisc", "show"}
	if container != "" {
		ask = []string{"tc", "-netns", container, "-json", "qdisc", "show"}
	}
	out, err := h.run(ask...)
	if err != nil {
		return err
	}
	var list []map[string]any
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return fmt.Errorf("decode queueing disciplines: %w", err)
	}
	for _, q := range list {
		kind := text(q["kind"])
		if slices.Contains([]string{"noqueue", "pfifo_fast", "mq", "fq_codel", "fq"}, kind) {
			continue
		}
		f.object(fmt.Sprintf("%sqdisc %s on %s", prefix, kind, text(q["dev"])), q, func(k string) bool {
			return slices.Contains([]string{"kind", "dev", "handle", "refcnt"}, k)
		})
	}
	return nil
}

// vlans adds the VLANs of bridges and their ports.
func (h *host) vlans(f facts, prefix string) error {
	text, err := h.run("bridge", "-j", "vlan", "show")
	if err != nil {
		return err
	}
	var ports []struct {
		IfName string
		VLANs  []struct {
			VLAN, VLANEnd int
			Flags         []string
		}
	}
	if err := json.Unmarshal([]byte(text), &ports); err != nil {
		return fmt.Errorf("decode VLANs: %w", err)
	}
	for _, p := range ports {
		for _, v := range p.VLANs {
			for id := v.VLAN; id <= max(v.VLAN, v.VLANEnd); id++ {
				f.add(fmt.Sprintf("%svlan %d of %s", prefix, id, p.IfName), strings.Join(v.Flags, " "))
			}
		}
	}
	return nil
}

// ruleset adds how many rules and elements each nftables table has, including those of iptables.
func (h *host) ruleset(f facts, prefix string) error {
	text, err := h.run("nft", "-j", "list", "ruleset")
	if err != nil {
		return err
	}
	var all struct {
		NFTables []map[string]struct {
			Family, Name, Table string
			Elem                []any
		}
	}
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return fmt.Errorf("decode ruleset: %w", err)
	}
	tables := map[string][2]int{}
	for _, o := range all.NFTables {
		for what, v := range o {
			key := v.Family + " " + v.Table
			n := tables[key]
			switch what {
			case "table":
				key = v.Family + " " + v.Name
				n = tables[key]
			case "rule":
				n[0]++
			case "set", "map":
				n[1] += len(v.Elem)
			default:
				continue
			}
			tables[key] = n
		}
	}
	for key, n := range tables {
		f.add(prefix+"nftables "+key, fmt.Sprintf("%d rules, %d elements", n[0], n[1]))
	}
	return nil
}

// leases adds the addresses in use, from each side's own records.
func (h *host) leases(f facts, when string) error {
	if h.cnibox == "" {
		files, err := filepath.Glob("/var/lib/cni/networks/*/*")
		if err != nil {
			return err
		}
		for _, file := range files {
			if _, err := netip.ParseAddr(filepath.Base(file)); err != nil {
				continue
			}
			owner, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			f.add(when+": lease "+filepath.Base(file), strings.Join(strings.Fields(string(owner)), " "))
		}
		return nil
	}
	text, err := h.run(h.cnibox, "state", "--json")
	if err != nil {
		return err
	}
	var s struct {
		Leases []struct {
			Address netip.Addr
			Owner   struct{ ContainerID, IfName string }
		}
	}
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return fmt.Errorf("decode state: %w", err)
	}
	for _, l := range s.Leases {
		f.add(when+": lease "+l.Address.String(), l.Owner.ContainerID+" "+l.Owner.IfName)
	}
	return nil
}
