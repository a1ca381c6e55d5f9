// Package enforce is the part of an ADD in network policy: it asks the agent which policies select the pod.
package enforce

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/internal/coldjson"
	"github.com/cnibox/cnibox/internal/service"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/netpolicy/label"
	"github.com/cnibox/cnibox/store"
)

// keptDir is beside the saved policies. It has the last valid states of files.
const keptDir = "policies"

// AskTime bounds the wait of an ADD for the agent.
const AskTime = 500 * time.Millisecond

// Interface is the name of the interface to which policies apply. Kubernetes' runtimes give it to that of the cluster's
// network.
const Interface = "eth0"

// LabelsArg is the key of CNI_ARGS that has the pod's labels: "app=web,tier=db".
const LabelsArg = "CNIBOX_LABELS"

// dhcpType is the type of the IPAM plugin whose addresses may change after ADD.
const dhcpType = "dhcp"

// AnnotationsCapability is the runtimeConfig key with which containerd and CRI-O pass a pod's annotations.
const AnnotationsCapability = "io.kubernetes.cri.pod-annotations"

// maxSaved bounds the saved policies in bytes.
const maxSaved = 64 << 20

// SavedPath returns the path of the saved policies.
func SavedPath(s *store.Store) string { return s.PolicyPath() }

// KeptPath returns the path of the directory with the last valid states of files.
func KeptPath(s *store.Store) string { return filepath.Join(s.StateDir(), keptDir) }

// Answer is the agent's answer to a netops.PodPolicy without chains.
type Answer struct {
	Egress  string `json:"egress,omitempty"`
	Ingress string `json:"ingress,omitempty"`
	// Refused is why the pod must not be attached, with the fix. It is set if its policies cannot be enforced.
	Refused string `json:"refused,omitempty"`
}

// Spec adds the policies of a pod to an attachment's Spec, if this node enforces policies, and reports whether the agent answered. marked is
// true if the node's state says that it does: then ADD fails if neither the agent nor the saved policies can be asked. On another node a
// failed lstat is the whole cost. What it adds also says which addresses are the pod's own, for each interface: a pod without policies must
// not take another one's.
func Spec(ctx context.Context, h *roles.Host, req *roles.Request, marked bool, p *netops.PodPolicy, spec netops.Spec) (with netops.Spec, answered bool, err error) {
	policed := (req.IfName == Interface || req.Secondary != "") && len(p.Addresses) > 0
	if !policed && !spec.NodeFilters() {
		return spec, false, nil
	}
	if !marked {
		_, err = os.Lstat(SavedPath(h.Store))
		if errors.Is(err, fs.ErrNotExist) {
			return spec, false, nil
		}
		if err != nil {
			return spec, false, fmt.Errorf("%w: find the saved network policies: %w", roles.ErrTryAgain, err)
		}
	}
	if err := identify(p, req); err != nil {
		return spec, false, err
	}
	if !policed {
		p.ByAgent = true
		return spec.WithPodPolicy(p), false, nil
	}
	var a Answer
	err = ask(ctx, h.Store, AskTime, service.PolicyChoose, p, service.Into(&a))
	p.ByAgent = err == nil
	if err != nil {
		if a, err = choose(h.Store, p, err); err != nil {
			return spec, false, err
		}
		h.Log.Warn("the agent does not answer: the network policies that it saved last are in force", "pod", p.Namespace+"/"+p.Name)
	}
	if a.Refused != "" {
		return spec, p.ByAgent, fmt.Errorf("%w: %s", roles.ErrTryAgain, a.Refused)
	}
	p.Egress, p.Ingress = a.Egress, a.Ingress
	if p.Egress+p.Ingress != "" && !spec.NodeFilters() {
		return spec, p.ByAgent, fmt.Errorf("%w: network policies select pod %s/%s, and the packets of this kind of interface do not pass the node's packet filter: use bridge, ptp or routed for it",
			roles.ErrTryAgain, p.Namespace, p.Name)
	}
	return spec.WithPodPolicy(p), p.ByAgent, nil
}

// identify completes the pod of a request.
func identify(p *netops.PodPolicy, req *roles.Request) error {
	var conf struct {
		RuntimeConfig map[string]json.RawMessage `json:"runtimeConfig"`
		PolicyLabels  []string                   `json:"policyLabels"`
		IPAM          roles.IPAMConf             `json:"ipam"`
		Allowed       []netip.Prefix             `json:"allowedAddresses"`
		Routers       []netip.Addr               `json:"routerAddresses"`
	}
	if err := coldjson.Unmarshal(req.Conf, &conf); err != nil {
		return &roles.ConfError{Path: "runtimeConfig or policyLabels", Reason: err.Error()}
	}
	p.Network, p.Other, p.AnyAddress = req.Secondary, req.IfName != Interface && req.Secondary == "", conf.IPAM.Type == dhcpType
	p.Allowed = netops.WidestNetworks(conf.Allowed)
	p.Router = slices.ContainsFunc(p.Addresses, func(a netip.Addr) bool { return slices.Contains(conf.Routers, a) })
	return Identify(p, req.Args, req.ContainerID, conf.RuntimeConfig, conf.PolicyLabels)
}

// Identify sets what CNI_ARGS and the runtime's values by capability tell of a pod. Annotations with one of the keys
// are labels if they have the form of a label.
func Identify(p *netops.PodPolicy, args roles.Args, containerID string, runtime map[string]json.RawMessage, keys []string) (err error) {
	p.Namespace, p.Name, p.UID = args.Get("K8S_POD_NAMESPACE"), args.Get("K8S_POD_NAME"), args.Get("K8S_POD_UID")
	if p.Namespace == "" {
		p.Namespace = "default"
	}
	if p.Name == "" {
		p.Name = containerID
	}
	p.Labels, err = Labels(args.Get(LabelsArg))
	if err != nil {
		return &roles.ConfError{Path: "CNI_ARGS " + LabelsArg, Reason: err.Error()}
	}
	var annotations map[string]string
	if raw := runtime[AnnotationsCapability]; len(raw) > 0 && len(keys) > 0 {
		if err := coldjson.Unmarshal(raw, &annotations); err != nil {
			return &roles.ConfError{Path: "runtimeConfig." + AnnotationsCapability, Reason: err.Error()}
		}
	}
	for k, v := range annotations {
		if _, given := p.Labels[k]; given || !slices.Contains(keys, k) || label.CheckPod(map[string]string{k: v}) != nil {
			continue
		}
		if p.Labels == nil {
			p.Labels = map[string]string{}
		}
		p.Labels[k] = v
	}
	return nil
}

// Labels parses the value of LabelsArg.
func Labels(text string) (map[string]string, error) {
	if text == "" {
		return nil, nil
	}
	labels := map[string]string{}
	for one := range strings.SplitSeq(text, ",") {
		k, v, ok := strings.Cut(one, "=")
		if !ok {
			return nil, fmt.Errorf("%q is not a label: use for example app=web,tier=db", one)
		}
		labels[k] = v
	}
	return labels, label.CheckPod(labels)
}

// ChangeTime bounds the wait for a change of a pod's elements by the agent. After half of it the agent does not begin any more.
const ChangeTime = 100 * time.Millisecond

// Change asks the agent to add or delete the elements of a pod. Without an error it has.
func Change(ctx context.Context, s *store.Store, verb netops.Verb, p *netops.PodPolicy) error {
	name := service.PolicyAdd
	if verb == netops.VerbDel {
		name = service.PolicyDel
	}
	return ask(ctx, s, ChangeTime, name, p, nil)
}

func ask(ctx context.Context, s *store.Store, within time.Duration, name string, p *netops.PodPolicy, each func([]byte) error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	return service.Ask(ctx, s.AgentSocket(), name, p, each)
}
