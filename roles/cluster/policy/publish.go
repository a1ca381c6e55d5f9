package policy

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/cnibox/cnibox/roles/netpolicy"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
	"github.com/cnibox/cnibox/store/cluster/web"
)

// A node publishes the addresses of its new pods in a ConfigMap with its name. The namespace has nothing else, so that the right to
// write ConfigMaps concerns nothing else. The Node owns the ConfigMap.
const (
	givenNamespace = "cnibox-policy"
	givenKey       = "pods"
)

const (
	// publishPause is the least time between two writes, in which further ADD calls join the next one.
	publishPause = 50 * time.Millisecond
	// tidyTime is the time after which pods are removed whose status has the addresses.
	tidyTime = 5 * time.Second
)

// kubeGiven is the ConfigMap of a node.
type kubeGiven struct {
	rest.Object
	Data map[string]string `json:"data"`
}

// given returns the pods of a ConfigMap. A text that is not of cnibox has none.
func (o *kubeGiven) given() (pods map[string]netpolicy.Given) {
	if json.Unmarshal([]byte(o.Data[givenKey]), &pods) != nil {
		return nil
	}
	return pods
}

func givenPath(name ...string) string {
	return rest.Path(append([]string{"api", "v1", "namespaces", givenNamespace, "configmaps"}, name...)...)
}

// Publish tells the other nodes which addresses pods of this node have, in place of what it told before.
func (s *Kube) Publish(pods map[string]netpolicy.Given) {
	select {
	case <-s.publishing: // an older one that was not written yet
	default:
	}
	s.publishing <- pods
}

// publish writes what Publish is called with.
func (s *Kube) publish(ctx context.Context) {
	var want, written map[string]netpolicy.Given
	var due <-chan time.Time
	var last time.Time
	var retry web.Backoff
	pause := publishPause
	for {
		select {
		case <-ctx.Done():
			return
		case want = <-s.publishing:
			switch {
			case written != nil && same(want, written):
				due = nil
			case !isPart(want, written):
				due = time.After(pause - time.Since(last))
			case due == nil:
				due = time.After(tidyTime)
			}
		case <-due:
			due, last = nil, time.Now()
			err := s.write(ctx, want)
			if err == nil {
				written, pause = want, publishPause
				retry.Reset()
				continue
			}
			if pause == publishPause {
				s.Log.Warn("the addresses of new pods cannot be published: other nodes know them when kubelet has written the status", "error", err)
			}
			pause = retry.Next(2 * publishPause)
			due = time.After(pause)
		}
	}
}

func same(a, b map[string]netpolicy.Given) bool {
	return maps.EqualFunc(a, b, func(a, b netpolicy.Given) bool { return a.UID == b.UID && slices.Equal(a.Addresses, b.Addresses) })
}

// isPart reports whether b has all of a.
func isPart(a, b map[string]netpolicy.Given) bool {
	common := maps.Clone(b)
	maps.DeleteFunc(common, func(key string, _ netpolicy.Given) bool { _, has := a[key]; return !has })
	return b != nil && same(a, common)
}

// write writes the ConfigMap of this node. It makes none without pods.
func (s *Kube) write(ctx context.Context, pods map[string]netpolicy.Given) error {
	text, err := json.Marshal(pods)
	if err != nil {
		return err
	}
	data := map[string]string{givenKey: string(text)}
	err = s.Client.Patch(ctx, givenPath(s.Node), rest.MergePatch, map[string]any{"data": data}, nil)
	if !errors.Is(err, rest.ErrNotFound) {
		return err
	}
	if len(pods) == 0 {
		return nil
	}
	var node rest.Object
	if err := s.Client.Get(ctx, rest.Path("api", "v1", "nodes", s.Node), &node); err != nil {
		return err
	}
	owner := map[string]any{"apiVersion": "v1", "kind": "Node", "name": s.Node, "uid": node.Metadata.UID}
	return s.Client.Create(ctx, givenPath(), map[string]any{
		"metadata": map[string]any{"name": s.Node, "ownerReferences": []any{owner}}, "data": data,
	}, nil)
}
