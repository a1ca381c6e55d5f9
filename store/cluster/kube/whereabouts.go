package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
)

// takenRange is in place of the range of a pool that cnibox has. whereabouts, which reads the range before it
// changes the pool, then refuses ADD and names this text. It also changes a pool only in the version that it has read.
const takenRange = "taken over by cnibox"

// Annotations of a pool that cnibox has: its range, and that it is being returned to whereabouts.
const (
	rangeAnnotation   = "cnibox.io/range"
	returnsAnnotation = "cnibox.io/range-returns"
)

// IPPool is whereabouts' record of the addresses of one range that containers have
// (whereabouts.cni.cncf.io/v1alpha1).
type IPPool struct {
	rest.Object
	Spec struct {
		Range string `json:"range"`
		// Allocations have as keys the distances of addresses from the first address of the range.
		Allocations map[string]IPAllocation `json:"allocations"`
	} `json:"spec"`
}

// IPAllocation is the container that has an address.
type IPAllocation struct {
	ContainerID string `json:"id"`
	// PodRef is NAMESPACE/NAME.
	PodRef string `json:"podref"`
	IfName string `json:"ifname,omitempty"`
}

// Taken reports whether cnibox has the pool, so that whereabouts does not change it.
func (p *IPPool) Taken() bool { return p.Spec.Range == takenRange }

// Returning reports whether the pool is being returned to whereabouts.
func (p *IPPool) Returning() bool {
	return p.Taken() && p.Metadata.Annotations[returnsAnnotation] != ""
}

// Moved reports whether cnibox has the pool with all of its addresses, and is not returning it.
func (p *IPPool) Moved() bool { return p.Taken() && !p.Returning() && len(p.Spec.Allocations) == 0 }

// Name returns "IPPool NAMESPACE/NAME".
func (p *IPPool) Name() string {
	return fmt.Sprintf("IPPool %s/%s", p.Metadata.Namespace, p.Metadata.Name)
}

// rangeText returns the range as whereabouts wrote it.
func (p *IPPool) rangeText() string {
	if p.Taken() {
		return p.Metadata.Annotations[rangeAnnotation]
	}
	return p.Spec.Range
}

// Range returns the pool's range. Its address is the first one of the range. The range is parsed as whereabouts does, so
// whereabouts refuses to use a pool with an error.
func (p *IPPool) Range() (netip.Prefix, error) {
	var of netip.Prefix
	first, network, err := net.ParseCIDR(p.rangeText())
	if err == nil {
		a, _ := netip.AddrFromSlice(first)
		masked, _ := netip.ParsePrefix(network.String())
		of = netip.PrefixFrom(a.Unmap(), masked.Bits())
	}
	if !of.IsValid() {
		return of, fmt.Errorf("%s: %w: its range is %.80q: correct it, or delete the pool", p.Name(), cluster.ErrInvalid, p.rangeText())
	}
	return of, nil
}

// namedRanges returns the ranges that the pool may be of according to its name. The text of an IPv6 range is not
// certain in a name, because "-" is in place of ":", and a network's name may precede it.
func (p *IPPool) namedRanges() (all []netip.Prefix) {
	parts := strings.Split(p.Metadata.Name, "-")
	last := len(parts) - 1
	for i := range last {
		if of, err := netip.ParsePrefix(strings.Join(parts[i:last], ":") + "/" + parts[last]); err == nil {
			all = append(all, of)
		}
	}
	return all
}

// NetworkName returns the key network_name of the networks that use the pool, or "".
func (p *IPPool) NetworkName() (string, error) {
	of := objectName(strings.ReplaceAll(p.rangeText(), "/", "-"), "")
	if p.Metadata.Name == of {
		return "", nil
	}
	name, ok := strings.CutSuffix(p.Metadata.Name, "-"+of)
	if !ok {
		return "", fmt.Errorf("%s: %w: the name of a pool of %s ends with %s", p.Name(), cluster.ErrInvalid, p.rangeText(), of)
	}
	return name, nil
}

// objectName returns the name of whereabouts' object for an address, or a range with "-" for "/".
func objectName(address, networkName string) string {
	if strings.HasSuffix(address, ":") {
		address += "0"
	}
	name := strings.ReplaceAll(address, ":", "-")
	if networkName != "" {
		name = networkName + "-" + name
	}
	return name
}

// Whereabouts has the objects of whereabouts.
type Whereabouts struct{ client *rest.Client }

// NewWhereabouts returns the objects of whereabouts in the client's cluster.
func NewWhereabouts(c *rest.Client) *Whereabouts { return &Whereabouts{c} }

func (*Whereabouts) path(parts ...string) string {
	return rest.Path(append([]string{"apis", "whereabouts.cni.cncf.io", "v1alpha1"}, parts...)...)
}

// list returns all objects of a kind. A kind that the cluster does not have has no objects.
func (w *Whereabouts) list(ctx context.Context, plural string) (all []*IPPool, err error) {
	_, err = rest.List(ctx, w.client, w.path(plural), func(p *IPPool) { all = append(all, p) })
	if err != nil && !errors.Is(err, rest.ErrNotFound) {
		return nil, fmt.Errorf("list %s of whereabouts: %w", plural, err)
	}
	return all, nil
}

// Pools returns all pools. It needs the verb list on ippools.
func (w *Whereabouts) Pools(ctx context.Context) ([]*IPPool, error) { return w.list(ctx, "ippools") }

// HasNodeSlices reports whether whereabouts divides ranges among nodes. Such pools have other names.
func (w *Whereabouts) HasNodeSlices(ctx context.Context) (bool, error) {
	all, err := w.list(ctx, "nodeslicepools") // only their number is used
	return len(all) > 0, err
}

// Reservations returns NAMESPACE/NAME of all OverlappingRangeIPReservations.
func (w *Whereabouts) Reservations(ctx context.Context) (map[string]bool, error) {
	all, err := w.list(ctx, reservations) // only their names are used
	names := map[string]bool{}
	for _, o := range all {
		names[o.Metadata.Namespace+"/"+o.Metadata.Name] = true
	}
	return names, err
}

const reservations = "overlappingrangeipreservations"

// ReservationName returns the name of the object by which whereabouts knows that an address of networks with
// enable_overlapping_ranges is in use.
func ReservationName(a netip.Addr, networkName string) string {
	return objectName(a.String(), networkName)
}

// Reserve makes the OverlappingRangeIPReservation of an address, or gives it to another container.
func (w *Whereabouts) Reserve(ctx context.Context, namespace, name string, of IPAllocation) error {
	var object struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   struct {
			Name string `json:"name"`
		} `json:"metadata"`
		Spec struct {
			PodRef string `json:"podref"`
			IfName string `json:"ifname"`
		} `json:"spec"`
	}
	object.APIVersion, object.Kind, object.Metadata.Name = "whereabouts.cni.cncf.io/v1alpha1", "OverlappingRangeIPReservation", name
	object.Spec.PodRef, object.Spec.IfName = of.PodRef, of.IfName
	err := w.client.Create(ctx, w.path("namespaces", namespace, reservations), &object, nil)
	if errors.Is(err, rest.ErrConflict) {
		err = w.client.Patch(ctx, w.path("namespaces", namespace, reservations, name), rest.MergePatch, &object, nil)
	}
	if err != nil {
		return fmt.Errorf("write OverlappingRangeIPReservation %s/%s: %w", namespace, name, err)
	}
	return nil
}

// Unreserve deletes an OverlappingRangeIPReservation. An absent object is not an error.
func (w *Whereabouts) Unreserve(ctx context.Context, namespace, name string) error {
	err := w.client.Delete(ctx, w.path("namespaces", namespace, reservations, name))
	if err != nil && !errors.Is(err, rest.ErrNotFound) {
		return fmt.Errorf("delete OverlappingRangeIPReservation %s/%s: %w", namespace, name, err)
	}
	return nil
}

// Take makes whereabouts refuse ADD with a pool. The pool keeps its allocations.
func (w *Whereabouts) Take(ctx context.Context, p *IPPool) error {
	return w.patch(ctx, p, takenRange, map[string]*string{rangeAnnotation: &p.Spec.Range}, nil)
}

// Empty removes the allocations of a pool that cnibox has.
func (w *Whereabouts) Empty(ctx context.Context, p *IPPool) error {
	gone := map[string]*IPAllocation{}
	for offset := range p.Spec.Allocations {
		gone[offset] = nil
	}
	return w.patch(ctx, p, takenRange, nil, gone)
}

// BeginReturn marks a pool that is being returned to whereabouts.
func (w *Whereabouts) BeginReturn(ctx context.Context, p *IPPool) error {
	yes := "true"
	return w.patch(ctx, p, takenRange, map[string]*string{returnsAnnotation: &yes}, nil)
}

// Return returns a pool to whereabouts with the allocations that are added to it.
func (w *Whereabouts) Return(ctx context.Context, p *IPPool, add map[string]*IPAllocation) error {
	return w.patch(ctx, p, p.rangeText(), map[string]*string{rangeAnnotation: nil, returnsAnnotation: nil}, add)
}

// patch changes a pool. If it has changed since it was read, the error is rest.ErrConflict.
func (w *Whereabouts) patch(ctx context.Context, p *IPPool, text string, annotations map[string]*string, allocations map[string]*IPAllocation) error {
	var patch struct {
		Metadata struct {
			ResourceVersion string             `json:"resourceVersion"`
			Annotations     map[string]*string `json:"annotations,omitempty"`
		} `json:"metadata"`
		Spec struct {
			Range       string                   `json:"range"`
			Allocations map[string]*IPAllocation `json:"allocations,omitempty"`
		} `json:"spec"`
	}
	patch.Metadata.ResourceVersion, patch.Metadata.Annotations = p.Metadata.ResourceVersion, annotations
	patch.Spec.Range, patch.Spec.Allocations = text, allocations
	now := &IPPool{}
	if err := w.client.Patch(ctx, w.path("namespaces", p.Metadata.Namespace, "ippools", p.Metadata.Name), rest.MergePatch, &patch, now); err != nil {
		return fmt.Errorf("change %s: %w", p.Name(), err)
	}
	*p = *now
	return nil
}

// PodNode returns the node of the pod NAMESPACE/NAME, or "" if the pod does not exist.
func (w *Whereabouts) PodNode(ctx context.Context, pod string) (string, error) {
	namespace, name, _ := strings.Cut(pod, "/")
	if cluster.CheckName(namespace) != nil || cluster.CheckName(name) != nil {
		return "", nil
	}
	p, err := w.client.Pod(ctx, namespace, name)
	if errors.Is(err, rest.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return p.Spec.NodeName, nil
}

// ForeignRanges returns the ranges of whereabouts' pools that cnibox does not have, or not wholly. It needs the verb
// list on ippools.
//
// A pool whose range cannot be parsed gives no addresses, because whereabouts refuses to use it. It may have given those of its
// allocations before its range was changed. They are of the range in its name, because whereabouts finds a pool by this name.
func (r *Registry) ForeignRanges(ctx context.Context) (out []cluster.ForeignRange, err error) {
	pools, err := NewWhereabouts(r.client).Pools(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range pools {
		if p.Moved() {
			continue
		}
		f := cluster.ForeignRange{Name: p.Name() + " of whereabouts", Returning: p.Returning()}
		f.Range, f.Fault = p.Range()
		f.Range = f.Range.Masked()
		out = append(out, f)
		if f.Fault == nil || !p.Taken() && len(p.Spec.Allocations) == 0 {
			continue
		}
		for _, named := range p.namedRanges() {
			f.Range = named.Masked()
			out = append(out, f)
		}
	}
	return out, nil
}
