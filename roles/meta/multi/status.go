package multi

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/cnibox/cnibox/roles/meta/multi/nad"
	"github.com/cnibox/cnibox/roles/meta/multi/wish"
	"github.com/cnibox/cnibox/store"
)

// status returns the pod's network-status.
func (c *runner) status(all []store.Delegate) (json.RawMessage, error) {
	list := make([]wish.Attachment, len(all))
	for i := range all {
		n := &all[i]
		list[i] = wish.Attachment{Name: n.Name, Default: i == 0, IfName: n.IfName, Result: c.result(n.IfName), DefaultRoute: n.Gateways}
		if n.Device != "" {
			info, err := nad.DeviceInfo(nad.AttachmentInfo(n.Name, c.req.ContainerID, n.IfName), nad.DevicePluginInfo(n.Resource, n.Device))
			if err != nil {
				c.h.Log.Warn("cannot read the device information", "device", n.Device, "error", err)
			}
			list[i].DeviceInfo = info
		}
	}
	raw, err := wish.Status(list)
	if err != nil {
		return nil, fmt.Errorf("network-status: %w", err)
	}
	return raw, nil
}

// publish writes the pod's network-status to the node's file and to the pod's annotation. A failure
// is logged only.
func (c *runner) publish(ctx context.Context, api kubeAPI) {
	if len(c.out.Status) == 0 {
		return
	}
	if err := c.h.Store.WriteStatus(c.out.Owner, c.out.Status); err != nil {
		c.h.Log.Warn("cannot write the network-status file", "error", err)
	}
	ns, pod := c.req.Args.Get("K8S_POD_NAMESPACE"), c.req.Args.Get("K8S_POD_NAME")
	if api == nil || ns == "" || pod == "" {
		return
	}
	if err := api.Annotate(ctx, ns, pod, c.req.Args.Get("K8S_POD_UID"), wish.StatusKey, string(c.out.Status)); err != nil {
		c.h.Log.Warn("cannot set the pod's network-status annotation", "pod", ns+"/"+pod, "error", err)
	}
}
