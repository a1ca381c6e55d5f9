package overlay

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/cnibox/cnibox/internal/service"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/netpolicy/enforce"
	"github.com/cnibox/cnibox/store"
)

// askTime bounds the wait for the agent.
const askTime = 5 * time.Second

// awaitEgress waits until the agent recognises the packets of a pod whose namespace has an egress address. The pod must not start before,
// because its packets would leave with the node's own address. node is what was read before the attachment was recorded. What is read now
// has the namespace if the agent has not found the record itself.
func (c *Conf) awaitEgress(ctx context.Context, h *roles.Host, req *roles.Request, node *store.Overlay) error {
	if node.Egress == nil || req.IfName != enforce.Interface {
		return nil
	}
	node, err := c.readNode(h)
	if err != nil {
		return err
	}
	namespace := req.Args.Get("K8S_POD_NAMESPACE")
	if node.Egress == nil || !slices.Contains(node.Egress.Namespaces, namespace) {
		return nil
	}
	ctx, stop := context.WithTimeout(ctx, askTime)
	defer stop()
	err = service.Ask(ctx, h.Store.AgentSocket(), service.EgressAdmit, struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	}{namespace, req.Args.Get("K8S_POD_NAME")}, nil)
	if err != nil {
		return fmt.Errorf("%w: namespace %s has an egress address, and the agent does not send the pod's packets there: %w", roles.ErrTryAgain, namespace, err)
	}
	return nil
}
