package multi

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/cnibox/cnibox/roles/meta/multi/nad"
	"github.com/cnibox/cnibox/roles/meta/multi/wish"
	"github.com/cnibox/cnibox/store"
)

// status is the pod's network-status.
func (c *course) status(all []store.Delegate) (json.RawMessage, error) {
	list := make([]wish.Attachment, len(all))
	for i := range all {
		n := &all[i]
		list[i] = wish.Attachment{Name: n.Name, Default: i == 0, IfName: n.IfName, Result: c.result(n.IfName), DefaultRoute: n.Gateways}
		if n.Device != "" {
			info, err := nad.DeviceInfo(nad.AttachmentInfo(n.Name, c.req.ContainerID, n.IfName), nad.DevicePluginInfo(n.Resource, n.Device))
			if err != nil {
				c.h.Log.Warn("the device is not told of", "device", n.Device, "error", err)
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

// publish tells the pod, and who reads the node's files, of its networks. Neither
// keeps the pod from its networks.
func (c *course) publish(ctx context.Context, api cluster) {
	if len(c.out.Status) == 0 {
		return
	}
	if err := c.h.Store.WriteStatus(c.out.Owner, c.out.Status); err != nil {
		c.h.Log.Warn("network-status is not in its file", "error", err)
	}
	ns, pod := c.req.Args.Get("K8S_POD_NAMESPACE"), c.req.Args.Get("K8S_POD_NAME")
	if api == nil || ns == "" || pod == "" {
		return
	}
	if err := api.Annotate(ctx, ns, pod, c.req.Args.Get("K8S_POD_UID"), wish.StatusKey, string(c.out.Status)); err != nil {
		c.h.Log.Warn("network-status is not at the pod", "pod", ns+"/"+pod, "error", err)
	}
}
