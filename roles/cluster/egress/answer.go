package egress

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/cnibox/cnibox/roles/netpolicy/enforce"
)

// askRequest is a request of an ADD: the pod whose attachment is recorded.
type askRequest struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// askAnswer says why the pod must not start. It is the form of enforce.Answer.
type askAnswer struct {
	Error string `json:"error,omitempty"`
}

// serveTime bounds the work for one ADD.
const serveTime = 5 * time.Second

// serve returns a function that answers an ADD, until ctx ends.
func (k *Keeper) serve(ctx context.Context) func(net.Conn) {
	return func(c net.Conn) {
		_ = c.SetDeadline(time.Now().Add(serveTime))
		go func() {
			defer c.Close() //nolint:errcheck // the client has its answer, or has ended
			ctx, stop := context.WithTimeout(ctx, serveTime)
			defer stop()
			line, err := bufio.NewReader(io.LimitReader(c, enforce.MaxMessage)).ReadBytes('\n')
			var r askRequest
			if err == nil {
				err = json.Unmarshal(line, &r)
			}
			if err == nil {
				err = k.admit(ctx, &r)
			}
			var a askAnswer
			if err != nil {
				a.Error = fmt.Sprintf("%.500s", err)
			}
			_ = json.NewEncoder(c).Encode(a)
		}()
	}
}

// admit makes the kernel recognise the packets of a pod, and tells the holders of it.
func (k *Keeper) admit(ctx context.Context, r *askRequest) error {
	k.mu.Lock()
	synced := k.isSynced()
	k.mu.Unlock()
	if !synced {
		return fmt.Errorf("the agent has not read the egress addresses of the namespaces yet")
	}
	if err := k.compare(ctx); err != nil {
		return err
	}
	k.comparing.Lock()
	unmatched := k.last.unmatched[r.Namespace+"/"+r.Name]
	k.comparing.Unlock()
	if unmatched {
		return fmt.Errorf("namespace %s has the annotation %s, and the pod's interface has no MAC address by which its packets are recognised: use bridge or ptp", r.Namespace, Annotation)
	}
	_ = k.publish(ctx) // it is tried again, and until then the holder drops the pod's packets
	return nil
}
