package doctor

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/look"
	"github.com/cnibox/cnibox/roles/see/check"
)

// podFilters are what drops packets of pods, or may.
type podFilters struct {
	// rules are rules of other programs that drop packets of pods. unknown are chains and programs that may drop them, and the
	// commands that show it.
	rules   []podDrop
	unknown map[string]string
	// programs are programs of XDP and filters of tc that drop all packets of pods.
	programs []netops.DeviceFilter
	// limits are queueing disciplines of other programs on the interfaces of pods that drop packets or are slow.
	limits []netops.DeviceFilter
}

// podDrop is a rule of another program that drops all packets from pods, or all answers to pods.
type podDrop struct {
	look.Drop
	to bool
	// links are the host's devices of these packets.
	links []string
}

// podPacket is a question to the rules of other programs: what they do with a packet of a pod.
type podPacket struct {
	look.Packet
	// device is the pod's on the host. probe is the command that asks the kernel about an ordinary connection. Without one every drop counts,
	// because the packet has no address at its other end.
	device, probe string
}

// podFilters returns what the rules of other programs do with packets of the pods to and from the node's uplink: what is
// certain whatever the other address, and what is not known of a connection to an ordinary one.
func (f *Facts) podFilters() *podFilters {
	if f.filters != nil {
		return f.filters
	}
	w := &podFilters{unknown: map[string]string{}}
	f.filters = w
	uplinks := map[bool]netops.Way{}
	for _, is6 := range []bool{false, true} {
		uplinks[is6], _ = f.Host.Way(netops.Packet{To: check.Elsewhere(is6)}) // without a route it is a device that no rule names
	}
	var asked []podPacket
	for _, one := range f.attachments() {
		l := f.link(one.HostLink)
		if l == nil {
			continue // the host does not forward its packets
		}
		for _, p := range one.Addresses {
			a := p.Addr()
			uplink, to := cmp.Or(uplinks[a.Is6()].Link, "?"), cmp.Or(uplinks[a.Is6()].Via, check.Elsewhere(a.Is6()))
			all := packetsOf(l, a, uplink)
			probe := "cnibox path --probe " + one.ContainerID + " " + to.String()
			for i := range all {
				if all[i].Port != 0 {
					all[i].probe = probe
				}
			}
			asked = append(asked, all...)
			for _, link := range []string{l.Name, cmp.Or(l.Master, l.Name), uplink} {
				programs, err := check.Programs(&f.Host.Namespace, link)
				f.unread("packet filter", err)
				w.addPrograms(programs, probe, link == uplink)
			}
		}
	}
	packets := make([]look.Packet, len(asked))
	for i := range asked {
		packets[i] = asked[i].Packet
	}
	verdicts, err := f.Host.Verdicts(packets...)
	f.unread("packet filter", err)
	for i := range verdicts {
		w.addVerdict(&asked[i], &verdicts[i])
	}
	return w
}

// packetsOf returns the packets of an address of a pod that rules may drop. l is the pod's link on the host.
func packetsOf(l *netops.LinkInfo, a netip.Addr, uplink string) (all []podPacket) {
	device, other := cmp.Or(l.Master, l.Name), check.Elsewhere(a.Is6())
	add := func(device string, packets ...look.Packet) {
		for _, p := range packets {
			all = append(all, podPacket{Packet: p, device: device})
		}
	}
	add(device,
		look.Packet{In: device, Out: uplink, From: a}, look.Packet{In: uplink, Out: device, To: a, IsReply: true},
		look.Packet{In: device, Out: uplink, From: a, To: other, Protocol: "tcp", Port: 443},
		look.Packet{In: uplink, Out: device, From: other, To: a, Protocol: "tcp", Port: 443, IsReply: true})
	for _, isARP := range []bool{false, true} {
		if l.Master != "" && (a.Is4() || !isARP) {
			add(l.Name, look.Packet{In: l.Name, From: a, IsFrame: true, IsARP: isARP}, look.Packet{Out: l.Name, To: a, IsFrame: true, IsReply: true, IsARP: isARP})
		}
	}
	if a.Is4() {
		add(device, look.Packet{In: device, From: a, IsLocal: true, IsARP: true}, look.Packet{Out: device, To: a, IsLocal: true, IsReply: true, IsARP: true})
	}
	return all
}

// addPrograms adds what stands on a link of a pod, or on the uplink, whose limits are the administrator's.
func (w *podFilters) addPrograms(p check.DevicePrograms, probe string, isUplink bool) {
	for _, of := range []struct {
		found []netops.DeviceFilter
		into  *[]netops.DeviceFilter
	}{{p.Drop, &w.programs}, {p.Limit, &w.limits}} {
		for _, one := range of.found {
			if !slices.Contains(*of.into, one) && (!isUplink || of.into == &w.programs) {
				*of.into = append(*of.into, one)
			}
		}
	}
	for _, one := range p.Unknown {
		w.unknown[one.Name] = probe
	}
}

// addVerdict adds what the rules do with a packet.
func (w *podFilters) addVerdict(p *podPacket, v *look.Verdict) {
	if p.probe == "" {
		for _, d := range v.Drops {
			w.addDrop(d, p.IsReply, p.device)
		}
		return
	}
	for _, chain := range v.MayDrop {
		if len(v.Drops) == 0 {
			w.unknown[chain] = p.probe
		}
	}
}

// addDrop adds a rule that drops packets of a device.
func (w *podFilters) addDrop(d look.Drop, to bool, device string) {
	i := slices.IndexFunc(w.rules, func(have podDrop) bool { return have.Rule == d.Rule && have.to == to })
	if i < 0 {
		i, w.rules = len(w.rules), append(w.rules, podDrop{Drop: d, to: to})
	}
	if one := &w.rules[i]; !slices.Contains(one.links, device) {
		one.links = append(one.links, device)
	}
}
