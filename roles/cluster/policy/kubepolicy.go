package policy

import (
	"encoding/json"
	"errors"

	"github.com/cnibox/cnibox/roles/netpolicy"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
)

// lenient is a specification that may not have the form of its kind: a CustomResourceDefinition may check less than cnibox reads, and one
// object must not keep the list of all from being read.
type lenient[S any] struct {
	spec S
	err  error
}

func (l *lenient[S]) UnmarshalJSON(text []byte) error {
	l.err = json.Unmarshal(text, &l.spec)
	if l.err != nil {
		l.err = &netpolicy.FieldError{Path: "spec", Err: l.err}
	}
	return nil
}

// kubePolicy is a NetworkPolicy.
type kubePolicy struct {
	rest.Object
	Spec lenient[netpolicy.Spec] `json:"spec"`
}

// kubeMultiPolicy is a MultiNetworkPolicy.
type kubeMultiPolicy struct{ kubePolicy }

// kubeClusterPolicy is a ClusterNetworkPolicy.
type kubeClusterPolicy struct {
	rest.Object
	Spec lenient[netpolicy.ClusterSpec] `json:"spec"`
}

func policyTitle(namespace, name string) string { return "NetworkPolicy " + namespace + "/" + name }
func multiTitle(namespace, name string) string  { return "MultiNetworkPolicy " + namespace + "/" + name }
func clusterTitle(name string) string           { return "ClusterNetworkPolicy " + name }

// spec returns the specification. One without the form of its kind isolates all pods of the namespace, and allows nothing.
func (o *kubePolicy) spec() netpolicy.Spec {
	if o.Spec.err != nil {
		return netpolicy.Spec{PolicyTypes: []string{"Ingress", "Egress"}}
	}
	return o.Spec.spec
}

// fault logs and returns the fault of an object.
func (s *Kube) fault(title string, err error, inForce string) *netpolicy.Fault {
	if err == nil {
		return nil
	}
	f, key := netpolicy.NewFault(title, err, inForce)
	if key != "" {
		f.Field += "." + key
	}
	s.Log.Error("an object of network policies is not in force as it is written", "fault", f.String())
	return f
}

// multiPolicy returns the change for a MultiNetworkPolicy. An invalid part of it allows nothing.
func (s *Kube) multiPolicy(o *kubeMultiPolicy) func(*netpolicy.Table) {
	m, spec := &o.Metadata, o.spec()
	all, err := spec.Multi(m.Namespace, m.Name, m.Annotations[netpolicy.NetworksKey])
	title, inForce := multiTitle(m.Namespace, m.Name), "its invalid rules allow nothing"
	if len(all) == 0 {
		inForce = "it has no effect"
		err = errors.Join(err, &netpolicy.FieldError{Path: "metadata.annotations", Err: errors.New(netpolicy.NetworksKey + " names no network")})
	}
	f := s.fault(title, errors.Join(o.Spec.err, err), inForce)
	return func(t *netpolicy.Table) {
		t.PutMulti(m.Namespace, m.Name, all)
		t.SetFault(title, f)
	}
}

// spec returns the specification. One that is no object denies everything to all pods.
func (o *kubeClusterPolicy) spec() netpolicy.ClusterSpec {
	var wrong *json.UnmarshalTypeError
	if errors.As(o.Spec.err, &wrong) && wrong.Field == "" {
		unread := json.RawMessage("{}")
		return netpolicy.ClusterSpec{Ingress: unread, Egress: unread}
	}
	return o.Spec.spec
}

// clusterPolicy returns a policy, and the change for it. In place of one that has not the form of its kind its last valid state stays in force. If
// there is none, and for other faults, the part that is invalid or not known fails closed.
func (s *Kube) clusterPolicy(o *kubeClusterPolicy) (*netpolicy.ClusterPolicy, func(*netpolicy.Table)) {
	name, spec := o.Metadata.Name, o.spec()
	p, err := spec.Policy(name)
	unusable := o.Spec.err != nil || errors.Is(err, netpolicy.ErrNoList)
	err = errors.Join(o.Spec.err, err)
	warnUnenforced(s.Log, p)
	return p, func(t *netpolicy.Table) {
		inForce := "Accept rules with parts that are not understood match nothing, and other rules and what is no list of rules deny all"
		if unusable && s.usable[name] {
			inForce = "its last valid state is in force"
		} else {
			t.PutClusterPolicy(p)
			s.usable[name] = !unusable
		}
		t.SetFault(clusterTitle(name), s.fault(clusterTitle(name), err, inForce))
	}
}

// removeClusterPolicy removes a policy that was deleted.
func (s *Kube) removeClusterPolicy(t *netpolicy.Table, name string) {
	t.RemoveClusterPolicy(name)
	t.SetFault(clusterTitle(name), nil)
	delete(s.usable, name)
}

// policy returns the change for a policy. An invalid part of it allows nothing.
func (s *Kube) policy(o *kubePolicy, same *shared) func(*netpolicy.Table) {
	m, spec := &o.Metadata, o.spec()
	p, err := spec.Policy(m.Namespace, m.Name)
	title := policyTitle(m.Namespace, m.Name)
	f := s.fault(title, errors.Join(o.Spec.err, err), "its invalid rules allow nothing")
	same.policy(p)
	return func(t *netpolicy.Table) {
		t.PutPolicy(p)
		t.SetFault(title, f)
	}
}
